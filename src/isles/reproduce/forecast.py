"""What experiments would cost on this machine: expected particle-epochs over a rate measured for each problem."""

from __future__ import annotations

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
    epochs_per_second: float  # of one core
    standard_hours: float  # from nothing, on all cores of this machine
    hours_left: float
    paper_hours: float


def forecast(experiment: Experiment) -> Cost:
    """Measures for a few seconds."""
    rates = {method.problem: 0.0 for method in experiment.methods}
    for problem in rates:
        rates[problem] = measure(next(m for m in experiment.methods if m.problem == problem and m.width > 1))
    cores = usable_cpus()
    hours = lambda budget, left=None: (
        sum(
            method.particle_epochs(budget) * (left or {}).get(method.name, 1.0) / rates[method.problem]
            for method in experiment.methods
        )
        / cores
        / 3600
    )
    places = [(piece.method, place) for piece in experiment.queue("standard") for place in piece.places]
    done = [(method, place) for method, place in places if is_done(experiment, method, place)]
    left = {
        method.name: 1 - sum(m is method for m, _ in done) / max(sum(m is method for m, _ in places), 1)
        for method in experiment.methods
    }
    return Cost(
        experiment.name, experiment.title, len(done), len(places), min(rates.values()),
        hours("standard"), hours("standard", left), hours("paper"),
    )  # fmt: skip


def measure(method: Method) -> float:
    """Particle-epochs a second of one worker with one thread."""
    sampler = build_sampler(method.sampling)
    problem = import_problem(method.problem).for_particles(sampler.width)
    order = Order(problem, sampler, islands=1, pilot=False, seconds=SECONDS, pilot_seconds=0.0)
    return calibrate(order, threads=1).epochs_per_second
