"""Simplified manifold MALA: Langevin moves in the metric of the Fisher information."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

from isles import likelihoods, threefry
from isles.kernels import base
from isles.kernels.base import Info, Kernel, Tuning
from isles.priors import Gaussian
from isles.problem import Problem, State


@dataclass(frozen=True)
class SmMALA(Kernel):
    r"""Simplified manifold Metropolis-adjusted Langevin algorithm (Girolami and Calderhead 2011).

    With the metric G(θ) = λ F(θ) + C₀⁻¹, of the likelihood's expected Fisher information F and the prior's
    precision,

        θ' = θ + ε²/2 G(θ)⁻¹ ∇log π_λ(θ) + ε G(θ)^{−1/2} ξ,   ξ ~ N(0, I),

    accepted with probability `min(1, π_λ(θ') q(θ|θ') / (π_λ(θ) q(θ'|θ)))`. Simplified: the metric's derivatives
    are left out of the drift, which costs acceptances and no exactness: method.md (17). For some hundreds of
    parameters at most.

    Cost: 1 + k epochs a step, one for likelihood and gradient and one for each of the k numbers of a row whose
    gradients make up F: 1 for a binary classification, the number of classes for others, the number of targets
    for a regression, twice that if the noise is learned. Besides, O(rows · k · d² + d³) arithmetic and d² numbers
    of memory a particle.

    Args:
        step_size: ε, fixed; adapted to `target_acceptance` when None, starting at d^{-1/6}.
        target_acceptance: mean acceptance probability that adaptation aims at.
        fisher: `fisher(params, batch)`, a (d, d) matrix, positive semi-definite, summed over the batch's rows; or
            `fisher(params)` for a problem without data. Needed where the likelihood is not one that isles knows;
            k counts as 1 then. In the order of `jax.flatten_util.ravel_pytree(params)`.
    """

    uses_gradient: ClassVar[bool] = True
    step_size: float | None = None
    target_acceptance: float = 0.574
    fisher: Callable[..., Array] | None = None

    def __post_init__(self) -> None:
        if self.fisher is not None and not callable(self.fisher):
            raise TypeError(f"fisher={self.fisher!r} must be a function of the parameters and a batch of rows")
        base.check_settings(self)

    def init(self, problem: Problem, position: Array) -> State:
        """Likelihood, gradient and Fisher information: 1 + k epochs."""
        return problem.evaluate(position, gradient=True)._replace(fisher=self._fisher(problem, position))

    def step(
        self, problem: Problem, key: Array, state: State, tempering: Array, tuning: Tuning
    ) -> tuple[State, Info]:
        """One Langevin move."""
        key_noise, key_accept = threefry.split(key)
        step = tuning.step_size
        noise = threefry.normal(key_noise, state.position.size, state.position.dtype)
        here = _metric(problem, state, tempering, tuning)
        move = solve_triangular(here.factor, step * (noise + 0.5 * step * here.pull), lower=True, trans=1)
        new = self.init(problem, state.position + move)
        there = _metric(problem, new, tempering, tuning)
        back = there.factor.T @ (state.position - new.position) / step - 0.5 * step * there.pull
        log_determinants = jnp.sum(jnp.log(jnp.diagonal(there.factor)) - jnp.log(jnp.diagonal(here.factor)))
        correction = 0.5 * jnp.sum((noise - back) * (noise + back)) + log_determinants
        log_ratio = problem.log_ratio(new, state, tempering) + correction
        state, acceptance = base.accept(key_accept, log_ratio, new, state)
        return state, Info(acceptance, self.evaluation_epochs(problem), new.nonfinite.astype(jnp.int32))

    def program(self) -> Hashable:
        """Numbers travel in `tuning`."""
        return self.fisher

    def check(self, problem: Problem) -> None:
        """The metric needs a Fisher information."""
        d = problem.dimension
        if self.fisher is None:
            if likelihoods.known(problem) is None:
                raise ValueError(
                    "SmMALA needs the Fisher information, and this problem's log_likelihood is a function of your "
                    "own; pass isles.SmMALA(fisher=function), or build the problem with isles.classification or "
                    "isles.regression"
                )
            return
        found = jax.eval_shape(self.fisher, *problem.arguments(problem.chunk_rows))
        if found.shape != (d, d):
            raise ValueError(f"fisher returns shape {found.shape}; {d} parameters need ({d}, {d})")

    def tuning(self, problem: Problem) -> Tuning:
        """ε = d^{-1/6}, as the metric takes care of scales, and the prior's variances."""
        step_size = self.step_size or problem.dimension ** (-1 / 6)
        return base.tuning(problem, step_size, problem.prior.variances())

    def evaluation_epochs(self, problem: Problem) -> int:
        """One, and one for each number of a row whose gradients make up F."""
        likelihood = likelihoods.known(problem)
        if self.fisher is not None or likelihood is None:
            return 2
        return 1 + likelihoods.outputs(likelihood, problem)

    def _fisher(self, problem: Problem, position: Array) -> Array:
        if self.fisher is not None:
            return problem.sum_matrix(self.fisher, position)
        likelihood = likelihoods.known(problem)
        assert likelihood is not None
        return likelihoods.fisher(likelihood, problem, position)


class Metric(NamedTuple):
    """G = AAᵀ at a point; NaN where G is not positive definite, so that such a point is never accepted."""

    factor: Array  # (d, d) A, lower triangular
    pull: Array  # (d,) A⁻¹ ∇log π_λ: the drift in units of the noise


def _metric(problem: Problem, state: State, tempering: Array, tuning: Tuning) -> Metric:
    assert state.gradient is not None and state.fisher is not None
    prior = problem.prior
    if isinstance(prior, Gaussian) and prior.dense:
        inverse = solve_triangular(prior.factor, jnp.eye(problem.dimension, dtype=problem.dtype), lower=True)
        precision = inverse.T @ inverse
    else:
        precision = jnp.diag(1 / tuning.variances)
    # a batched LAPACK call: a loop over columns would copy (particles, d, d) in each of its d rounds
    factor = jnp.linalg.cholesky(tempering * state.fisher + precision)
    force = prior.gradient(state.position) + tempering * state.gradient
    return Metric(factor, solve_triangular(factor, force, lower=True))
