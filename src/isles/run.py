"""`sample`: islands in blocks, advanced to the end and merged into one posterior."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from isles import cache, checks, devices, keys
from isles.checks import IslesWarning
from isles.engines import Show, Work, run_here
from isles.engines.local import run_in_workers, usable_cpus
from isles.layout import Params
from isles.posterior import Posterior, merge
from isles.problem import Problem
from isles.samplers.block import BlockResult, Output, Sampler

BLOCK_BYTES = 1 << 28  # of particle states in one block
BLOCK_WORK = 1 << 22  # coordinates × rows of data × particles beyond which a block is one island


def sample(
    problem: Problem,
    sampler: Sampler,
    *,
    islands: int = 1,
    seed: int = 0,
    islands_per_block: int | None = None,
    chunk_rows: int | None = None,
    engine: str | None = None,
    workers: int | None = None,
    threads: int | None = None,
    retries: int = 2,
    mesh: Mesh | None = None,
    collect: Mapping[str, Callable[[Params], Any]] | None = None,
    keep: str = "all",
    progress: bool | None = None,
) -> Posterior:
    """Draw from the posterior of `problem` with P independent islands.

    Args:
        problem: what to sample from.
        sampler: `SMC(...)`, `MCMC(...)` or `AIS(...)`: what each island does.
        islands: P.
        seed: decides every random number, together with the island's number.
        islands_per_block: islands advanced together as one program; the default is a function of shapes.
        chunk_rows: rows of data evaluated at a time; see `Problem`.
        engine: where blocks run: in this process by default, `"local"` in worker processes, `"serial"` in one.
            Both engines give the same bits, whatever the number of workers.
        workers: processes of `engine="local"`; by default one for each `threads` CPUs, at most one a block. Cheap
            problems have few blocks: lower `islands_per_block` to give every worker one.
        threads: XLA threads of a worker, 1 by default. Sums may be rounded differently with another number.
        retries: how often a block is run anew if its worker dies, as when memory runs out.
        mesh: devices of this process to share the particles and the data of an island; see `isles.mesh`.
        collect: functions of the parameters whose posterior means are accumulated while running.
        keep: which draws are stored: `"all"`, `"thinned"` (at most 1000 a chain) or `"none"`.
        progress: show a progress bar; by default, when the output is a terminal.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={problem!r} must be an isles.Problem; build one with isles.Problem(prior, ...)")
    if isinstance(sampler, type) or not hasattr(sampler, "advance"):
        raise TypeError(f"sampler={sampler!r} must be a sampler such as isles.SMC(...)")
    cache.keep_compiled()
    islands = checks.count("islands", islands)
    keys.root(seed)  # raises on a bad seed
    run = choose_engine(engine, workers, threads, retries)
    checks.choice("keep", keep, ["all", "thinned", "none"])
    if collect is not None and not isinstance(collect, Mapping):
        raise TypeError(f'collect={collect!r} must be a dict of functions, as in collect={{"name": function}}')
    output = Output(dict(collect or {}), keep)
    for name, function in output.collect.items():
        if not callable(function):
            raise TypeError(f"collect[{name!r}]={function!r} must be a function of the parameters")
    if chunk_rows is not None:
        problem = problem.with_chunk_rows(chunk_rows)
    sampler.check(problem, output)
    check_memory(problem, sampler)
    if mesh is not None:
        if engine is not None:
            raise ValueError(f"mesh= is for devices of this process, engine={engine!r} for others; leave one out")
        problem = problem.on(devices.check(mesh, sampler.width))
    if islands_per_block is None:
        islands_per_block = default_islands_per_block(problem, sampler, islands)
    size = min(checks.count("islands_per_block", islands_per_block), islands)
    problem = problem.for_particles(size * sampler.width)
    numbers = np.arange(islands)
    blocks = [numbers[first : first + size] for first in range(0, islands, size)]
    work = Work(problem, sampler, output, seed, tuple(blocks))
    with _Bar(len(blocks), sys.stderr.isatty() if progress is None else progress) as bar:
        results = run(work, bar.update)
    posterior = merge(problem, sampler, results, output, seed=seed)
    for message in posterior.warnings:
        warnings.warn(message, IslesWarning, stacklevel=2)
    return posterior


def choose_engine(
    engine: str | None, workers: int | None, threads: int | None, retries: int
) -> Callable[[Work, Show], list[BlockResult]]:
    """What maps blocks to their results."""
    retries = checks.count("retries", retries, minimum=0)
    if engine is not None:
        checks.choice("engine", engine, ["serial", "local"])
    if threads is not None and engine is None:
        raise ValueError(f'threads={threads!r} are those of a worker process; add engine="local", or leave it out')
    if workers is not None and engine != "local":
        raise ValueError(f'workers={workers!r} needs engine="local", got engine={engine!r}; change one of them')
    if engine is None:
        return run_here
    threads = checks.count("threads", 1 if threads is None else threads)
    if workers is None:
        workers = 1 if engine == "serial" else max(usable_cpus() // threads, 1)
    return partial(run_in_workers, workers=checks.count("workers", workers), threads=threads, retries=retries)


def check_memory(problem: Problem, sampler: Sampler) -> None:
    """Raise if one island's particles cannot fit into this machine's memory."""
    needed = 4 * problem.dtype.itemsize * sampler.width * problem.dimension
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise MemoryError(
            f"{sampler.width} particles of {problem.dimension} parameters need about {needed / 2**30:.3g} GiB, "
            f"this machine has {memory / 2**30:.3g}; take fewer particles on more islands"
        )


def default_islands_per_block(problem: Problem, sampler: Sampler, islands: int) -> int:
    """One island where an evaluation is long, so that none waits for another; else as many as fit in memory."""
    work = sampler.width * problem.dimension * max(problem.rows, 1)
    if work > BLOCK_WORK:
        return 1
    particle_bytes = 12 * problem.dtype.itemsize * problem.dimension + 2 * problem.evaluation_bytes
    island_bytes = sampler.width * particle_bytes
    return int(np.clip(BLOCK_BYTES // island_bytes, 1, islands))


class _Bar:
    """A progress bar over blocks, or nothing."""

    def __init__(self, total: int, shown: bool) -> None:
        self.bar = Progress(
            TextColumn("sampling"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True, disable=not shown,
        )  # fmt: skip
        self.task = self.bar.add_task("sampling", total=float(total))

    def __enter__(self) -> _Bar:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, done: float) -> None:
        self.bar.update(self.task, completed=done)
