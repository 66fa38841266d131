"""`plan`: what a run will take on this machine, or on many like it, before it is begun."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isles import cache, checks
from isles.definition import check_memory, default_islands_per_block
from isles.engines.blocks import CHECKPOINT_SECONDS
from isles.engines.local import usable_cpus
from isles.planning.calibration import Calibration, Order, calibrate
from isles.planning.simulation import simulate
from isles.problem import Problem
from isles.samplers import AIS, MCMC, MPMCMC, SMC, starts
from isles.samplers.block import Output, Sampler

CALIBRATION_SECONDS = 2.0
PILOT_SECONDS = 20.0
RETRIES = 2  # of `isles.sample`
GAIN = 1.05  # a time that much above the best is as good


@dataclass(frozen=True)
class Row:
    """A run on a number of workers."""

    workers: int
    seconds: float  # the median
    low: float  # 10 %
    high: float  # 90 %
    efficiency: float  # time of one worker / (workers × time)
    memory_bytes: int  # of all workers


@dataclass(frozen=True)
class Forecast:
    """What a run will take. Times are estimates; `print` shows them, `as_dict` gives them for JSON."""

    workers: int
    islands: int
    islands_per_block: int
    blocks: int
    stages: int | None  # None for chains
    parallel_epochs: int  # what one particle waits for
    total_epochs: int  # of all particles
    epochs_per_second: float  # of one worker
    block_seconds: float
    start_seconds: float  # of a worker
    memory_bytes: int  # of one worker
    failures_per_hour: float
    checkpoint_seconds: float  # of work that a failure can cost
    seconds: float  # the median
    seconds_low: float  # 10 %
    seconds_high: float  # 90 %
    failures: float  # of workers, in the mean
    lost_epochs: int  # done twice because of failures, in the mean
    chance_of_giving_up: float  # that a block is lost more often than `retries` allows
    enough_workers: int  # more of them hardly help
    table: tuple[Row, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Numbers, text, lists and dicts only."""
        facts = dataclasses.asdict(self)
        return facts | {"table": list(facts["table"]), "notes": list(self.notes)}

    def __str__(self) -> str:
        stages = "" if self.stages is None else f" of about {self.stages} stages"
        lines = [
            f"{self.islands} islands in {self.blocks} blocks{stages}",
            f"epochs: {self.parallel_epochs:,} parallel, {self.total_epochs:,} in total, "
            f"{self.epochs_per_second:,.0f} a second on one worker",
            f"a block takes {show_seconds(self.block_seconds)}, a worker {show_bytes(self.memory_bytes)} and "
            f"{show_seconds(self.start_seconds)} to start",
            f"{self.workers} workers: {show_seconds(self.seconds)} "
            f"({show_seconds(self.seconds_low)} to {show_seconds(self.seconds_high)})",
        ]
        if self.failures_per_hour:
            lines.append(
                f"with {self.failures_per_hour:g} failures an hour of each worker: {self.failures:.1f} in the "
                f"mean, {self.lost_epochs:,} epochs done twice, {self.chance_of_giving_up:.0%} chance that a "
                f"block is given up"
            )
        lines += ["", "workers       time    10 % to 90 %        efficiency    memory"]
        for row in self.table:
            span = f"{show_seconds(row.low)} to {show_seconds(row.high)}"
            lines.append(
                f"{row.workers:>7}  {show_seconds(row.seconds):>9}    {span:<18}  {row.efficiency:>10.0%}  "
                f"{show_bytes(row.memory_bytes):>8}"
            )
        return "\n".join([*lines, "", *self.notes])


