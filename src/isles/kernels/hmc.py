"""Hamiltonian Monte Carlo: leapfrog trajectories with a Metropolis correction."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import checks, likelihoods, threefry
from isles.kernels import base, metric
from isles.kernels.base import Info, Kernel, Tuning
from isles.lanes import lay
from isles.problem import Problem, State


@dataclass(frozen=True)
class HMC(Kernel):
    r"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011).

    With momentum q ~ N(0, M₀) drawn afresh at every step and H(θ, q) = −log π_λ(θ) + ½ qᵀM₀⁻¹q, L leapfrogs

        q ← q + ε/2 ∇log π_λ(θ),   θ ← θ + ε M₀⁻¹ q,   q ← q + ε/2 ∇log π_λ(θ)

    are accepted with probability min(1, e^{−ΔH}): method.md (13). Cost: L epochs a step, since the gradient
    at the current point is kept.

    With `mass="population"`, M₀⁻¹ is the diagonal of the particles' weighted variances before resampling, as in
    Buchholz, Chopin and Jacob (2021), learned once a stage and held back toward the last one; in MCMC, the running
    variances of the island's chains during burn-in. The step size follows the mean acceptance of the island by
    stochastic approximation after each step. Both stand while particles move, and act forward only.

    With `mass="fisher"`, for MCMC, M₀ is λF + C₀⁻¹ of the Fisher information F where an island's chains stand and
    the prior's precision, in blocks of at most b = 256 neighbours among the parameters; dense, if there are no
    more. It is looked at twenty times in burn-in at most and averaged with weights that halve from a look to the
    one before. Steps then fit directions that are stiff for many parameters together, as those of deep networks
    are. An optimum has a metric of its own: give each chain an island, `chains=1`. A look costs k epochs, as for
    SmMALA, and O(rows · k · d b + d b²) arithmetic; a leapfrog d b more; an island holds 2 d b numbers.

    Args:
        trajectory: τ; L = max(1, floor(τ/ε)), at most `max_leapfrogs`. In the parameters' own units.
        leapfrogs: L itself; give one of the two (10 leapfrogs when neither is given).
        step_size: ε, fixed; adapted to `target_acceptance` when None, starting at
            (smallest prior std) · d^{-1/4}, or · 1.65 d^{-1/6} where L is 1.
        target_acceptance: mean acceptance probability that adaptation aims at.
        mass: M₀: `"identity"`; `"population"`, the inverse variances of the particles; `"fisher"`, for chains from
            optima of small networks; or a diagonal, as a number or a pytree like the parameters.
        max_leapfrogs: limit on L with `trajectory`; a run reports when it was binding.
    """

    uses_gradient: ClassVar[bool] = True
    side_by_side: ClassVar[bool] = True
    trajectory: float | None = None
    leapfrogs: int | None = None
    step_size: float | None = None
    target_acceptance: float = 0.65
    mass: Any = "identity"
    max_leapfrogs: int = 1000

    def __post_init__(self) -> None:
        if self.trajectory is not None and self.leapfrogs is not None:
            raise ValueError(
                f"give trajectory={self.trajectory} or leapfrogs={self.leapfrogs}, not both: "
                f"a trajectory sets the number of leapfrogs"
            )
        if self.trajectory is None:
            leapfrogs = 10 if self.leapfrogs is None else checks.count("leapfrogs", self.leapfrogs)
            object.__setattr__(self, "leapfrogs", leapfrogs)
        else:
            checks.positive("trajectory", self.trajectory)
        checks.count("max_leapfrogs", self.max_leapfrogs)
        if isinstance(self.mass, str):
            checks.choice("mass", self.mass, ["identity", "population", "fisher"])
        base.check_settings(self)

    def check(self, problem: Problem) -> None:
        """A Fisher metric needs a likelihood that isles knows."""
        if self.learns_metric and likelihoods.inner(problem) is None:
            raise ValueError(
                "mass='fisher' needs the Fisher information, and this problem's log_likelihood is a function of "
                "your own; build the problem with isles.classification or isles.regression"
            )

    def step(
        self, problem: Problem, key: Array, state: State, tempering: Array, tuning: Tuning
    ) -> tuple[State, Info]:
        """One trajectory."""
        if self.trajectory is None:
            return leapfrog_step(problem, key, state, tempering, tuning, tuning.length.astype(jnp.int32))
        slack = 1 + 4 * jnp.finfo(tuning.length.dtype).eps  # 0.3/0.05 is 6, whatever rounding says
        wanted = jnp.floor(tuning.length / tuning.step_size * slack)
        count = jnp.clip(wanted, 1, self.max_leapfrogs).astype(jnp.int32)
        state, info = leapfrog_step(problem, key, state, tempering, tuning, count)
        return state, info._replace(capped=wanted > self.max_leapfrogs)

    @property
    def shares_length(self) -> bool:
        """Whether L is the same for all islands: then rows need not wait for each other one by one."""
        return self.trajectory is None

    def single(self, tuning: Tuning) -> Tuning:
        """`tuning` with one leapfrog a step."""
        return tuning._replace(length=jnp.full_like(tuning.length, self.trajectory is None))

    def program(self) -> Hashable:
        """Fixed L and fixed τ are two programs; the rest travels in `tuning`."""
        return self.trajectory is None, self.max_leapfrogs

    @property
    def scale_from_population(self) -> bool:
        """Whether the mass follows the particles."""
        return isinstance(self.mass, str) and self.mass == "population"

    @property
    def learns_metric(self) -> bool:
        """Whether the mass is the Fisher information of where chains stand in burn-in."""
        return isinstance(self.mass, str) and self.mass == "fisher"

    def max_step_size(self, variances: Array) -> Array:
        """None."""
        return jnp.full(variances.shape[:1], jnp.inf, variances.dtype)

    def tuning(self, problem: Problem) -> Tuning:
        """ε = (smallest prior std, in units of the inverse mass) · d^{-1/4}; that of MALA for one leapfrog."""
        length = float((self.leapfrogs if self.trajectory is None else self.trajectory) or 0)
        single = first_tuning(self, problem, langevin_factor(problem.dimension), length)
        if self.leapfrogs == 1 or (self.trajectory is not None and self.trajectory < 2 * single.step_size):
            return single
        return first_tuning(self, problem, problem.dimension**-0.25, length)


