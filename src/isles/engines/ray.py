"""Blocks on a Ray cluster: actors that stream what happens back to the driver, which keeps the run folder.

No file system is shared with the driver, and Ray itself retries nothing: a block whose actor or node is lost goes
on elsewhere from the newest checkpoint that the driver has.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import pickle
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from isles import checks
from isles.checks import IslesWarning
from isles.engines.blocks import Dead, Done, Halted, Kept, Reached, Work, follow, keep_event
from isles.engines.ledger import Ledger
from isles.engines.local import REPORT_SECONDS, environment, portable, to_bytes, usable_cpus
from isles.store.folder import RunFolder, Saved

PATIENCE = 0.2  # seconds between looks at the clock and the keyboard
STREAMED = 8  # events under way from an actor: checkpoints can be large
REACH_SECONDS = 10.0


@dataclass(frozen=True)
class Ray:
    """A Ray cluster: `RAY_ADDRESS`, `address`, or one on this machine, started on demand and bound to loopback.

    Args:
        cpus: that each block asks Ray for.
        gpus: likewise.
        threads: XLA threads of a block. Sums may be rounded differently with another number.
        retries: how often a block is run again if its actor or node is lost.
        address: of a cluster, as `"host:port"`.
        resources: further ones that each block asks for.
        workers: blocks at a time; by default, as many as the cluster has room for.
    """

    cpus: float = 1
    gpus: float = 0
    threads: int = 1
    retries: int = 3
    address: str | None = None
    resources: tuple[tuple[str, float], ...] | dict[str, float] = ()
    workers: int | None = None

    def __post_init__(self) -> None:
        checks.count("threads", self.threads)
        checks.count("retries", self.retries, minimum=0)
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value!r} must be a number that is not negative")
        if self.workers is not None:
            checks.count("workers", self.workers)

    def run(self, work: Work, folder: RunFolder | None, ledger: Ledger) -> None:
        """Run what the ledger gives; an exception of an actor is raised here."""
        assert folder is not None
        if not ledger.can_take:
            return
        with _cluster(self.address) as (ray, alone):
            payload = ray.put(to_bytes(work))
            crew: dict[Any, _Post] = {}  # stream of events -> who sends it
            idle: list[Any] = []  # actors that wait for a block
            halted = False
            self._check_room(ray, alone)
            try:
                while crew or ledger.can_take:
                    while len(crew) < max(self._room(ray), 1) and (number := ledger.take()) is not None:
                        actor = idle.pop() if idle else self._hire(ray, payload)
                        post = _begin(actor, folder, number, ledger.life_seen)
                        crew[post.stream] = post
                    # whoever has nothing to do gives way: an actor that is to replace a lost one may wait for room
                    while idle:
                        _dismiss(ray, idle.pop())
                    if ledger.halting and not halted:
                        halted = True
                        for post in crew.values():
                            post.actor.halt.remote()
                    for stream in _ready(ray, list(crew)):
                        if self._hear(ray, crew[stream], work, folder, ledger):
                            post = crew.pop(stream)
                            post.lock.close()
                            if not post.lost:
                                idle.append(post.actor)
            finally:
                for post in crew.values():
                    post.lock.close()
                for actor in [*idle, *(post.actor for post in crew.values())]:
                    _dismiss(ray, actor)

    def _room(self, ray: Any) -> int:
        """Blocks that the cluster can run at a time, as it is now."""
        room = sum(self._fits(node["Resources"]) for node in ray.nodes() if node["Alive"])
        return room if self.workers is None else min(self.workers, room)

    def _fits(self, resources: dict[str, float]) -> int:
        """Blocks that one node can run at a time."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **dict(self.resources)}
        rooms = [resources.get(name, 0.0) / amount for name, amount in wanted.items() if amount > 0]
        return int(min(rooms, default=usable_cpus()))

    def _check_room(self, ray: Any, alone: bool) -> None:
        """Raise, or warn where a node may still come, if no node can run a block."""
        if self._room(ray):
            return
        found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        sizes = "; ".join(str({k: v for k, v in each.items() if not k.startswith("node:")}) for each in found)
        message = f"no node has what a block of {self} asks for; there is {sizes or 'no node'}"
        if alone:
            raise ValueError(f"{message}: ask for less, or give the address of a cluster that has it")
        warnings.warn(f"{message}. The run waits for a node that has it", IslesWarning, stacklevel=2)

    def _hire(self, ray: Any, payload: Any) -> Any:
        """An actor that has the work, once there is room for it."""
        chosen = environment(self.threads)
        names = {"PYTHONPATH", "NPROC", "ISLES_CACHE", "XLA_FLAGS"}
        variables = {
            name: value
            for name, value in chosen.items()
            if name in names or name.startswith("JAX_") or name.endswith("_NUM_THREADS")
        }
        return ray.remote(_Actor).options(
            num_cpus=self.cpus, num_gpus=self.gpus, resources=dict(self.resources), max_restarts=0,
            max_concurrency=2, runtime_env={"env_vars": variables},
        ).remote(payload)  # fmt: skip

    def _hear(self, ray: Any, post: _Post, work: Work, folder: RunFolder, ledger: Ledger) -> bool:
        """Take one event from an actor; whether it was the last."""
        try:
            kind, *message = ray.get(next(post.stream))
        except ray.exceptions.RayTaskError:
            raise
        except (StopIteration, ray.exceptions.RayError) as error:
            ledger.lose(post.number, f"its actor or node was lost ({type(error).__name__})", self.retries)
            post.lost = True
            return True
        if kind == "error":
            cause, text = message
            cause.add_note(f"on a Ray worker, {work.named(post.number)}:\n{text}")
            raise cause
        event = pickle.loads(message[0])
        keep_event(folder.block(post.number), work, post.number, event, fresh=post.fresh)
        post.fresh = post.fresh and not isinstance(event, Kept)
        ledger.hear(post.number, event)
        return isinstance(event, (Done, Dead, Halted))


