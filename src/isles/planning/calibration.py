"""What a block costs on this machine, measured by a process like the workers that will run it.

That process reads the problem and the sampler from stdin, works for a few seconds as a worker would, and writes
what it saw to a pipe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import resource
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from isles import cache, keys
from isles.checks import DeadWorkerError
from isles.engines import frames
from isles.engines.local import environment, portable, to_bytes
from isles.problem import Problem
from isles.progress import estimates
from isles.samplers import MCMC, MPMCMC, SMC
from isles.samplers.block import Output, Sampler
from isles.samplers.tempered import TemperedBlock

PILOT_PARTICLES, PILOT_MUTATIONS = 32, 5  # at most
WARM_UP = 3  # pieces of work after which everything is compiled


class Order(NamedTuple):
    """What to measure."""

    problem: Problem
    sampler: Sampler
    islands: int  # of a block
    pilot: bool  # whether to look for the number of stages
    seconds: float  # to measure for
    pilot_seconds: float


@dataclass(frozen=True)
class Calibration:
    """What a block costs on a worker."""

    start_seconds: float  # from the start of a process to its first useful work
    epochs_per_second: float  # of all particles of a block together
    epochs_per_mutation: float  # of one particle
    memory_bytes: int  # peak of a worker
    stages: int | None = None  # of a pilot
    pilot_finished: bool = False  # else extrapolated from the part of its way that there was time for


def calibrate(order: Order, threads: int) -> Calibration:
    """Measure in a process of its own, with as many threads as a worker."""
    payload = to_bytes(order)
    reader, writer = os.pipe()  # not stdout, where users' code prints
    begun = time.monotonic()
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from isles.planning import calibration; calibration.main({writer})"],
            stdin=subprocess.PIPE, stdout=2, bufsize=0, pass_fds=[writer], env=environment(threads),
        )  # fmt: skip
    finally:
        os.close(writer)
    with FileIO(reader, "rb") as replies, child:
        try:
            assert isinstance(child.stdin, FileIO)
            with contextlib.suppress(BrokenPipeError):
                frames.send(child.stdin, payload)
            _receive(replies, child)
            start_seconds = time.monotonic() - begun
            return Calibration(start_seconds, **_receive(replies, child))
        finally:
            child.kill()


def _receive(replies: FileIO, child: subprocess.Popen[bytes]) -> dict[str, Any]:
    message = frames.receive(replies)
    if message is None:
        raise DeadWorkerError(
            f"the process that measures a block died with exit code {child.wait()}; if memory ran out, take a "
            f"smaller islands_per_block or fewer particles"
        )
    kind, *content = pickle.loads(message)
    if kind == "error":
        error, text = content
        error.add_note(f"in the process that measures a block:\n{text}")
        raise error
    return dict(content[0])


def main(descriptor: int) -> None:
    """The measuring process."""
    os.set_inheritable(descriptor, False)
    replies = FileIO(descriptor, "wb")
    reply = lambda *message: frames.send(replies, cloudpickle.dumps(message))
    try:
        cache.keep_compiled()
        message = frames.receive(FileIO(0, "rb", closefd=False))
        assert message is not None
        order: Order = pickle.loads(message)
        warm_up(order)
        reply("warm", {})
        speed = measure(order)
        memory = peak_memory()
        pilot = run_pilot(order) if order.pilot else {}
        reply("measured", {**speed, "memory_bytes": memory, **pilot})
    except BaseException as error:
        reply("error", portable(error), "".join(traceback.format_exception(error)))


def warm_up(order: Order) -> None:
    """Compile what a block needs, so that `measure` does not: climbs, burn-in and draws are different programs."""
    sampler = order.sampler
    parts: list[Sampler] = [sampler]
    if isinstance(sampler, MCMC):
        if sampler.way is not None:
            parts = [dataclasses.replace(sampler, start=dataclasses.replace(sampler.way, epochs=2))]
        at_once = dataclasses.replace(sampler, start="prior")
        parts += [at_once, dataclasses.replace(at_once, burn_in=0, thin=1)]
    elif isinstance(sampler, MPMCMC):
        parts += [dataclasses.replace(sampler, burn_in=0)]
    for part in parts:
        _work(order._replace(sampler=part), pieces=WARM_UP)


def measure(order: Order) -> dict[str, float]:
    """Epochs a second, and epochs a mutation, of a block that has been compiled."""
    epochs, spent = 0, 0.0
    while spent < order.seconds / 2:  # blocks that end early are begun again
        begun = time.perf_counter()
        block = _work(order, seconds=order.seconds)
        spent += time.perf_counter() - begun
        epochs += block.status.epochs
    first = 1 if isinstance(order.sampler, MPMCMC) else order.sampler.width  # prior draws of an island
    each = (block.status.epochs / order.islands - first) / order.sampler.width
    mutations = _mutations(block)
    return {
        "epochs_per_second": epochs / spent,
        "epochs_per_mutation": each / mutations if mutations else 1.0,
    }


def run_pilot(order: Order) -> dict[str, Any]:
    """The number of stages of one island with few particles and mutations, and their epochs a mutation."""
    sampler = order.sampler
    assert isinstance(sampler, SMC)
    mutations = PILOT_MUTATIONS if not isinstance(sampler.mutations, int) else sampler.mutations
    fewest = 2 * (order.problem.dimension + 1) if sampler.kernel.partners else 0  # that can move by each other
    particles = min(sampler.particles, max(PILOT_PARTICLES, fewest))
    small = dataclasses.replace(sampler, particles=particles, mutations=min(mutations, PILOT_MUTATIONS))
    problem = order.problem.for_particles(small.particles)
    block = small.begin(problem, keys.root(0), np.arange(1), Output({}, "none"))
    course = estimates.Course(0.0)
    deadline = time.monotonic() + order.pilot_seconds
    while not small.finished(block) and (time.monotonic() < deadline or course.advance is None):
        block = small.advance(problem, block)
        course = estimates.follow(course, block.status, time.monotonic())
    done = small.finished(block)
    left = 0 if done else estimates.stages_left(block.status.tempering, course.advance)
    assert left is not None
    found: dict[str, Any] = {"stages": block.stage + left, "pilot_finished": done}
    if not block.all_dead:
        found["epochs_per_mutation"] = (block.status.epochs / small.particles - 1) / _mutations(block)
    return found


def peak_memory() -> int:
    """Bytes that this process has had at most."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _work(order: Order, *, seconds: float = 0.0, pieces: int = 1) -> Any:
    """A block's first pieces, as a worker does them that is always asked for a checkpoint."""
    deadline = time.monotonic() + seconds
    problem, sampler = order.problem, order.sampler
    block = sampler.begin(problem, keys.root(0), np.arange(order.islands), Output({}, "none"))
    while not sampler.finished(block) and (pieces > 0 or time.monotonic() < deadline):
        block = sampler.advance(problem, block, lambda: True)
        block.status.epochs  # waits for the device  # noqa: B018
        pieces -= 1
    return block


def _mutations(block: Any) -> float:
    """That an island's particles have had, in the mean over islands."""
    if isinstance(block, TemperedBlock):
        made = sum(np.nan_to_num(record["mutations"]).mean() for record in block.records)
        return float(made + (0 if block.under_way is None else np.asarray(block.group.moved).mean()))
    return float(block.status.stage)
