"""Random-walk Metropolis-Hastings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import checks, threefry
from isles.kernels import base
from isles.kernels.base import Info, Kernel, Tuning
from isles.problem import Problem, State


@dataclass(frozen=True)
class MH(Kernel):
    r"""Random-walk Metropolis-Hastings: θ' = θ + ε V^{1/2} ξ, ξ ~ N(0, I).

    Accepted with probability min(1, π_λ(θ')/π_λ(θ)): method.md (16). Cost: one epoch a step, no gradient.

    Args:
        step_size: ε, fixed; adapted to `target_acceptance` when None, starting at 2.38/√d (times the
            smallest prior std for `scale="identity"`).
        target_acceptance: mean acceptance probability that adaptation aims at.
        scale: V: `"population"`, the variances of the particles (prior variances at first), or `"identity"`.
    """

    step_size: float | None = None
    target_acceptance: float = 0.234
    scale: str = "population"

    def __post_init__(self) -> None:
        checks.choice("scale", self.scale, ["population", "identity"])
        base.check_settings(self)

    def step(
        self, problem: Problem, key: Array, state: State, tempering: Array, tuning: Tuning
    ) -> tuple[State, Info]:
        """One symmetric proposal."""
        key_noise, key_accept = threefry.split(key)
        noise = threefry.normal(key_noise, state.position.size, state.position.dtype)
        proposal = state.position + tuning.step_size * jnp.sqrt(tuning.variances) * noise
        new = problem.evaluate(proposal, gradient=False)
        state, acceptance = base.accept(key_accept, problem.log_ratio(new, state, tempering), new, state)
        return state, Info(acceptance, nonfinite=new.nonfinite.astype(jnp.int32))

    def program(self) -> Hashable:
        """Every number travels in `tuning`."""
        return ()

    @property
    def scale_from_population(self) -> bool:
        """Whether V follows the particles."""
        return self.scale == "population"

    def tuning(self, problem: Problem) -> Tuning:
        """The prior's variances, and the optimal step for a Gaussian with them."""
        variances = problem.prior.variances()
        step_size = 2.38 / np.sqrt(problem.dimension)
        if self.scale == "identity":
            step_size *= np.sqrt(variances.min())
            variances = np.ones_like(variances)
        return base.tuning(problem, self.step_size or step_size, variances)