@dataclass
class _Post:
    """A block and the actor that runs it."""

    number: int
    actor: Any
    stream: Any
    lock: contextlib.ExitStack  # of the block's folder, to which only the driver writes
    fresh: bool = True
    lost: bool = False


def _begin(actor: Any, folder: RunFolder, number: int, life_seen: bool) -> _Post:
    """Give an actor a block, with its newest good checkpoint."""
    lock = contextlib.ExitStack()
    lock.enter_context(folder.block(number).locked())
    checkpoints = list(itertools.islice(folder.block(number).newest(), 1))
    streaming = actor.follow.options(num_returns="streaming", _generator_backpressure_num_objects=STREAMED)
    return _Post(number, actor, streaming.remote(number, checkpoints, life_seen), lock)


def _dismiss(ray: Any, actor: Any) -> None:
    with contextlib.suppress(Exception):
        ray.kill(actor)


class _Actor:
    """Runs blocks on a node, one after another."""

    def __init__(self, payload: bytes) -> None:
        self._payload, self._halt = payload, threading.Event()

    @functools.cached_property
    def _work(self) -> Work:  # made once: another copy of the problem would be compiled anew
        return pickle.loads(self._payload)

    def halt(self) -> None:
        self._halt.set()

    def follow(self, number: int, checkpoints: Sequence[Saved], life_seen: bool) -> Iterator[Any]:
        try:
            from isles import cache

            cache.keep_compiled()
            last = -math.inf
            for event in follow(self._work, number, checkpoints, life_seen=life_seen, halt=self._halt.is_set):
                if isinstance(event, Reached) and time.monotonic() - last < REPORT_SECONDS:
                    continue
                last = time.monotonic()
                yield "event", to_bytes(event)
        except BaseException as error:
            yield "error", portable(error), "".join(traceback.format_exception(error))


def _ready(ray: Any, streams: list[Any]) -> list[Any]:
    if not streams:
        time.sleep(PATIENCE)
        return []
    ready, _ = ray.wait(streams, num_returns=1, timeout=PATIENCE)
    return list(ready)


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[tuple[Any, bool]]:
    """Ray, connected, and whether to a cluster that was started for this, which is stopped again."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError("engine='ray' needs Ray; install it with: pip install 'isles[ray]'") from error
    if ray.is_initialized():
        yield ray, False
        return
    address = address or os.environ.get("RAY_ADDRESS")
    # Ray forks and executes at once, which JAX's warning of forks does not mean
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    if address:
        _check_reachable(address)
        ray.init(address=address, **quiet)
    else:
        # "local": else Ray would join any cluster that runs on this machine
        ray.init("local", num_cpus=usable_cpus(), include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    try:
        yield ray, not address
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise if nobody listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():  # "auto" and the like
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error}); start one with 'ray start --head', or unset "
            f"RAY_ADDRESS to have one started on this machine"
        ) from error
