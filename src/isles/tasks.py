"""A run whose blocks are tasks of a scheduler: defined once in its folder, then worked out block by block.

Tasks share the folder and nothing else. Each holds the lock of the block it works on, goes on from its newest
checkpoint, and leaves a finished block as it is. The scripts that a scheduler is given are in `engines/slurm.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from isles import cache, checks, keys, progress
from isles.checks import DeadIslandsError, DeadWorkerError
from isles.definition import Definition, check_output, define, reopen
from isles.engines.blocks import CHECKPOINT_SECONDS, Work
from isles.engines.ledger import Budget, Ledger
from isles.engines.local import Here, Local
from isles.engines.threads import runs_with
from isles.layout import Params
from isles.problem import Problem
from isles.run import agree, define_work
from isles.samplers.block import Sampler
from isles.store.folder import RunFolder

FolderName = str | os.PathLike[str]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class TaskReport(NamedTuple):
    """How far a task came."""

    finished: tuple[int, ...]  # of its blocks
    stopped_by: int  # the signal that asked it to stop; 0 if none did


def define_run(
    folder: FolderName,
    problem: str,
    sampler: Sampler,
    *,
    islands: int | Sequence[int] = 1,
    seed: int = 0,
    threads: int = 1,
    islands_per_block: int | None = None,
    chunk_rows: int | None = None,
    keep: str = "all",
) -> Definition:
    """Begin a run in a folder without running it, or see that the folder holds this very run.

    Args:
        folder: where the run is to be kept.
        problem: where to import it from, as `"package.module:function"`: tasks have no other way to find it.
        sampler: see `isles.sample`, and so are all other arguments.
        islands: P, or the numbers of the islands.
        seed: decides every random number.
        threads: XLA threads of a task.
        islands_per_block: islands advanced together as one program.
        chunk_rows: rows of data evaluated at a time.
        keep: which draws are stored.
    """
    if not isinstance(problem, str):
        raise TypeError(f"problem={problem!r} must be like 'package.module:function', which tasks can import")
    definition = define(
        problem, sampler, checks.count("threads", threads),
        islands=islands, seed=seed, islands_per_block=islands_per_block, chunk_rows=chunk_rows,
        output=check_output(None, keep),
    )  # fmt: skip
    place = RunFolder(folder)
    with place.locked():
        agree(place, definition.write())
    return definition


def run_tasks(
    folder: FolderName,
    numbers: Collection[int],
    problem: Problem | str | None = None,
    *,
    sampler: Sampler | None = None,
    collect: Mapping[str, Callable[[Params], Any]] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    retries: int = 2,
    progress: bool | None = None,
) -> TaskReport:
    """Run some blocks of a run to their ends. Blocks that are finished are left alone.

    SIGTERM, SIGUSR1 and Ctrl-C ask for a checkpoint of the moment, and the end. Blocks run in this process if it
    was started with the run's number of threads (see `engines/threads.py`), else in a worker process that is.

    Args:
        folder: of the run.
        numbers: of the blocks.
        problem: needed only if the folder holds no import path.
        sampler: needed only if it is of a class of your own, or has a kernel that is.
        collect: the functions that the run was begun with, if any.
        checkpoint_seconds: time between checkpoints inside long stages and chains.
        retries: how often a worker process that dies is replaced.
        progress: show how the blocks go; by default, when the output is a terminal.
    """
    checkpoint_seconds = checks.positive("checkpoint_seconds", checkpoint_seconds)
    place = RunFolder(folder)
    cache.keep_compiled()
    definition = reopen(folder, problem, sampler=sampler, collect=collect)
    threads = definition.threads
    if threads is None:
        raise ValueError("the run was begun on a mesh of one process's devices; go on with isles.resume(mesh=...)")
    chosen = [_check_number(number, len(definition.blocks)) for number in dict.fromkeys(numbers)]
    written = definition.write()
    agree(place, written)
    work = define_work(definition, written, checkpoint_seconds, every_stage=True)
    engine = Here() if runs_with(threads) else Local(1, threads, retries)
    with _hearing(SIGNALS) as heard:
        interrupted = lambda: bool(heard)
        life: set[int] = set()
        ledger = _run(engine, work, place, chosen, life, interrupted, progress)
        try:
            ledger.check_life()
        except DeadIslandsError:
            life = _find_life(work, place, chosen)
            if not life:
                raise
            ledger = _run(engine, work, place, chosen, life, interrupted, progress)
    if ledger.failed:
        raise DeadWorkerError("; ".join(ledger.failed.values()))
    finished = tuple(number for number in chosen if number in ledger.finished)
    return TaskReport(finished, heard[0] if heard else 0)


def _run(
    engine: Here | Local,
    work: Work,
    place: RunFolder,
    numbers: Collection[int],
    life: set[int],
    interrupted: Callable[[], bool],
    shown: bool | None,
) -> Ledger:
    """Run blocks, knowing of others that have live particles."""
    others = set(range(len(work.blocks))) - set(numbers)
    with progress.display(shown, blocks=len(work.blocks), finished=others) as display:
        ledger = Ledger(work, display, Budget(), interrupted, finished=life)
        ledger.todo = deque(numbers)
        engine.run(work, place, ledger)
    return ledger


def _find_life(work: Work, place: RunFolder, dead: Collection[int]) -> set[int]:
    """Another block that has a live particle; none if all are dead, so that there is nothing to sample from.

    Under other engines a dead block waits for a sign of life from another. A task may be the first that runs, and
    makes the first draws of the others itself, which costs one epoch a particle.
    """
    others = [number for number in range(len(work.blocks)) if number not in dead]
    root = keys.root(work.seed)
    for number in others:
        if place.block(number).has_begun:
            return {number}
    for number in others:
        if not work.sampler.begin(work.problem, root, work.blocks[number], work.output).all_dead:
            return {number}
    return set()


def _check_number(number: int, blocks: int) -> int:
    if checks.count("block", number, minimum=0) >= blocks:
        raise ValueError(f"block={number} must be below {blocks}, the number of blocks of this run")
    return number


@contextlib.contextmanager
def _hearing(signals: Collection[signal.Signals]) -> Iterator[list[int]]:
    """Signals as they come, instead of what they would do; the second Ctrl-C does what it always does."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def hear(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in heard:
            raise KeyboardInterrupt
        heard.append(number)

    before = {number: signal.signal(number, hear) for number in signals}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
