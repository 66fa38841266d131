"""`sample` and `resume`: islands in blocks, run by an engine to their end and merged into one posterior."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from jax.sharding import Mesh

from isles import cache, checks, devices, keys, progress, results
from isles.checks import DeadWorkerError, IslesWarning
from isles.definition import Definition, check_agreement, check_format, digest, import_problem, read_sampler
from isles.engines.blocks import CHECKPOINT_SECONDS, Work
from isles.engines.ledger import Budget, Ledger, hearing_interrupts
from isles.engines.local import Here, Local
from isles.layout import Params
from isles.posterior import Posterior
from isles.problem import Problem
from isles.samplers.block import BlockResult, Output, Sampler
from isles.store.folder import RunFolder, Saved

BLOCK_BYTES = 1 << 28  # of particle states in one block
BLOCK_WORK = 1 << 22  # coordinates × rows of data × particles beyond which a block is one island

FolderName = str | os.PathLike[str]


class Engine(Protocol):
    """Where blocks run."""

    @property
    def threads(self) -> int | None:
        """XLA threads of a block; None for those of this process."""
        ...

    def run(self, work: Work, folder: RunFolder | None, ledger: Ledger) -> list[BlockResult] | None:
        """Run what the ledger gives, with checkpoints and results in the folder."""
        ...


def sample(
    problem: Problem | str,
    sampler: Sampler,
    *,
    islands: int = 1,
    seed: int = 0,
    folder: FolderName | None = None,
    engine: str | Engine | None = None,
    workers: int | None = None,
    threads: int | None = None,
    retries: int | None = None,
    islands_per_block: int | None = None,
    chunk_rows: int | None = None,
    mesh: Mesh | None = None,
    collect: Mapping[str, Callable[[Params], Any]] | None = None,
    keep: str = "all",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    max_seconds: float | None = None,
    max_epochs: int | None = None,
    finish_started: bool = True,
    allow_partial: bool = False,
    progress: bool | None = None,
) -> Posterior:
    """Draw from the posterior of `problem` with P independent islands.

    Args:
        problem: what to sample from, or where to import it from, as `"package.module:function"`.
        sampler: `SMC(...)`, `MCMC(...)` or `AIS(...)`: what each island does.
        islands: P.
        seed: decides every random number, together with the island's number.
        folder: where the run is kept, with checkpoints from which `isles.resume` goes on. The same call on a
            folder that holds this very run goes on, too.
        engine: where blocks run: in this process by default; with a `folder`, in worker processes (`"local"`);
            `"serial"` in one; `"ray"` on a cluster. These give the same bits, whatever the number of workers.
        workers: processes of `engine="local"`; by default one for each `threads` CPUs, at most one a block. Cheap
            problems have few blocks: lower `islands_per_block` to give every worker one.
        threads: XLA threads of a worker, 1 by default. Sums may be rounded differently with another number.
        retries: how often a block is run again if its worker dies, as when memory runs out; 2 by default.
        islands_per_block: islands advanced together as one program; the default is a function of shapes.
        chunk_rows: rows of data evaluated at a time; see `Problem`.
        mesh: devices of this process to share the particles and the data of an island; see `isles.mesh`.
        collect: functions of the parameters whose posterior means are accumulated while running.
        keep: which draws are stored: `"all"`, `"thinned"` (at most 1000 a chain) or `"none"`.
        checkpoint_seconds: time between checkpoints inside long stages and chains.
        max_seconds: no block begins after so long.
        max_epochs: no block begins once all particles together have had so many.
        finish_started: whether a budget lets islands finish that have begun. If not, fast islands are favoured,
            and the posterior says so.
        allow_partial: return what is finished, with a warning, where islands are missing.
        progress: show how the run goes; by default, when the output is a terminal.
    """
    reference = problem if isinstance(problem, str) else None
    if isinstance(problem, str):
        problem = import_problem(problem)
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={problem!r} must be an isles.Problem; build one with isles.Problem(prior, ...)")
    if isinstance(sampler, type) or not hasattr(sampler, "advance"):
        raise TypeError(f"sampler={sampler!r} must be a sampler such as isles.SMC(...)")
    cache.keep_compiled()
    islands = checks.count("islands", islands)
    keys.root(seed)  # raises on a bad seed
    where = choose_engine(engine, workers, threads, retries, here=folder is None or mesh is not None)
    budget = check_budget(max_seconds, max_epochs, finish_started)
    output = check_output(collect, keep)
    if chunk_rows is not None:
        problem = problem.with_chunk_rows(chunk_rows)
    sampler.check(problem, output)
    check_memory(problem, sampler)
    if islands_per_block is None:
        islands_per_block = default_islands_per_block(problem, sampler, islands)
    size = min(checks.count("islands_per_block", islands_per_block), islands)
    problem = problem.for_particles(size * sampler.width)
    if mesh is not None:
        if engine is not None:
            raise ValueError(f"mesh= is for devices of this process, engine={engine!r} for others; leave one out")
        mesh = devices.check(mesh, sampler.width)
    definition = Definition(problem, sampler, output, seed, islands, size, where.threads, reference, mesh)
    return conduct(
        definition, where, folder,
        checkpoint_seconds=checks.positive("checkpoint_seconds", checkpoint_seconds),
        budget=budget,
        allow_partial=allow_partial,
        shown=progress,
    )  # fmt: skip


def resume(
    folder: FolderName,
    problem: Problem | str | None = None,
    *,
    sampler: Sampler | None = None,
    collect: Mapping[str, Callable[[Params], Any]] | None = None,
    engine: str | Engine | None = None,
    workers: int | None = None,
    retries: int | None = None,
    mesh: Mesh | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    max_seconds: float | None = None,
    max_epochs: int | None = None,
    finish_started: bool = True,
    allow_partial: bool = False,
    progress: bool | None = None,
) -> Posterior:
    """Go on with the run in a folder; the result has exactly the bits of a run that was never interrupted.

    Args:
        folder: of the run.
        problem: the one that the run was begun with; not needed if it was given as `"package.module:function"`.
        sampler: needed only if it is of a class of your own, or has a kernel that is.
        collect: the functions that the run was begun with, if any.
        engine: as for `sample`, and so are all other arguments. None of them changes the result.
        workers: see `sample`.
        retries: see `sample`.
        mesh: see `sample`.
        checkpoint_seconds: see `sample`.
        max_seconds: see `sample`; counted from now.
        max_epochs: see `sample`; earlier ones count.
        finish_started: see `sample`.
        allow_partial: see `sample`.
        progress: see `sample`.
    """
    cache.keep_compiled()
    definition = reopen(folder, problem, sampler=sampler, collect=collect, mesh=mesh)
    threads = definition.threads
    if threads is None and not isinstance(engine, Here | None):
        raise ValueError(
            f"the run was begun in the caller's own process, whose threads decide how sums are rounded; "
            f"engine={engine!r} would change bits, so leave it out"
        )
    where = choose_engine(engine, workers, threads, retries, here=threads is None)
    return conduct(
        definition, where, folder,
        checkpoint_seconds=checks.positive("checkpoint_seconds", checkpoint_seconds),
        budget=check_budget(max_seconds, max_epochs, finish_started),
        allow_partial=allow_partial,
        shown=progress,
    )  # fmt: skip


def reopen(
    folder: FolderName,
    problem: Problem | str | None = None,
    *,
    sampler: Sampler | None = None,
    collect: Mapping[str, Callable[[Params], Any]] | None = None,
    mesh: Mesh | None = None,
) -> Definition:
    """The definition of the run in a folder, with its problem and sampler made anew."""
    saved = RunFolder(folder).definition()
    check_format(saved)
    sampler = sampler or read_sampler(saved)
    if sampler is None:
        raise ValueError(
            f"the run uses a sampler or kernel of your own, {saved.facts['settings'].get('sampler_text')}; "
            f"pass it as sampler="
        )
    settings, reference = saved.facts["settings"], saved.facts["problem"].get("reference")
    problem = problem if problem is not None else reference
    if problem is None:
        raise ValueError("a run folder holds no problem; pass problem= as the run was begun with")
    if isinstance(problem, str):
        reference, problem = problem, import_problem(problem)
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={problem!r} must be an isles.Problem, as the run was begun with")
    if set(settings["collect"]) != set(collect or {}):
        raise ValueError(f"the run collects {sorted(settings['collect'])}; pass the same functions as collect=")
    if problem.rows:
        problem = problem.with_chunk_rows(max(settings["chunk_rows"], 1))
    output = check_output(collect, settings["keep"])
    sampler.check(problem, output)
    if mesh is not None:
        mesh = devices.check(mesh, sampler.width)
    definition = Definition(
        problem, sampler, output, settings["seed"], settings["islands"], settings["islands_per_block"],
        settings["threads"], reference, mesh,
    )  # fmt: skip
    check_agreement(saved, definition.write())
    return definition


def conduct(
    definition: Definition,
    engine: Engine,
    folder: FolderName | None,
    *,
    checkpoint_seconds: float,
    budget: Budget,
    allow_partial: bool,
    shown: bool | None,
) -> Posterior:
    """Run what is left of a run, and merge it."""
    kept = folder is not None
    blocks = definition.blocks
    with contextlib.ExitStack() as stack:
        place = None
        if folder is not None:
            place = RunFolder(folder)
            stack.enter_context(place.locked())
            written = definition.write()
            agree(place, written)
        elif not isinstance(engine, Here):
            place = RunFolder(stack.enter_context(tempfile.TemporaryDirectory(prefix="isles-")))
            written = definition.write()
        work = define_work(definition, written if place else None, checkpoint_seconds, every_stage=kept)
        done, spent = results.finished(place, work) if place is not None and kept else (set(), 0)
        display = stack.enter_context(progress.display(shown, blocks=len(blocks), finished=done))
        interrupted = stack.enter_context(hearing_interrupts(display, resumable=kept))
        ledger = Ledger(work, display, budget, interrupted, finished=done, spent=spent)
        in_memory = engine.run(work, place, ledger)
        ledger.check_life()
        if ledger.interrupted:
            raise KeyboardInterrupt(
                f"stopped after a checkpoint; go on with isles.resume({os.fspath(folder or '')!r}, problem=...)"
            )
        missing = sorted(set(range(len(blocks))) - ledger.finished)
        if ledger.failed and not allow_partial:
            remedy = "isles.merge(folder, allow_partial=True) gives" if kept else "allow_partial=True returns"
            raise DeadWorkerError(f"{'; '.join(ledger.failed.values())}. {remedy} the islands that are finished")
        if in_memory is None:
            assert place is not None
            in_memory = [results.read(place, work, number) for number in sorted(ledger.finished)]
        posterior = results.merge_found(
            definition.problem.layout, definition.sampler, in_memory, definition.output.keep,
            seed=definition.seed,
            missing=results.name_islands(blocks, missing),
            fast_only=bool(missing) and not budget.finish_started,
        )  # fmt: skip
        if place is not None and kept and not missing:
            posterior.save(place.posterior_path)
    for message in posterior.warnings:
        warnings.warn(message, IslesWarning, stacklevel=3)
    return posterior


def define_work(
    definition: Definition, written: Saved | None, checkpoint_seconds: float, *, every_stage: bool
) -> Work:
    """What goes to whoever runs blocks."""
    problem = definition.problem
    return Work(
        problem if definition.mesh is None else problem.on(definition.mesh),
        definition.sampler,
        definition.output,
        definition.seed,
        definition.blocks,
        digest=digest(written.facts) if written else "",
        checkpoint_seconds=checkpoint_seconds,
        every_stage=every_stage,
    )


def agree(place: RunFolder, written: Saved) -> None:
    """Begin a run in an empty folder, or see that the folder holds this very run."""
    if not place.holds_run:
        place.create(written.facts, written.tensors)
        return
    found = place.definition()
    check_agreement(found, written)
    if found.facts.get("machine") != written.facts["machine"]:  # allowed, but sums may be rounded differently
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": written.facts["machine"]}
        with contextlib.suppress(OSError), open(place.path / "log", "a") as file:
            file.write(json.dumps(line) + "\n")


def choose_engine(
    engine: str | Engine | None, workers: int | None, threads: int | None, retries: int | None, *, here: bool
) -> Engine:
    """What `engine=` and its companions mean."""
    if engine is not None and not isinstance(engine, str):
        if isinstance(engine, type) or not hasattr(engine, "run"):
            raise TypeError(f"engine={engine!r} must be a name, or an engine such as isles.Ray(cpus=1)")
        for name, value in (("workers", workers), ("retries", retries)):
            if value is not None:
                raise ValueError(f"{name}={value!r} is for engines by name; set it on {engine!r}")
        if threads is not None and threads != engine.threads:
            raise ValueError(f"threads={threads!r} and {engine!r} disagree; set it on the engine")
        return engine
    if engine is not None:
        checks.choice("engine", engine, ["serial", "local", "ray"])
    if retries is not None:
        checks.count("retries", retries, minimum=0)
    if engine is None and here:
        for name, value in (("threads", threads), ("workers", workers)):
            if value is not None:
                raise ValueError(f'{name}={value!r} is for worker processes; add engine="local", or leave it out')
        return Here()
    if workers is not None and engine not in (None, "local"):
        raise ValueError(f'workers={workers!r} needs engine="local", got engine={engine!r}; change one of them')
    threads = checks.count("threads", 1 if threads is None else threads)
    retries = 2 if retries is None else retries
    if engine == "ray":
        from isles.engines.ray import Ray

        return Ray(threads=threads, retries=retries)
    return Local(1 if engine == "serial" else workers, threads, retries)


def check_budget(max_seconds: float | None, max_epochs: int | None, finish_started: bool) -> Budget:
    """A budget that makes sense."""
    if max_seconds is not None:
        max_seconds = checks.positive("max_seconds", max_seconds)
    if max_epochs is not None:
        max_epochs = checks.count("max_epochs", max_epochs)
    return Budget(max_seconds, max_epochs, bool(finish_started))


def check_output(collect: Mapping[str, Callable[[Params], Any]] | None, keep: str) -> Output:
    """What a user wants of the draws, if it makes sense."""
    checks.choice("keep", keep, ["all", "thinned", "none"])
    if collect is not None and not isinstance(collect, Mapping):
        raise TypeError(f'collect={collect!r} must be a dict of functions, as in collect={{"name": function}}')
    output = Output(dict(collect or {}), keep)
    for name, function in output.collect.items():
        if not callable(function):
            raise TypeError(f"collect[{name!r}]={function!r} must be a function of the parameters")
    return output


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
