"""Ensemble moves: particles propose along each other's differences, one half of an island at a time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import checks
from isles.kernels import base
from isles.kernels.base import Info, Kernel, Tuning
from isles.problem import Problem, State


@dataclass(frozen=True)
class Stretch(Kernel):
    r"""The affine-invariant stretch move (Goodman and Weare 2010).

    With y a particle of the half that stands still, and z in [1/a, a] of density ∝ 1/√z,

        θ' = y + z (θ − y),

    accepted with probability min(1, z^{d−1} π_λ(θ')/π_λ(θ)): method.md (18). It samples any linear image of a
    target as well as the target itself; acceptances fall as d grows. Needs an even number of particles,
    more than 2d of them. Cost: one epoch a step, no gradient.

    In SMC, particles that move by each other cost a bias of order 1/N in the evidence, also of a frozen run.

    Args:
        stretch: a, above 1; never adapted.
    """

    partners: ClassVar[int] = 1
    stretch: float = 2.0

    def __post_init__(self) -> None:
        if checks.positive("stretch", self.stretch) <= 1:
            raise ValueError(f"stretch={self.stretch} must be above 1")

    def step(  # type: ignore[override]
        self, problem: Problem, key: Array, state: State, tempering: Array, tuning: Tuning, partners: Array
    ) -> tuple[State, Info]:
        """One stretch along the line through a partner (1, d)."""
        key_stretch, key_accept = jax.random.split(key)
        most = tuning.step_size
        uniform = jax.random.uniform(key_stretch, dtype=state.position.dtype)
        factor = ((most - 1) * uniform + 1) ** 2 / most
        new = problem.evaluate(partners[0] + factor * (state.position - partners[0]), gradient=False)
        log_volume = (problem.dimension - 1) * jnp.log(factor)
        log_ratio = problem.log_ratio(new, state, tempering) + log_volume
        state, acceptance = base.accept(key_accept, log_ratio, new, state)
        return state, Info(acceptance, nonfinite=new.nonfinite.astype(jnp.int32))

    def program(self) -> Hashable:
        """Every number travels in `tuning`."""
        return ()

    def tuning(self, problem: Problem) -> Tuning:
        """The step size is a."""
        return base.tuning(problem, self.stretch, np.ones(problem.dimension))


@dataclass(frozen=True)
class DE(Kernel):
    r"""Differential evolution Markov chains (ter Braak 2006).

    With y and y' two particles of the half that stands still, and V the prior's variances,

        θ' = θ + γ (y − y') + b V^{1/2} ξ,   ξ ~ N(0, I),

    accepted with probability min(1, π_λ(θ')/π_λ(θ)): method.md (19). With probability `jump`, γ is 1, which leads
    from one mode to another. Needs an even number of particles, more than 2d of them. Cost: one epoch a step, no
    gradient.

    In SMC, particles that move by each other cost a bias of order 1/N in the evidence, also of a frozen run.

    Args:
        step_size: γ, fixed; adapted to `target_acceptance` when None, starting at 2.38/√(2d).
        target_acceptance: mean acceptance probability that adaptation aims at.
        jump: probability of γ = 1.
        noise: b, small: it keeps particles from moving on a lattice of their differences.
    """

    partners: ClassVar[int] = 2
    step_size: float | None = None
    target_acceptance: float = 0.234
    jump: float = 0.1
    noise: float = 1e-4

    def __post_init__(self) -> None:
        base.check_settings(self)
        checks.positive("noise", self.noise)
        if self.jump != 0:
            checks.fraction("jump", self.jump)

    def step(  # type: ignore[override]
        self, problem: Problem, key: Array, state: State, tempering: Array, tuning: Tuning, partners: Array
    ) -> tuple[State, Info]:
        """One move along the difference of two partners (2, d)."""
        key_jump, key_noise, key_accept = jax.random.split(key, 3)
        factor = jnp.where(jax.random.bernoulli(key_jump, self.jump), 1.0, tuning.step_size)
        noise = jax.random.normal(key_noise, state.position.shape, state.position.dtype)
        move = factor * (partners[0] - partners[1]) + tuning.length * jnp.sqrt(tuning.variances) * noise
        new = problem.evaluate(state.position + move, gradient=False)
        state, acceptance = base.accept(key_accept, problem.log_ratio(new, state, tempering), new, state)
        return state, Info(acceptance, nonfinite=new.nonfinite.astype(jnp.int32))

    def program(self) -> Hashable:
        """The probability of a jump; other numbers travel in `tuning`."""
        return self.jump

    def tuning(self, problem: Problem) -> Tuning:
        """γ = 2.38/√(2d), optimal for a Gaussian; the noise's scale as the length."""
        step_size = self.step_size or 2.38 / np.sqrt(2 * problem.dimension)
        return base.tuning(problem, step_size, problem.prior.variances(), self.noise)