def leapfrog_step(
    problem: Problem, key: Array, state: State, tempering: Array, tuning: Tuning, count: Array
) -> tuple[State, Info]:
    """One HMC step of `count` leapfrogs."""
    key_momentum, key_accept = threefry.split(key)
    step, scales = tuning.step_size, tuning.variances
    noise = lay(threefry.normal(key_momentum, state.position.size, state.position.dtype))
    state = _laid(state)
    if scales.ndim == 1:
        momentum, velocity = noise / jnp.sqrt(scales), lambda momentum: scales * momentum
    else:
        inverse = scales[0]  # outside the loop, which would copy it in every round
        momentum = metric.product(scales[1], noise)
        velocity = lambda momentum: metric.product(inverse, momentum)

    def kick(state: State) -> Array:
        assert state.gradient is not None
        return step * (problem.prior.gradient(state.position) + tempering * state.gradient)

    def leapfrog(_: Array, carry: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
        # half a kick ends this leapfrog, and half begins the next: given as one, and taken back after the last
        state, momentum, nonfinite = carry
        state = problem.evaluate(state.position + step * velocity(momentum), gradient=True)
        # the prior's density has no part in the trajectory: left out of the loop, it is not computed there
        return _laid(state)._replace(log_prior=unused), lay(momentum + kick(state)), nonfinite + state.nonfinite

    unused = jnp.zeros_like(state.log_prior)
    start = (state._replace(log_prior=unused), lay(momentum + 0.5 * kick(state)), jnp.zeros((), jnp.int32))
    end, momentum_end, nonfinite = jax.lax.fori_loop(0, count, leapfrog, start)
    momentum_end = momentum_end - 0.5 * kick(end)
    end = end._replace(log_prior=problem.prior.log_density(end.position))
    # method.md (24)
    kinetic = 0.5 * jnp.sum(lay(velocity(momentum_end - momentum) * (momentum_end + momentum)))
    log_ratio = problem.log_ratio(end, state, tempering) - kinetic
    state, acceptance = base.accept(key_accept, log_ratio, end, state)
    return _laid(state), Info(acceptance, evaluations=count, nonfinite=nonfinite)


def _laid(state: State) -> State:
    assert state.gradient is not None
    return state._replace(position=lay(state.position), gradient=lay(state.gradient))


def langevin_factor(dimension: int) -> float:
    """The best step of one leapfrog on a standard Gaussian, as a whitened prior is (Roberts & Rosenthal 1998)."""
    return float(1.65 * dimension ** (-1 / 6))


def first_tuning(kernel: Any, problem: Problem, factor: float, length: float) -> Tuning:
    """Scales and step size of a gradient kernel before anything is known but the prior."""
    prior_variances = problem.prior.variances()
    if kernel.scale_from_population or kernel.learns_metric:
        variances = prior_variances
    elif isinstance(kernel.mass, str):
        variances = np.ones(problem.dimension)
    else:
        masses = problem.layout.broadcast("mass", kernel.mass)
        if not (np.isfinite(masses) & (masses > 0)).all():
            raise ValueError(f"mass={masses.min()} must be positive and finite for every parameter")
        variances = 1.0 / masses
    step_size = kernel.step_size
    if step_size is None:
        step_size = float(np.sqrt(np.min(prior_variances / variances))) * factor
    if kernel.learns_metric:
        variances = metric.diagonal(variances)
    return base.tuning(problem, step_size, variances, length)
