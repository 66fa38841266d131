"""`simulate`: blocks on workers that fail at random, played through many times. Nothing is measured here."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isles import checks

HOUR = 3600.0
HOPELESS = 5.0  # mean lives between two checkpoints: e⁵ attempts


class Attempt(NamedTuple):
    """A block on a worker, until it is finished or the worker fails."""

    block: int
    worker: int
    begun: float
    ended: float
    work_before: float  # seconds of the block's work that a checkpoint held
    work_after: float  # what a checkpoint holds at the end
    lost: float  # seconds of work that have to be done again
    finished: bool


@dataclass(frozen=True)
class Simulation:
    """Runs that were played through."""

    seconds: np.ndarray[Any, Any]  # (repeats,) from the start to the end of the last block
    failures: np.ndarray[Any, Any]  # (repeats,) of workers that had a block
    lost_seconds: np.ndarray[Any, Any]  # (repeats,) work of all workers that was done again
    most_failures: np.ndarray[Any, Any]  # (repeats,) of one block: compare with `retries`

    def quantiles(self) -> tuple[float, float, float]:
        """Seconds: the median, and the range from 10 to 90 %."""
        low, median, high = np.quantile(self.seconds, [0.1, 0.5, 0.9])
        return float(median), float(low), float(high)


def simulate(
    durations: Sequence[float],
    workers: int,
    *,
    failures_per_hour: float = 0.0,
    checkpoint_seconds: float = math.inf,
    start_seconds: float = 0.0,
    repeats: int = 200,
    seed: int = 0,
) -> Simulation:
    """Play a run through: workers take blocks in order, and go on from a block's last checkpoint after a failure.

    Args:
        durations: seconds of work of each block.
        workers: blocks at a time.
        failures_per_hour: of one worker that has a block; exponential times between them.
        checkpoint_seconds: work between a block's checkpoints.
        start_seconds: that a worker needs before it can work, at first and after each failure; it may fail then.
        repeats: how often.
        seed: of the random failures.

    >>> simulate([10.0] * 5, workers=2).seconds.tolist()  # two rounds of two, and one more
    [30.0]
    """
    checks.count("workers", workers)
    checks.count("repeats", repeats)
    if not durations:
        raise ValueError("durations is empty; give the seconds of at least one block")
    rate = failures_per_hour / HOUR
    longest = min(checkpoint_seconds, max(durations)) + start_seconds
    if rate * longest > HOPELESS:
        raise ValueError(
            f"failures_per_hour={failures_per_hour} lets a worker live {1 / rate:.3g} s in the mean, too few for "
            f"the {longest:.3g} s from its start to a checkpoint; checkpoint more often, or find better machines"
        )
    rng = np.random.default_rng(seed)
    lives = (life for _ in itertools.count() for life in rng.exponential(1 / rate, 1024)) if rate else None
    played = [
        play(durations, workers, lives or itertools.repeat(math.inf), checkpoint_seconds, start_seconds)
        for _ in range(repeats if rate else 1)  # all the same without failures
    ]
    deaths = [np.bincount([a.block for a in run if not a.finished], minlength=len(durations)) for run in played]
    return Simulation(
        seconds=np.array([max(attempt.ended for attempt in run) for run in played]),
        failures=np.array([int(count.sum()) for count in deaths]),
        lost_seconds=np.array([sum(attempt.lost for attempt in run) for run in played]),
        most_failures=np.array([int(count.max()) for count in deaths]),
    )


def play(
    durations: Sequence[float],
    workers: int,
    lives: Iterator[float],
    checkpoint_seconds: float = math.inf,
    start_seconds: float = 0.0,
) -> list[Attempt]:
    """One run, attempt by attempt; each is given the next of `lives`, the seconds until its worker fails.

    As with the real engines, a block that was lost is the next one to be taken, by a worker that waits if there is
    one, else by the worker that comes in place of the lost one.
    """
    todo = deque(range(len(durations)))
    kept = [0.0] * len(durations)
    ready = [
        (True, worker) for worker in range(min(workers, len(durations)))
    ]  # whether it has to start; warm first
    ends: list[tuple[float, int, Attempt]] = []
    attempts: list[Attempt] = []
    now = 0.0
    while todo or ends:
        while todo and ready:
            is_cold, worker = heapq.heappop(ready)
            block = todo.popleft()
            setup = start_seconds if is_cold else 0.0
            attempt = _attempt(
                block, worker, now, setup, kept[block], durations[block], next(lives), checkpoint_seconds
            )
            heapq.heappush(ends, (attempt.ended, len(attempts), attempt))
            attempts.append(attempt)
        now, _, attempt = heapq.heappop(ends)
        kept[attempt.block] = attempt.work_after
        if not attempt.finished:
            todo.appendleft(attempt.block)
        heapq.heappush(ready, (not attempt.finished, attempt.worker))
    return attempts


def _attempt(
    block: int, worker: int, now: float, setup: float, before: float, duration: float, life: float, interval: float
) -> Attempt:
    left = duration - before
    if life >= setup + left:
        return Attempt(block, worker, now, now + setup + left, before, duration, 0.0, finished=True)
    reached = before + max(life - setup, 0.0)
    after = before if math.isinf(interval) else max(before, math.floor(reached / interval + 1e-9) * interval)
    after = min(after, reached)
    return Attempt(block, worker, now, now + life, before, after, reached - after, finished=False)
