"""Settings of the way from the prior to the posterior that SMC and AIS share, and whether they can be followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isles import checks
from isles.adapt import Decorrelate
from isles.kernels.base import Kernel
from isles.problem import Problem
from isles.samplers.block import Plan


def check_schedule(name: str, schedule: Sequence[float]) -> np.ndarray[Any, Any]:
    """A schedule as temperings λ_1 < ... < λ_J = 1; a leading 0 is understood."""
    values = np.asarray(schedule, np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"{name} must be a list of temperings, got shape {values.shape}")
    if values[0] == 0:
        values = values[1:]
    if (
        not values.size
        or not np.isfinite(values).all()
        or values[-1] != 1
        or values[0] <= 0
        or (np.diff(values.astype(np.float32)) <= 0).any()
    ):
        shown = [f"{value:g}" for value in values]
        shown = shown if len(shown) <= 8 else [*shown[:4], "...", shown[-1]]
        raise ValueError(
            f"{name}=[{', '.join(shown)}] must rise from above 0 to exactly 1; sort it, and let it end with 1"
        )
    return values


def check_mutations(mutations: object) -> None:
    """A fixed number of mutations, or a rule."""
    if not isinstance(mutations, Decorrelate):
        checks.count("mutations", mutations)


def check_plan(problem: Problem, kernel: Kernel, plan: Plan | None) -> None:
    """A frozen sampler must meet the kind of kernel and the number of parameters it was frozen on."""
    if plan is None:
        return
    if plan.dimension != problem.dimension:
        raise ValueError(
            f"the sampler was frozen on a problem of {plan.dimension} parameters, "
            f"this one has {problem.dimension}; freeze it on a pilot run of this problem"
        )
    if plan.kernel != type(kernel).__name__:
        raise ValueError(
            f"the sampler was frozen on a pilot run with {plan.kernel}, its kernel is {type(kernel).__name__}; "
            f"freeze it on a pilot run with the same kernel"
        )
