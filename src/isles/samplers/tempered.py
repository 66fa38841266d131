"""What SMC and AIS share: a block of islands on its way from the prior (tempering 0) to the posterior (1)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from isles import devices, expectations, weights
from isles.adapt import Decorrelate
from isles.kernels.base import Tuning
from isles.keys import Purpose, Uniforms, rows
from isles.problem import Problem, State
from isles.samplers import block as blocks
from isles.samplers import groups, mutation, read_back
from isles.samplers.block import BlockResult, Output, Plan, Record, Status, last_mean
from isles.samplers.groups import Arrival, Group, Static
from isles.samplers.mutation import Seen
from isles.samplers.pace import Pause


class Outset(NamedTuple):
    """What a block is told, and a checkpoint need not hold."""

    root: Array
    islands: np.ndarray[Any, Any]  # (I,) their numbers in the run
    kernel: Static
    output: Output
    uniforms: Uniforms | None = None  # of resampling


class UnderWay(NamedTuple):
    """A stage between two of its mutations, but for the particles."""

    tempering: np.ndarray[Any, Any]  # (I,) to which the stage leads
    mutations: int  # at most
    threshold: float | None  # correlation at which an island stops, where M is adaptive
    record: Record  # what is known of the stage so far
    changes: dict[str, np.ndarray[Any, Any]]  # of the block, once the stage is closed
    group: Group | None = None  # where checkpoints of earlier versions have it


@dataclass(frozen=True)
class TemperedBlock:
    """Islands between two stages, or inside one."""

    outset: Outset
    group: Group  # of the stage under way, or as the last one left it
    log_likelihood: np.ndarray[Any, Any]  # (I, N)
    tempering: np.ndarray[Any, Any]  # (I,)
    log_weights: np.ndarray[Any, Any]  # (I, N)
    log_evidence: np.ndarray[Any, Any]  # (I,)
    epochs: np.ndarray[Any, Any]  # (I, N)
    nonfinite: np.ndarray[Any, Any]  # (I,)
    dead: np.ndarray[Any, Any]  # (I,)
    founders: np.ndarray[Any, Any] | None  # (I, N) the prior's draws that particles descend from; None: unknown
    variances: tuple[np.ndarray[Any, Any], ...]  # (d,) of the first live island, a stage
    records: tuple[Record, ...]
    rounding: float  # of tempered log-likelihoods in the working dtype, the worst so far
    obituary: str | None  # why islands have no live particle
    under_way: UnderWay | None = None

    @property
    def islands(self) -> np.ndarray[Any, Any]:
        """(I,) their numbers in the run."""
        return self.outset.islands

    @property
    def states(self) -> State:
        """Leaves (I·N, ...)."""
        return self.group.states

    @property
    def tuning(self) -> Tuning:
        """Leaves (I, ...)."""
        return self.group.tuning

    @property
    def all_dead(self) -> bool:
        """Whether no island has a live particle."""
        return bool(np.isneginf(self.log_evidence).all())

    @property
    def first_alive(self) -> int:
        """Place of the first island that has a live particle: the one that a plan is copied from."""
        return int(np.argmax(~np.isneginf(self.log_evidence)))

    @property
    def stage(self) -> int:
        """Stages done."""
        return len(self.records)

    @property
    def progress(self) -> float:
        """Share of the way, on the log scale on which tempering advances about evenly."""
        if not self.records:
            return 0.0
        first = min(value for value in self.records[0]["tempering"].tolist() if not math.isnan(value))
        now = min(self.tempering.tolist())
        return 1.0 if now >= 1 else math.log(now / first) / -math.log(first) * 0.95

    @property
    def at_landmark(self) -> bool:
        """Whether it stands between two stages."""
        return self.under_way is None

    @property
    def status(self) -> Status:
        """Where the block stands."""
        last = self.records[-1] if self.records else {}
        made = 0 if self.under_way is None else int(self.group.evaluations.sum())
        return Status(
            share=self.progress,
            stage=self.stage,
            tempering=float(self.tempering.min()),
            ess=last_mean(last, "ess"),
            acceptance=last_mean(last, "acceptance"),
            epochs=int(self.epochs.sum()) + made,
        )


def start(problem: Problem, outset: Outset) -> TemperedBlock:
    """Prior draws of every island: one epoch a particle."""
    islands, particles = outset.islands, outset.kernel.particles
    size = len(islands)
    tuning = groups.broadcast_tuning(outset.kernel.kernel.tuning(problem), size)
    keys = rows(outset.root, Purpose.PRIOR, 0, islands)
    group = groups.first_group(problem, outset.kernel, keys, tuning)
    alive, nonfinite = blocks.first_states(group.states, particles)
    dead_island = ~alive.any(axis=1)
    return TemperedBlock(
        outset=outset,
        group=group,
        log_likelihood=mutation.host_log_likelihood(group.states, particles),
        tempering=np.where(dead_island, 1.0, 0.0),
        log_weights=np.zeros((size, particles)),
        log_evidence=np.where(dead_island, -np.inf, 0.0),
        epochs=np.full((size, particles), outset.kernel.kernel.evaluation_epochs(problem)),
        nonfinite=nonfinite.sum(axis=1).astype(np.int64),
        dead=(~alive).sum(axis=1),
        founders=np.tile(np.arange(particles, dtype=np.int32), (size, 1)),
        variances=(),
        records=(),
        rounding=0.0,
        obituary=blocks.describe_dead(islands, alive, nonfinite) if dead_island.any() else None,
    )


def pack(block: TemperedBlock) -> dict[str, Any]:
    """Everything but what the block is told, and what the next stage forgets; leaves on the host."""
    names = [field.name for field in dataclasses.fields(block) if field.name not in ("outset", "group")]
    names += ["states", "tuning"] if block.under_way is None else ["group"]
    return {name: jax.device_get(getattr(block, name)) for name in names}


def unpack(problem: Problem, outset: Outset, kept: dict[str, Any]) -> TemperedBlock:
    """The inverse of `pack`."""
    kept, islands, particles = {"founders": None} | kept, len(outset.islands), outset.kernel.particles
    names = "tempering", "log_evidence", "nonfinite", "dead"
    read_back.check_arrays(kept, dict.fromkeys(names, (islands,)))
    read_back.check_arrays(kept, dict.fromkeys(("log_likelihood", "log_weights", "epochs"), (islands, particles)))
    if kept["founders"] is not None:  # earlier versions did not keep them
        read_back.check_arrays(kept, {"founders": (islands, particles)})
    read_back.check_records(kept["records"], islands)
    stage, due = kept["under_way"], read_back.due_group(problem, outset.kernel, islands)
    if stage is not None and stage.group is not None:
        kept["under_way"], kept["group"] = stage._replace(group=None), stage.group
        del kept["tuning"]
    for variances in kept["variances"]:
        read_back.check_arrays({"variances": variances}, {"variances": due.tuning.variances.shape[1:]})
    if stage is None:
        states, tuning = kept.pop("states"), kept.pop("tuning")
        read_back.check_like("tuning", tuning, due.tuning)
        read_back.check_like("states", states, due.states)
        group = groups.new_group(problem, outset.kernel, jax.device_put(states), tuning, np.ones(islands, bool))
    else:
        read_back.check_like("group", kept["group"], due)
        read_back.check_arrays(stage._asdict(), {"tempering": (islands,)})
        shapes = {"log_evidence": (islands,)} | dict.fromkeys(("log_weights", "founders"), (islands, particles))
        read_back.check_arrays(stage.changes, {name: shapes[name] for name in stage.changes})
        read_back.check_records([stage.record], islands)
        group = jax.device_put(kept["group"])
        group = group._replace(states=problem.place(group.states))
    return TemperedBlock(outset, **kept | {"group": group})


def next_tuning(problem: Problem, block: TemperedBlock, plan: Plan | None, within: np.ndarray[Any, Any]) -> Tuning:
    """The next stage's tuning: the plan's, or the last one with scales from the weighted particles.

    SMC gives its weights `within` islands before resampling, which makes duplicates; AIS gives equal ones.
    """
    if plan is not None:
        return _planned_tuning(problem, block, plan)
    if not block.outset.kernel.kernel.scale_from_population:
        return block.tuning
    within, moving = within.astype(problem.dtype), block.tempering < 1
    return mutation.population_tuning(problem, block.outset.kernel, block.states, within, block.tuning, moving)


class Beginning(NamedTuple):
    """A stage about to begin."""

    ancestors: np.ndarray[Any, Any]  # (I·N,) the rows that go on
    tuning: Tuning
    stage: UnderWay


def stage_of(
    tempering: np.ndarray[Any, Any],
    mutations: int | Decorrelate,
    record: Record,
    **changes: np.ndarray[Any, Any],
) -> UnderWay:
    """A stage to `tempering`, with what is known of it before it begins."""
    if isinstance(mutations, Decorrelate):
        return UnderWay(tempering, mutations.max, mutations.threshold, record, changes)
    return UnderWay(tempering, mutations, None, record, changes)


def begin(problem: Problem, block: TemperedBlock, beginning: Beginning, pause: Pause) -> TemperedBlock:
    """Mutate the rows that go on."""
    arrival = Arrival(np.bool_(True), beginning.ancestors, block.tempering < 1)
    group = block.group._replace(tuning=beginning.tuning)
    return _mutate(problem, block, beginning.stage, group, arrival, 0, pause)


def go_on(problem: Problem, block: TemperedBlock, pause: Pause) -> TemperedBlock:
    """Mutate on."""
    assert block.under_way is not None
    arrival = groups.underway(block.log_likelihood.size, block.tempering < 1)
    return _mutate(problem, block, block.under_way, block.group, arrival, int(block.group.mutation), pause)


def _mutate(
    problem: Problem,
    block: TemperedBlock,
    stage: UnderWay,
    group: Group,
    arrival: Arrival,
    done: int,
    pause: Pause,
) -> TemperedBlock:
    """Mutate until the stage is done, which closes it with a record, or until `pause` asks to stop."""
    kernel = block.outset.kernel
    keys = rows(block.outset.root, Purpose.MUTATION, block.stage, block.islands)
    dials = groups.dials(problem, kernel.kernel, stage.mutations, stage.threshold or 0.0)
    tempering = stage.tempering.astype(problem.dtype)
    group, seen = mutation.mutate(
        problem, kernel, group, arrival, tempering, keys, dials, done, stage.mutations, pause
    )
    if seen is not None:
        return _close(problem, block, stage, group, seen)
    return dataclasses.replace(block, group=group, under_way=stage)


def _close(problem: Problem, block: TemperedBlock, stage: UnderWay, group: Group, seen: Seen) -> TemperedBlock:
    kernel, tempering = block.outset.kernel, stage.tempering
    moving = block.tempering < 1
    log_likelihood, moved, epochs = seen.log_likelihood, seen.moved, seen.evaluations
    nonfinite = seen.nonfinite.sum(axis=1)
    record = stage.record | {
        "tempering": tempering,
        "acceptance": blocks.mean_acceptance(seen.acceptance, moved),
        "step_size": seen.step_size,
        "mutations": moved,
        "epochs": epochs.max(axis=1),
        "capped": seen.capped,
        "nonfinite": nonfinite,
    }
    if seen.memory is not None:
        record["correlation"] = seen.memory
    particles = log_likelihood.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):  # dead particles, or all alike
        mean = log_likelihood.sum(axis=1) / particles
        record["log_likelihood"] = np.where(np.isfinite(mean), mean, np.nan)
        if "rise" in record:
            spread = np.sqrt(np.square(log_likelihood - mean[:, None]).sum(axis=1) / particles)
            record["rise"] = np.where(spread > 0, (mean - record["rise"]) / spread, np.nan)
    if not moving.all():
        record = {name: np.where(moving, values, np.nan) for name, values in record.items()}
    record = {name: np.asarray(values, np.float64) for name, values in record.items()}
    variances = block.variances
    if kernel.kernel.scale_from_population and moving[block.first_alive]:
        variances = (*variances, devices.fetch(group.tuning.variances)[block.first_alive])
    seen_now = log_likelihood if moving.all() else log_likelihood[moving]
    rounding = blocks.rounding(problem, seen_now, float(tempering[moving].max()))
    changes: dict[str, Any] = stage.changes
    return dataclasses.replace(
        block,
        group=group,
        log_likelihood=log_likelihood,
        tempering=tempering,
        epochs=block.epochs + epochs,
        nonfinite=block.nonfinite + nonfinite,
        variances=variances,
        records=(*block.records, record),
        rounding=max(block.rounding, rounding),
        under_way=None,
        **changes,
    )


def result(problem: Problem, block: TemperedBlock) -> BlockResult:
    """The block on the host, its draws collected and kept as asked."""
    islands, particles = len(block.islands), block.outset.kernel.particles
    log_weights = np.where(np.isfinite(block.log_likelihood), block.log_weights, -np.inf)
    positions, log_prior = devices.fetch((block.states.position, block.states.log_prior))
    positions = positions.reshape(islands, particles, -1)
    within = weights.normalise(log_weights)
    sums = {
        name: expectations.island_sums(problem.layout, function, positions, within)
        for name, function in block.outset.output.collect.items()
    }
    return BlockResult(
        positions=None if block.outset.output.keep == "none" else positions,
        log_prior=log_prior.astype(np.float64).reshape(islands, particles),
        log_likelihood=block.log_likelihood,
        log_weights=log_weights,
        log_evidence=block.log_evidence,
        epochs=block.epochs,
        nonfinite=block.nonfinite,
        dead=block.dead,
        records=list(block.records),
        sums=sums,
        sum_weights=within.sum(axis=1),
        plan=_plan(problem, block),
        rounding=block.rounding,
        warnings=() if block.obituary is None else (f"{block.obituary}. Such islands count with evidence 0.",),
    )


def _planned_tuning(problem: Problem, block: TemperedBlock, plan: Plan) -> Tuning:
    tuning = block.outset.kernel.kernel.tuning(problem)
    tuning = tuning._replace(step_size=np.asarray(plan.step_sizes[block.stage], problem.dtype))
    if plan.variances is not None:
        tuning = tuning._replace(variances=np.asarray(plan.variances[block.stage], problem.dtype))
    return groups.broadcast_tuning(tuning, len(block.islands))


def _plan(problem: Problem, block: TemperedBlock) -> Plan | None:
    if block.all_dead:
        return None
    first = block.first_alive
    column = lambda name: np.array([record[name][first] for record in block.records])
    stages = int(np.isfinite(column("tempering")).sum())
    return Plan(
        kernel=type(block.outset.kernel.kernel).__name__,
        dimension=problem.dimension,
        schedule=column("tempering")[:stages],
        step_sizes=column("step_size")[:stages],
        mutations=column("mutations")[:stages].astype(np.int64),
        variances=np.stack(block.variances) if block.variances else None,
    )
