"""What experiments would cost on this machine: expected particle-epochs over a rate measured for each problem.

Where the data of an experiment are not at hand, there is nothing to measure, and its hours are not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from isles.cli.settings import build_sampler
from isles.definition import import_problem
from isles.engines.local import usable_cpus
from isles.planning.calibration import Order, calibrate
from isles.reproduce.experiments import Experiment, Method
from isles.reproduce.work import is_done

SECONDS = 2.0  # of measuring for each problem


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


def forecast(experiment: Experiment) -> Cost:
    """Measures for a few seconds."""
    places = [(piece.method, place) for piece in experiment.queue("standard") for place in piece.places]
    done = [(method, place) for method, place in places if is_done(experiment, method, place)]
    known = Cost(experiment.name, experiment.title, len(done), len(places))
    try:
        rates = {
            problem: measure(next(m for m in experiment.methods if m.problem == problem and m.width > 1))
            for problem in dict.fromkeys(method.problem for method in experiment.methods)
        }
    except FileNotFoundError:
        return known
    left = {
        method.name: 1 - sum(m is method for m, _ in done) / max(sum(m is method for m, _ in places), 1)
        for method in experiment.methods
    }

    def hours(budget: str, shares: Mapping[str, float]) -> float:
        seconds = (
            method.particle_epochs(budget) * shares.get(method.name, 1.0) / rates[method.problem]
            for method in experiment.methods
        )
        return sum(seconds) / usable_cpus() / 3600

    return known._replace(
        epochs_per_second=min(rates.values()),
        standard_hours=hours("standard", {}),
        hours_left=hours("standard", left),
        paper_hours=hours("paper", {}),
    )


def measure(method: Method) -> float:
    """Particle-epochs a second of one worker with one thread."""
    sampler = build_sampler(method.sampling)
    problem = import_problem(method.problem).for_particles(sampler.width)
    order = Order(problem, sampler, islands=1, pilot=False, seconds=SECONDS, pilot_seconds=0.0)
    return calibrate(order, threads=1).epochs_per_second
