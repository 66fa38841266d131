"""Many islands in many blocks: nothing is lost, and the driver's memory is bounded by the size of the results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import isles
from clusters import Cluster
from kills import assert_same_bits, drive, finish

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore::isles.IslesWarning")]

LOAD = """
import json, resource, time, jax, isles, numpy as np, targets
problem = targets.conjugate().problem
sampler = isles.SMC(isles.MH(), particles=32, mutations=2, schedule=[0.1, 1.0])
run = lambda islands, folder: isles.sample(
    problem, sampler, islands=islands, islands_per_block=16, engine={engine}, folder=folder)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
run(32, None)
before, busy = peak(), time.process_time()
posterior = run(4096, {folder!r})
size = sum(leaf.nbytes for leaf in jax.tree.leaves(vars(posterior)) if isinstance(leaf, np.ndarray))
print(json.dumps(dict(growth=peak() - before, size=size, cpu=(time.process_time() - busy) / 256)))
"""
ENGINES = {"local": "isles.Local(workers=2)", "ray": "isles.Ray()"}


def test_4096_islands_in_256_blocks(
    tmp_path: Path, nodes: Cluster, monkeypatch: pytest.MonkeyPatch, compiled: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    for name, engine in ENGINES.items():
        folder = tmp_path / name
        code, out, errors = finish(drive(LOAD.format(engine=engine, folder=str(folder))))
        assert code == 0, errors
        seen = json.loads(out)
        print(
            f"\n{name}: driver grew by {seen['growth'] / 2**20:.0f} MiB for results of {seen['size'] / 2**20:.0f}"
        )
        print(f"{name}: {1000 * seen['cpu']:.1f} ms of the driver's CPU a block")
        assert seen["growth"] < 6 * seen["size"] + 2**26
        posterior = isles.load(folder / "posterior.safetensors")
        assert posterior.positions.shape == (4096, 32, 16) and posterior.missing == ()
        assert len(np.unique(posterior.positions[:, 0, 0])) == 4096, "every island is another"
        assert len(list(folder.glob("blocks/*/result.safetensors"))) == 256
    assert_same_bits(*(isles.load(tmp_path / name / "posterior.safetensors") for name in ENGINES))