def plan(
    problem: Problem,
    sampler: Sampler,
    *,
    islands: int = 1,
    workers: int | None = None,
    threads: int = 1,
    islands_per_block: int | None = None,
    chunk_rows: int | None = None,
    stages: int | None = None,
    failures_per_hour: float = 0.0,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    retries: int = RETRIES,
    repeats: int = 200,
    seed: int = 0,
    seconds: float = CALIBRATION_SECONDS,
    pilot_seconds: float = PILOT_SECONDS,
) -> Forecast:
    """Forecast time, memory and cost of `isles.sample` with worker processes, from a few seconds of measuring.

    Args:
        problem: what will be sampled.
        sampler: what each island will do.
        islands: P.
        workers: blocks at a time; by default, as many as this machine has CPUs for. More stand for other machines
            like this one.
        threads: XLA threads of a worker.
        islands_per_block: see `sample`.
        chunk_rows: see `sample`.
        stages: of SMC with adaptive tempering, where known; else found by a small pilot run.
        failures_per_hour: of each worker, as on machines that may be taken away.
        checkpoint_seconds: see `sample`.
        retries: see `sample`.
        repeats: simulated runs, where workers fail.
        seed: of the simulated failures.
        seconds: to measure an evaluation's speed for.
        pilot_seconds: after which a pilot run is cut short, and its end extrapolated.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={problem!r} must be an isles.Problem; build one with isles.Problem(prior, ...)")
    if not isinstance(sampler, (SMC, AIS, MCMC, MPMCMC)):
        raise TypeError(
            f"sampler={sampler!r} must be isles.SMC, AIS, MCMC or MPMCMC, whose cost is known beforehand"
        )
    if isinstance(sampler, SMC) and sampler.waste_free:
        raise ValueError("plan counts the cost of each particle alike; plan without waste_free=True for a bound")
    islands, threads = checks.count("islands", islands), checks.count("threads", threads)
    if workers is None:
        workers = max(usable_cpus() // threads, 1)
    checks.count("workers", workers)
    checks.count("retries", retries, minimum=0)
    if not (isinstance(failures_per_hour, (int, float)) and 0 <= failures_per_hour < math.inf):
        raise ValueError(f"failures_per_hour={failures_per_hour!r} must be a number that is not negative")
    for name, value in (("checkpoint_seconds", checkpoint_seconds), ("seconds", seconds)):
        checks.positive(name, value)
    checks.positive("pilot_seconds", pilot_seconds)
    if stages is not None:
        checks.count("stages", stages)
    cache.keep_compiled()
    if chunk_rows is not None:
        problem = problem.with_chunk_rows(chunk_rows)
    sampler.check(problem, Output({}, "none"))
    check_memory(problem, sampler)
    if islands_per_block is None:
        islands_per_block = default_islands_per_block(problem, sampler, islands)
    size = min(checks.count("islands_per_block", islands_per_block), islands)
    problem = problem.for_particles(size * sampler.width)
    pilot = stages is None and isinstance(sampler, SMC) and sampler.schedule is None and sampler.plan is None
    # mutations are measured; how chains find their starts is counted as so many epochs
    moving = dataclasses.replace(sampler, start="prior") if isinstance(sampler, MCMC) else sampler
    measured = calibrate(Order(problem, moving, size, pilot, seconds, pilot_seconds), threads)
    return forecast(
        sampler, measured,
        islands=islands, islands_per_block=size, workers=workers, threads=threads, stages=stages,
        failures_per_hour=failures_per_hour, checkpoint_seconds=checkpoint_seconds, retries=retries,
        repeats=repeats, seed=seed,
    )  # fmt: skip


def forecast(
    sampler: SMC | AIS | MCMC | MPMCMC,
    measured: Calibration,
    *,
    islands: int,
    islands_per_block: int,
    workers: int,
    threads: int = 1,
    stages: int | None = None,
    failures_per_hour: float = 0.0,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    retries: int = RETRIES,
    repeats: int = 200,
    seed: int = 0,
) -> Forecast:
    """The forecast that follows from what was measured: arithmetic, and simulated failures."""
    stages, mutations, notes = count_mutations(sampler, stages, measured)
    start = starts.epochs(sampler) if isinstance(sampler, MCMC) else 0
    parallel = round(1 + mutations * measured.epochs_per_mutation) + start
    if start and isinstance(sampler, MCMC) and not sampler.kernel.uses_gradient:
        notes += (
            "Finding starts takes gradients, and is counted as if they cost no more than the kernel's epochs.",
        )
    if isinstance(sampler, MCMC) and sampler.kernel.learns_metric:
        notes += (
            "Looks at the metric in burn-in, twenty at most, are not counted: each takes as many epochs as a row "
            "of data has numbers that the network predicts.",
        )
    first = 1 if isinstance(sampler, MPMCMC) else sampler.width  # prior draws of an island
    sizes = [min(islands_per_block, islands - first) for first in range(0, islands, islands_per_block)]
    # a last block that is smaller is counted as if each particle cost the same
    durations = [size * sampler.width * parallel / measured.epochs_per_second for size in sizes]
    stage_seconds = durations[0] / (stages or math.inf)
    interval = min(checkpoint_seconds, stage_seconds) if stages else checkpoint_seconds
    play = lambda count: simulate(
        durations, count,
        failures_per_hour=failures_per_hour, checkpoint_seconds=interval, start_seconds=measured.start_seconds,
        repeats=repeats, seed=seed,
    )  # fmt: skip
    counts = sorted({1 << k for k in range(len(sizes).bit_length())} | {workers, len(sizes)})
    played = {count: play(count) for count in counts}
    alone = played[1].quantiles()[0]
    rows = []
    for count, runs in played.items():
        median, low, high = runs.quantiles()
        rows.append(Row(count, median, low, high, alone / (count * median), count * measured.memory_bytes))
    chosen = played[workers]
    median, low, high = chosen.quantiles()
    enough = find_enough(durations, measured.start_seconds)
    notes += describe_limits(enough, durations, measured.start_seconds, islands_per_block, workers, threads)
    return Forecast(
        workers=workers,
        islands=islands,
        islands_per_block=islands_per_block,
        blocks=len(sizes),
        stages=stages,
        parallel_epochs=parallel,
        total_epochs=((parallel - 1) * sampler.width + first) * islands,
        epochs_per_second=measured.epochs_per_second,
        block_seconds=durations[0],
        start_seconds=measured.start_seconds,
        memory_bytes=measured.memory_bytes,
        failures_per_hour=failures_per_hour,
        checkpoint_seconds=interval,
        seconds=median,
        seconds_low=low,
        seconds_high=high,
        failures=float(chosen.failures.mean()),
        lost_epochs=round(float(chosen.lost_seconds.mean()) * measured.epochs_per_second),
        chance_of_giving_up=float((chosen.most_failures > retries).mean()),
        enough_workers=enough,
        table=tuple(rows),
        notes=notes,
    )


def count_mutations(
    sampler: SMC | AIS | MCMC | MPMCMC, stages: int | None, measured: Calibration
) -> tuple[int | None, float, tuple[str, ...]]:
    """Stages, mutations in all of them, and what is uncertain about it."""
    if isinstance(sampler, MCMC | MPMCMC):
        if stages is not None:
            raise ValueError(f"stages={stages} is for SMC; chains have none: leave it out")
        steps = sampler.steps if isinstance(sampler, MPMCMC) else (sampler.draws - 1) * sampler.thin
        return None, sampler.burn_in + steps, ()
    notes: tuple[str, ...] = ()
    fixed = sampler.plan.schedule if sampler.plan is not None else sampler.schedule
    if fixed is not None:
        if stages is not None and stages != len(fixed):
            raise ValueError(f"stages={stages}, but the sampler's schedule has {len(fixed)}; leave stages out")
        stages = len(fixed)
    elif stages is None:
        stages = measured.stages
        assert stages is not None
        how = "a small pilot run" if measured.pilot_finished else "the beginning of a small pilot run"
        notes += (f"The number of stages is that of {how}; expect a quarter more or less.",)
    if sampler.plan is not None:
        return stages, float(sampler.plan.mutations.sum()), notes
    if isinstance(sampler.mutations, int):
        return stages, stages * sampler.mutations, notes
    rule = sampler.mutations
    notes += (f"Stages are counted with all {rule.max} mutations that {type(rule).__name__} allows.",)
    return stages, stages * sampler.mutations.max, notes


def find_enough(durations: Sequence[float], start_seconds: float) -> int:
    """The smallest number of workers whose time, without failures, is about that of a worker a block."""
    best = start_seconds + max(durations)
    low, high = 1, len(durations)
    while low < high:  # more workers are never slower
        middle = (low + high) // 2
        time = simulate(durations, middle, start_seconds=start_seconds).seconds[0]
        low, high = (low, middle) if time <= GAIN * best else (middle + 1, high)
    return low


def describe_limits(
    enough: int,
    durations: Sequence[float],
    start_seconds: float,
    islands_per_block: int,
    workers: int,
    threads: int,
) -> tuple[str, ...]:
    """Where more workers stop helping, and why."""
    blocks = len(durations)
    more = "More than one worker hardly helps" if enough == 1 else f"More than {enough} workers hardly help"
    if enough < blocks:
        reason = (
            f"one takes {show_seconds(start_seconds)} to start, the longest block {show_seconds(max(durations))}."
        )
    else:
        reason = "there is one block." if blocks == 1 else f"there are {blocks} blocks."
        if islands_per_block > 1:
            reason += f" A smaller islands_per_block={islands_per_block} makes more blocks."
    limits: tuple[str, ...] = (f"{more}: {reason}",)
    room = max(usable_cpus() // threads, 1)
    if workers > room:
        limits += (f"This machine has CPUs for {room}; others like it are assumed.",)
    return limits


def show_seconds(seconds: float) -> str:
    """A time, short.

    >>> show_seconds(3.21), show_seconds(150), show_seconds(7200), show_seconds(400_000)
    ('3.2 s', '2.5 min', '2.0 h', '4.6 d')
    """
    for unit, size, limit in (("s", 1.0, 100.0), ("min", 60.0, 6000.0), ("h", 3600.0, 172_800.0)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"


def show_bytes(size: float) -> str:
    """An amount of memory, short.

    >>> show_bytes(3 << 20), show_bytes(5 << 30)
    ('3 MiB', '5.0 GiB')
    """
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"
