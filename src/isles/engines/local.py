"""Blocks in this process, or in worker processes of this machine, whose side of the pipes is `isles/_worker.py`.

Workers are started afresh, with their thread count set before they import JAX: XLA's sums depend on it. They are
sent the work once, then block numbers as they become free. They write checkpoints and results to the run folder;
over the pipes goes only what happened. Results do not depend on who runs which block.
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
import warnings
from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass
from io import FileIO
from typing import Any, ClassVar

import cloudpickle
import jax

from isles import checks
from isles.checks import IslesWarning
from isles.definition import NUMBERS
from isles.engines import frames
from isles.engines.blocks import Dead, Done, Halted, Work, follow, follow_in_folder
from isles.engines.ledger import Ledger
from isles.engines.threads import thread_variables
from isles.samplers.block import BlockResult
from isles.store.folder import RunFolder

REPORT_SECONDS = 0.1  # between two reports of progress, which may otherwise come thousands a second
PATIENCE = 0.2  # seconds between looks at the clock and the keyboard


def usable_cpus() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Here:
    """Blocks in the caller's own process, one after another."""

    threads: ClassVar[None] = None

    def run(self, work: Work, folder: RunFolder | None, ledger: Ledger) -> list[BlockResult] | None:
        """Run what the ledger gives; without a folder, the results of all blocks."""
        results: dict[int, BlockResult] = {}
        halt = lambda: ledger.halting
        while (number := ledger.take()) is not None:
            if folder is None:
                events = follow(work, number, life_seen=ledger.life_seen, halt=halt, keep=False)
            else:
                events = follow_in_folder(work, folder, number, life_seen=ledger.life_seen, halt=halt)
            for event in events:
                ledger.hear(number, event)
                if isinstance(event, Done) and folder is None:
                    results[number] = event.result
        return None if folder else [results[number] for number in sorted(results)]


@dataclass(frozen=True)
class Local:
    """Worker processes of this machine.

    Args:
        workers: how many; by default one for each `threads` CPUs.
        threads: XLA threads of each. Sums may be rounded differently with another number.
        retries: how often a block is run again if its worker dies, as when memory runs out.
    """

    workers: int | None = None
    threads: int = 1
    retries: int = 2

    def __post_init__(self) -> None:
        if self.workers is not None:
            checks.count("workers", self.workers)
        checks.count("threads", self.threads)
        checks.count("retries", self.retries, minimum=0)

    def run(self, work: Work, folder: RunFolder | None, ledger: Ledger) -> None:
        """Run what the ledger gives; an exception of a worker is raised here."""
        assert folder is not None
        payload = to_bytes((work, str(folder.path.resolve())))
        workers = max(usable_cpus() // self.threads, 1) if self.workers is None else self.workers
        crew: list[_Worker] = []
        busy: dict[_Worker, int] = {}
        halted = False
        try:
            while busy or ledger.can_take:
                # all are started before the first is sent its work, so that they import side by side
                while len(crew) < min(workers, len(busy) + ledger.can_take):
                    crew.append(_Worker(self.threads))
                for worker in crew:
                    if worker not in busy and (number := ledger.take()) is not None:
                        busy[worker] = number
                        worker.run(number, payload, ledger.life_seen)
                if ledger.halting and not halted:
                    halted = True
                    for worker in busy:
                        worker.halt()
                for worker in _ready(busy):
                    number = busy[worker]
                    match worker.receive():
                        case "event", event:
                            ledger.hear(number, event)
                            if isinstance(event, (Dead, Halted)):
                                del busy[worker]
                        case "done", epochs:
                            ledger.close(number, epochs)
                            del busy[worker]
                        case "warning", message:
                            warnings.warn(message, IslesWarning, stacklevel=2)
                        case "error", error, text:
                            error.add_note(f"in a worker process, {work.named(number)}:\n{text}")
                            raise error
                        case None:
                            del busy[worker]
                            crew.remove(worker)
                            ledger.lose(number, _describe_death(worker.bury()), self.retries)
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
                stdin=subprocess.PIPE, stdout=2, bufsize=0, pass_fds=[writer], env=environment(threads),
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

    def halt(self) -> None:
        """Ask it to stop after a checkpoint."""
        with contextlib.suppress(BrokenPipeError):
            frames.send(self._orders, frames.HALT)

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
    """Wait a moment for workers that have something to say, or have died."""
    with selectors.DefaultSelector() as selector:
        for worker in busy:
            selector.register(worker, selectors.EVENT_READ, worker)
        return [key.data for key, _ in selector.select(timeout=PATIENCE)]


def environment(threads: int) -> dict[str, str]:
    """What a worker needs to know before it imports JAX."""
    chosen = dict(os.environ)
    # absolute: workers of a cluster start elsewhere
    chosen["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    chosen |= thread_variables(threads)
    for name in (*NUMBERS, "jax_platforms"):
        value = getattr(jax.config, name, None)
        if value is not None:
            chosen[name.upper()] = str(value)
    return chosen


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle that knows `jax.custom_vjp`, which refuses to be made without its function."""

    dispatch_table: ClassVar = ChainMap(
        {jax.custom_vjp: lambda function: (object.__new__, (type(function),), vars(function))},
        cloudpickle.Pickler.dispatch_table,
    )


def to_bytes(work: Any) -> bytes:
    """What goes to another process, by value: closures and lambdas too."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(work)
    except Exception as error:
        raise TypeError(
            f"problem, sampler and collect= go to worker processes by pickle, which fails: {error}; keep open "
            f"files, locks and the like out of them, or leave engine= and folder= out to run in this process"
        ) from error
    return buffer.getvalue()


def _describe_death(status: int) -> str:
    how = f"by signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"with exit code {status}"
    if status == -signal.SIGKILL:
        remedy = "if memory ran out, take fewer workers, a smaller islands_per_block or fewer particles"
    else:
        remedy = "see what it wrote to stderr, and run one island without engine= to find what ends the process"
    return f"its worker died {how} ({remedy})"


def portable(error: BaseException) -> BaseException:
    """The error itself, if it survives the way to another process, or its text."""
    with contextlib.suppress(Exception):
        if str(pickle.loads(cloudpickle.dumps(error))) == str(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")
