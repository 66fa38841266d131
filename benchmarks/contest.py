"""Libraries on one problem: timed in turn, their answers compared, the ratios reported."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import jax
import numpy as np

from benchmarks import harness

jax.config.update("jax_enable_compilation_cache", False)  # seconds to compile are measured
LIMIT = 5.0  # standard errors that answers may differ by

compiled = [0]  # programs that JAX has compiled in this process
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: _count(name))


@dataclass
class Answer:
    """What one run said, and what it did."""

    estimates: np.ndarray[Any, Any]  # (replicates, quantities), replicates independent
    units: dict[str, float]  # of work: what seconds are divided by
    seconds: float | None = None  # without the start, for a library that starts anew in every run


@dataclass
class Contender:
    """One library on one problem; every call is a new replicate with its own seed."""

    name: str
    run: Callable[[int], Any]  # of a seed; waits for its result
    read: Callable[[Any], Answer]  # never timed
    results: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    compiled: list[int] = field(default_factory=list)  # programs, in each run

    def __call__(self) -> None:
        """One run, timed and kept."""
        before, start = compiled[0], time.perf_counter()
        self.results.append(self.run(len(self.results)))
        self.seconds.append(time.perf_counter() - start)
        self.compiled.append(compiled[0] - before)


def contest(
    report: harness.Report,
    problem: str,
    ours: Contender,
    peers: list[Contender],
    *,
    per: tuple[str, ...],
    truth: np.ndarray[Any, Any] | None = None,
    scale: np.ndarray[Any, Any] | None = None,
    rounds: int = harness.ROUNDS,
    **raw: Any,
) -> None:
    """Time all contenders in turn and report each peer's seconds over ours, per unit of work.

    Answers must agree: every quantity within `LIMIT` combined standard errors, and with `truth` (q,), NaN where
    unknown. With `scale` (q,), posterior standard deviations (0 leaves a quantity out), "effective sample" is
    one more unit: the draws that would have an estimate's variance over replicates if they were independent.
    """
    contenders = [ours, *peers]
    jax.clear_caches()  # so that the first call of each compiles
    walls = harness.alternate({one.name: one for one in contenders}, rounds)
    for one in contenders:
        if any(one.compiled[-rounds:]):
            raise AssertionError(f"{one.name} compiled {one.compiled} programs: its seconds are not its sampling")
    answers = {one.name: [one.read(result) for result in one.results] for one in contenders}
    first = {one.name: one.seconds[0] for one in contenders}
    estimates = {name: np.concatenate([answer.estimates for answer in given]) for name, given in answers.items()}
    seconds, units, start = {}, {}, {}
    for name, given in answers.items():
        timed = given[-rounds:]
        pairs = zip(timed, walls[name], strict=True)
        seconds[name] = [wall if answer.seconds is None else answer.seconds for answer, wall in pairs]
        start[name] = first[name] - median(seconds[name])
        units[name] = {unit: [answer.units[unit] for answer in timed] for unit in timed[0].units}
        if scale is not None:
            known = scale > 0
            error = estimates[name][:, known].var(axis=0, ddof=1) / scale[known] ** 2
            units[name]["effective sample"] = [1 / error.mean()] * rounds
    if truth is not None:
        exact = np.stack([truth, truth])
        for name in estimates:
            _check(name, "the truth", estimates[name], exact)
    for peer in peers:
        what = f"{peer.name}, {problem}"
        rival = "on isles'" not in peer.name  # with our likelihood, it is there to tell samplers from layers
        apart = _check(peer.name, ours.name, estimates[peer.name], estimates[ours.name])
        for unit in per:
            rates = [np.divide(seconds[name], units[name][unit]).tolist() for name in (peer.name, ours.name)]
            ratio = harness.ratio(*rates)
            report.row(
                what, f"seconds per {unit}, over isles'", harness.shown(ratio),
                "> 1" if rival else "", ratio["median"] > 1 if rival else None,
                ratio=ratio, seconds_per_unit=median(rates[0]), isles_seconds_per_unit=median(rates[1]),
                units=median(units[peer.name][unit]), isles_units=median(units[ours.name][unit]),
                compile_seconds=start[peer.name], isles_compile_seconds=start[ours.name],
                standard_errors_apart=apart, **raw,
            )  # fmt: skip
        report.row(what, "answers apart, in standard errors", f"{apart:.2g}", f"< {LIMIT:g}", apart < LIMIT)


def _count(event: str) -> None:
    compiled[0] += event.endswith("backend_compile_duration")


def _check(name: str, other: str, one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> float:
    """The largest difference of two sets of replicates in combined standard errors; NaN means unknown."""
    errors = [replicates.var(axis=0, ddof=1) / len(replicates) for replicates in (one, two)]
    apart = float(np.nanmax(np.abs(one.mean(axis=0) - two.mean(axis=0)) / np.sqrt(sum(errors))))
    if not apart < LIMIT:
        raise AssertionError(f"{name} and {other} differ by {apart:.3g} standard errors")
    return apart
