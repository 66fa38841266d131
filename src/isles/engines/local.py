"""Blocks in worker processes of this machine. The other side of the pipes is `isles/_worker.py`.

Workers are started afresh, with their thread count set before they import JAX: XLA's sums depend on it. They are
sent the work once, then block numbers as they become free. Results do not depend on who runs which block.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import selectors
import signal
import subprocess
import sys
from collections import ChainMap, Counter
from collections.abc import Iterable
from io import FileIO
from typing import Any, ClassVar

import cloudpickle
import jax

from isles.checks import DeadWorkerError
from isles.engines import Ledger, Show, Work, frames
from isles.samplers.block import BlockResult

# what of JAX's configuration decides numbers, or where they are computed
JAX_SETTINGS = (
    "jax_enable_x64",
    "jax_platforms",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
)


def usable_cpus() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_workers(work: Work, show: Show, *, workers: int, threads: int, retries: int) -> list[BlockResult]:
    """Run all blocks in at most `workers` processes of `threads` threads each.

    An exception of a worker is raised here. The block of a worker that dies is given to another, `retries` times.
    """
    payload = _pickle(work)
    ledger = Ledger(len(work.blocks), show)
    crew: list[_Worker] = []
    busy: dict[_Worker, int] = {}
    deaths: Counter[int] = Counter()
    try:
        while ledger.todo or busy:
            # all are started before the first is sent its work, so that they import side by side
            while len(crew) < min(workers, len(busy) + len(ledger.todo)):
                crew.append(_Worker(threads))
            for worker in crew:
                if worker not in busy and ledger.todo:
                    busy[worker] = ledger.todo.popleft()
                    worker.run(busy[worker], payload, ledger.life_seen)
            for worker in _ready(busy):
                number = busy[worker]
                match worker.receive():
                    case "progress", share:
                        ledger.report(number, share)
                    case "outcome", outcome:
                        ledger.close(number, outcome)
                        del busy[worker]
                    case "error", error, text:
                        error.add_note(f"in a worker process, {_named(work, number)}:\n{text}")
                        raise error
                    case None:
                        del busy[worker]
                        crew.remove(worker)
                        deaths[number] += 1
                        status = worker.bury()
                        if deaths[number] > retries:
                            raise DeadWorkerError(_describe_death(work, number, deaths[number], status))
                        ledger.todo.appendleft(number)
        return ledger.finish()
    finally:
        for worker in crew:
            worker.kill()


class _Worker:
    """A worker process and the pipes to it."""

    def __init__(self, threads: int) -> None:
        self._has_work = False
        reader, writer = os.pipe()  # not stdout, where users' code prints
        try:
            self._process = subprocess.Popen(
                # -P: no other sys.path than ours, which the environment holds
                [sys.executable, "-P", "-m", "isles._worker", str(writer)],
                stdin=subprocess.PIPE, stdout=2, bufsize=0, pass_fds=[writer], env=_environment(threads),
                process_group=0,  # out of reach of the terminal's Ctrl-C, which is ours to handle
            )  # fmt: skip
        finally:
            os.close(writer)
        assert isinstance(self._process.stdin, FileIO)
        self._orders, self._replies = self._process.stdin, FileIO(reader, "rb")

    def fileno(self) -> int:
        return self._replies.fileno()

    def run(self, number: int, payload: bytes, life_seen: bool) -> None:
        with contextlib.suppress(BrokenPipeError):  # its death will be seen when it is asked for an answer
            if not self._has_work:
                frames.send(self._orders, payload)
                self._has_work = True
            frames.send(self._orders, pickle.dumps((number, life_seen)))

    def receive(self) -> Any:
        """The next message; None if the worker is dead."""
        message = frames.receive(self._replies)
        return None if message is None else pickle.loads(message)

    def bury(self) -> int:
        """Exit code of a worker that has gone, or minus the signal that ended it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)  # it may still be giving back its memory
        self.kill()
        return self._process.returncode

    def kill(self) -> None:
        """End the process, whatever it does; what it gave so far has arrived."""
        self._process.kill()
        self._process.wait()
        self._orders.close()
        self._replies.close()


def _ready(busy: Iterable[_Worker]) -> list[_Worker]:
    """Wait for workers that have something to say, or have died."""
    with selectors.DefaultSelector() as selector:
        for worker in busy:
            selector.register(worker, selectors.EVENT_READ, worker)
        return [key.data for key, _ in selector.select()]


def _environment(threads: int) -> dict[str, str]:
    """What a worker needs to know before it imports JAX."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # XLA reads the first
        environment[name] = str(threads)
    for name in JAX_SETTINGS:
        value = getattr(jax.config, name, None)
        if value is not None:
            environment[name.upper()] = str(value)
    return environment


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle that knows `jax.custom_vjp`, which refuses to be made without its function."""

    dispatch_table: ClassVar = ChainMap(
        {jax.custom_vjp: lambda function: (object.__new__, (type(function),), vars(function))},
        cloudpickle.Pickler.dispatch_table,
    )


def _pickle(work: Work) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(work)
    except Exception as error:
        raise TypeError(
            f"problem, sampler and collect= go to worker processes by pickle, which fails: {error}; keep open "
            f"files, locks and the like out of them, or leave engine= out to run in this process"
        ) from error
    return buffer.getvalue()


def _named(work: Work, number: int) -> str:
    islands = work.blocks[number]
    return f"block {number} (islands {islands[0]} to {islands[-1]})"


def _describe_death(work: Work, number: int, deaths: int, status: int) -> str:
    how = f"by signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"with exit code {status}"
    if status == -signal.SIGKILL:
        remedy = "if memory ran out, take fewer workers, a smaller islands_per_block or fewer particles"
    else:
        remedy = "see what it wrote to stderr, and run one island without engine= to find what ends the process"
    return f"the worker of {_named(work, number)} died {how}, {deaths} times in all; {remedy}"
