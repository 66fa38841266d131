"""What experiments would cost on this machine: expected particle-epochs over a rate measured for each problem.

A few chains side by side use a core worse than many particles, and have a rate of their own. Where the data of an
experiment are not at hand, there is nothing to measure, and its hours are not known. Rates are kept in isles'
cache, for the same version of isles on the same kind of machine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import isles
from isles import cache, files
from isles.cli.settings import build_sampler
from isles.definition import import_problem
from isles.engines.local import usable_cpus
from isles.planning.calibration import Order, calibrate
from isles.reproduce.experiments import Experiment, Method
from isles.reproduce.islands import is_done

SECONDS = 2.0  # of measuring for each problem
FEW = 8  # rows of a block, below which they go at another rate
Rate = Callable[[Method], float | None]


class Cost(NamedTuple):
    """Of one experiment."""

    experiment: str
    title: str
    done: int  # islands of the standard budget
    islands: int  # of the standard budget
    epochs_per_second: float | None = None  # of one core; None, as all below, if the data are not at hand
    hours_left: float | None = None  # of the standard budget, on all cores of this machine
    standard_hours: float | None = None  # from nothing
    paper_hours: float | None = None


def forecast(experiment: Experiment, rate: Rate) -> Cost:
    """What an experiment costs where its methods go at a `rate`."""
    places = [(piece.method, place) for piece in experiment.queue("standard") for place in piece.places]
    done = [(method, place) for method, place in places if is_done(experiment, method, place)]
    known = Cost(experiment.name, experiment.title, len(done), len(places))
    rates: dict[str, float] = {}
    for method in experiment.methods:
        if kind(method) not in rates:
            found = rate(method)
            if found is None:
                return known
            rates[kind(method)] = found
    left = {
        method.name: 1 - sum(m is method for m, _ in done) / max(sum(m is method for m, _ in places), 1)
        for method in experiment.methods
    }

    def hours(budget: str, shares: Mapping[str, float]) -> float:
        seconds = (
            method.particle_epochs(budget) * shares.get(method.name, 1.0) / rates[kind(method)]
            for method in experiment.methods
        )
        return sum(seconds) / usable_cpus() / 3600

    return known._replace(
        epochs_per_second=min(rates.values()),
        standard_hours=hours("standard", {}),
        hours_left=hours("standard", left),
        paper_hours=hours("paper", {}),
    )


def kind(method: Method) -> str:
    """What goes at one rate."""
    few = method.shard_width * method.together < FEW
    return f"{method.problem} in few chains" if few else method.problem


def remembered(say: Callable[[str], None]) -> Rate:
    """Rates that are measured once for each problem, and kept; None where the data are not at hand."""
    path = files.cache_folder() / "rates" / f"{cache.machine()}-{isles.__version__}.json"
    kept = _read(path)
    missing = set[str]()
    if kept:
        say(f"rates measured before are in {path}; remove it to measure anew")

    def rate(method: Method) -> float | None:
        asked = kind(method)
        if method.problem in missing or asked in kept:
            return kept.get(asked)
        say(f"measuring {asked} ...")
        try:
            kept[asked] = measure(method)
        except FileNotFoundError:
            missing.add(method.problem)
            return None
        with contextlib.suppress(OSError):  # a read-only home costs time, not answers
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.whole(path) as file:
                file.write(json.dumps(kept, indent=1).encode())
        return kept[asked]

    return rate


def _read(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_text())
        return {str(problem): float(rate) for problem, rate in found.items() if rate > 0}
    except (OSError, ValueError, TypeError, AttributeError):  # none yet, or no longer readable
        return {}


def measure(method: Method) -> float:
    """Particle-epochs a second of one worker with one thread."""
    sampler = build_sampler(method.sampling)
    problem = import_problem(method.problem).for_particles(sampler.width * method.together)
    order = Order(problem, sampler, islands=method.together, pilot=False, seconds=SECONDS, pilot_seconds=0.0)
    return calibrate(order, threads=1).epochs_per_second
