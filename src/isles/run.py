"""`sample` and `resume`: islands in blocks, run by an engine to their end and merged into one posterior."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from isles import cache, checks, devices, progress, results
from isles.checks import DeadWorkerError, IslesWarning, SettingsError
from isles.definition import Definition, check_agreement, check_output, define, digest, read_sampler, reopen
from isles.engines.blocks import CHECKPOINT_SECONDS, Work
from isles.engines.ledger import Budget, Ledger, hearing_interrupts
from isles.engines.local import Here, Local
from isles.layout import Params
from isles.likelihoods import known
from isles.posterior import Posterior
from isles.problem import Problem
from isles.samplers.block import BlockResult, Sampler
from isles.samplers.stages import Tempered
from isles.store.folder import RunFolder, Saved

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
    islands: int | Sequence[int] = 1,
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
        sampler: `SMC(...)`, `MCMC(...)`, `MPMCMC(...)` or `AIS(...)`: what each island does.
        islands: P; or the numbers of the islands, as `range(8, 16)` for eight more than a run of 8 has: an island
            depends on the seed and its number alone.
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
        mesh: devices to share the particles and the data of an island, of this process or of several; see
            `isles.mesh`.
        collect: functions of the parameters whose posterior means are accumulated while running.
        keep: which draws are stored: `"all"`, `"thinned"` (at most 1000 a chain, or some 10,000
            points of MPMCMC) or `"none"`.
        checkpoint_seconds: time between checkpoints inside long stages and chains.
        max_seconds: no block begins after so long.
        max_epochs: no block begins once all particles together have had so many.
        finish_started: whether a budget lets islands finish that have begun. If not, fast islands are favoured,
            and the posterior says so.
        allow_partial: return what is finished, with a warning, where islands are missing.
        progress: show how the run goes; by default, when the output is a terminal.
    """
    cache.keep_compiled()
    where = choose_engine(engine, workers, threads, retries, here=folder is None or mesh is not None)
    budget = check_budget(max_seconds, max_epochs, finish_started)
    if mesh is not None and engine is not None:
        raise ValueError(
            f"mesh= is for devices of the processes that call, engine={engine!r} for others; leave one out"
        )
    definition = define(
        problem, sampler, where.threads,
        islands=islands, seed=seed, islands_per_block=islands_per_block, chunk_rows=chunk_rows, mesh=mesh,
        output=check_output(collect, keep),
    )  # fmt: skip
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
    if devices.spans_processes(definition.mesh):
        check_together(definition, folder, budget)
    kept = folder is not None
    blocks = definition.blocks
    with contextlib.ExitStack() as stack:
        place = None
        if folder is not None:
            place = RunFolder(folder)
            place.check_strangers()  # before a lock is left among them
            stack.enter_context(place.locked())
            written = definition.write()
            agree(place, written)
        elif not isinstance(engine, Here):
            place = RunFolder(stack.enter_context(tempfile.TemporaryDirectory(prefix="isles-")))
            written = definition.write()
        work = define_work(definition, written if place else None, checkpoint_seconds, every_stage=kept)
        done, spent = results.finished(place, work) if place is not None and kept else (set(), 0)
        display = stack.enter_context(progress.display(shown, blocks=len(blocks), finished=done, epochs=spent))
        remedy = None if folder is None else f"go on with {resume_call(definition, written, folder)}"
        interrupted = stack.enter_context(hearing_interrupts(display, remedy=remedy))
        ledger = Ledger(work, display, budget, interrupted, finished=done, spent=spent)
        in_memory = engine.run(work, place, ledger)
        ledger.check_life()
        if ledger.interrupted:
            raise KeyboardInterrupt(f"stopped after a checkpoint; {remedy}")
        missing = sorted(set(range(len(blocks))) - ledger.finished)
        if ledger.failed and not allow_partial:
            remedy = "isles.merge(folder, allow_partial=True) gives" if kept else "allow_partial=True returns"
            raise DeadWorkerError(f"{'; '.join(ledger.failed.values())}. {remedy} the islands that are finished")
        if in_memory is None:
            assert place is not None
            in_memory = [results.read(place, work, number) for number in sorted(ledger.finished)]
        posterior = results.merge_found(
            definition.problem.layout, known(definition.problem), definition.sampler, in_memory,
            definition.output.keep,
            seed=definition.seed,
            missing=results.name_islands(blocks, missing),
            fast_only=bool(missing) and not budget.finish_started,
        )  # fmt: skip
        if place is not None and kept and not missing:
            posterior.save(place.posterior_path)
    for message in posterior.warnings:
        warnings.warn(message, IslesWarning, stacklevel=3)
    return posterior


def check_together(definition: Definition, folder: FolderName | None, budget: Budget) -> None:
    """Whether processes that share islands can do what is asked for, and are all asked for the same."""
    if not isinstance(definition.sampler, Tempered):
        raise ValueError(
            f"a mesh over several processes runs SMC and AIS, not {type(definition.sampler).__name__}; take "
            f"devices of one process, or independent islands with engine="
        )
    if folder is not None:
        raise ValueError(
            f"folder={os.fspath(folder)!r} is for runs of one process, and the mesh spans several; leave it out, "
            f"and save the posterior in one of them"
        )
    if budget.max_seconds is not None:
        raise ValueError(
            f"max_seconds={budget.max_seconds} goes by each process's own clock, and processes that share a mesh "
            f"have to stop together; take max_epochs"
        )
    name = np.frombuffer(bytes.fromhex(digest(definition.write().facts)), np.uint8)
    names = multihost_utils.process_allgather(name)
    others = np.flatnonzero((names != names[0]).any(axis=1))
    if others.size:
        raise ValueError(
            f"process {others[0]} calls isles.sample with another problem or other settings than process 0; all "
            f"processes of a mesh must make the same call"
        )


def resume_call(definition: Definition, written: Saved, folder: FolderName) -> str:
    """What to type to go on with a run."""
    needed = {
        "problem": definition.reference is None,
        "sampler=...": read_sampler(written) is None,
        "collect=...": bool(definition.output.collect),
        "mesh=...": definition.mesh is not None,
    }
    return f"isles.resume({', '.join([repr(os.fspath(folder)), *(name for name in needed if needed[name])])})"


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
                raise SettingsError(f"{name}={value!r} is for engines by name; set it on {engine!r}")
        if threads is not None and threads != engine.threads:
            raise SettingsError(f"threads={threads!r} and {engine!r} disagree; set it on the engine")
        return engine
    if engine is not None:
        checks.choice("engine", engine, ["serial", "local", "ray"])
    if retries is not None:
        checks.count("retries", retries, minimum=0)
    if engine is None and here:
        for name, value in (("threads", threads), ("workers", workers)):
            if value is not None:
                raise SettingsError(
                    f'{name}={value!r} is for worker processes; add engine="local", or leave it out'
                )
        return Here()
    if workers is not None and engine not in (None, "local"):
        raise SettingsError(f'workers={workers!r} needs engine="local", got engine={engine!r}; change one of them')
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
