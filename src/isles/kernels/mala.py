"""The Metropolis-adjusted Langevin algorithm."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from isles import checks
from isles.kernels import base, hmc
from isles.kernels.base import Info, Kernel, Tuning
from isles.problem import Problem, State


@dataclass(frozen=True)
class MALA(Kernel):
    r"""Metropolis-adjusted Langevin algorithm (Roberts and Tweedie 1996).

    θ' = θ + ε²/2 V ∇log π_λ(θ) + ε V^{1/2} ξ, with V the inverse of `mass`. It is Hamiltonian Monte Carlo with
    one leapfrog, and computed so: method.md (14). Cost: one epoch a step.

    Args:
        step_size: ε, fixed; adapted to `target_acceptance` when None, starting at
            (smallest prior std) · 1.65 d^{-1/6}.
        target_acceptance: mean acceptance probability that adaptation aims at.
        mass: `"identity"`, `"population"` or a diagonal, as for `HMC`.
    """

    uses_gradient: ClassVar[bool] = True
    side_by_side: ClassVar[bool] = True
    step_size: float | None = None
    target_acceptance: float = 0.574
    mass: Any = "identity"

    def __post_init__(self) -> None:
        if isinstance(self.mass, str):
            checks.choice("mass", self.mass, ["identity", "population"])
        base.check_settings(self)

    def step(
        self, problem: Problem, key: Array, state: State, tempering: Array, tuning: Tuning
    ) -> tuple[State, Info]:
        """One Langevin move."""
        return hmc.leapfrog_step(problem, key, state, tempering, tuning, jnp.int32(1))

    def program(self) -> Hashable:
        """Every number travels in `tuning`."""
        return ()

    @property
    def scale_from_population(self) -> bool:
        """Whether the mass follows the particles."""
        return isinstance(self.mass, str) and self.mass == "population"

    def tuning(self, problem: Problem) -> Tuning:
        """ε = (smallest prior std, in units of the inverse mass) · 1.65 d^{-1/6}."""
        return hmc.first_tuning(self, problem, hmc.langevin_factor(problem.dimension), 1.0)
