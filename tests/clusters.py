"""Ray clusters on this machine, for tests. Their process forks, as one that uses JAX should not.

`python clusters.py 1 2` starts nodes of 1 and 2 CPUs, the first being the head, and says so as a line of JSON. It
removes a node for each line `remove NUMBER` on stdin, and stops all at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
NODE: dict[str, Any] = {"object_store_memory": 200 * 2**20}


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs."""

    address: str
    raylets: list[int]  # process of each node
    _process: subprocess.Popen[str]

    def remove(self, number: int) -> None:
        """Lose a node, without a warning to it."""
        self._process.stdin.write(f"remove {number}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "removed\n"


@contextlib.contextmanager
def cluster(*cpus: int) -> Iterator[Cluster]:
    """A cluster whose nodes have so many CPUs; the first is the head."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, *map(str, cpus)], env=os.environ | SETTINGS, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Cluster(*json.loads(process.stdout.readline()), process)
    finally:
        process.communicate(timeout=600)


def main(cpus: list[int]) -> None:
    from ray.cluster_utils import Cluster as RayCluster

    replies, sys.stdout = sys.stdout, sys.stderr  # Ray may print
    head = {"num_cpus": cpus[0], "include_dashboard": False, **NODE}
    found = RayCluster(initialize_head=True, head_node_args=head)
    nodes = [found.head_node, *(found.add_node(num_cpus=count, **NODE) for count in cpus[1:])]
    raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
    print(json.dumps([found.address, raylets]), file=replies, flush=True)
    for line in sys.stdin:
        found.remove_node(nodes[int(line.split()[1])], allow_graceful=False)
        print("removed", file=replies, flush=True)
    found.shutdown()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
