"""Preconditioned Crank-Nicolson: proposals that leave a Gaussian prior invariant."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import checks, threefry
from isles.kernels import base
from isles.kernels.base import Info, Kernel, Tuning
from isles.priors import Gaussian
from isles.problem import Problem, State


@dataclass(frozen=True)
class PCN(Kernel):
    r"""Preconditioned Crank-Nicolson (Neal 1998; Cotter et al. 2013) in its general, scaled form.

    With z = F⁻¹(θ − μ₀) for the prior N(μ₀, FFᵀ), and b_i = min(β² D_i, 1) for each coordinate,

        z'_i = √(1 − b_i) z_i + √b_i ξ_i,   ξ ~ N(0, I).

    The proposal is reversible for the prior, so it is accepted with the tempered likelihood ratio alone:
    method.md (15). Needs a Gaussian prior. Cost: one epoch a step, no gradient.

    Args:
        step_size: β, fixed; adapted to `target_acceptance` when None, starting at 0.5.
        target_acceptance: mean acceptance probability that adaptation aims at.
        scale: D: `"population"`, the variances of z over the particles (adapted in burn-in for MCMC), or
            `"prior"`, the identity: the original pCN.
    """

    step_size: float | None = None
    target_acceptance: float = 0.25
    scale: str = "population"

    def __post_init__(self) -> None:
        checks.choice("scale", self.scale, ["population", "prior"])
        base.check_settings(self)
        if self.scale == "prior" and self.step_size is not None and self.step_size > 1:
            raise ValueError(f"step_size={self.step_size} must be at most 1 for PCN(scale='prior')")

    def step(
        self, problem: Problem, key: Array, state: State, tempering: Array, tuning: Tuning
    ) -> tuple[State, Info]:
        """One proposal."""
        prior = problem.prior
        assert isinstance(prior, Gaussian)
        key_noise, key_accept = threefry.split(key)
        noise = threefry.normal(key_noise, state.position.size, state.position.dtype)
        share = jnp.minimum(tuning.step_size**2 * tuning.variances, 1.0)  # of each coordinate's variance
        z = jnp.sqrt(1.0 - share) * prior.whiten(state.position) + jnp.sqrt(share) * noise
        new = problem.evaluate(prior.unwhiten(z), gradient=False)
        log_ratio = problem.log_likelihood_ratio(new, state, tempering)
        state, acceptance = base.accept(key_accept, log_ratio, new, state)
        return state, Info(acceptance, nonfinite=new.nonfinite.astype(jnp.int32))

    def program(self) -> Hashable:
        """Every number travels in `tuning`."""
        return ()

    @property
    def scale_from_population(self) -> bool:
        """Whether D follows the particles."""
        return self.scale == "population"

    def check(self, problem: Problem) -> None:
        """The proposal is built from the prior's mean and covariance."""
        if not isinstance(problem.prior, Gaussian):
            raise ValueError(
                f"PCN proposes from a Gaussian prior, but this problem's prior is "
                f"{type(problem.prior.prior).__name__}; use HMC, MALA or MH, or an isles.Gaussian prior"
            )

    def tuning(self, problem: Problem) -> Tuning:
        """β = 0.5 and D = I: the prior."""
        return base.tuning(problem, self.step_size or 0.5, np.ones(problem.dimension))

    def coordinates(self, problem: Problem, position: Array) -> Array:
        """Whitened coordinates z."""
        assert isinstance(problem.prior, Gaussian)
        return problem.prior.whiten(position)

    def max_step_size(self, variances: Array) -> Array:
        """Beyond 1/√min D every coordinate is drawn from the prior, and a larger β changes nothing."""
        return 1.0 / jnp.sqrt(jnp.min(variances, axis=-1))
