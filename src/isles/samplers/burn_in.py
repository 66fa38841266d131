"""What burn-in does between steps: its tempering rises to 1, and masses follow the Fisher information."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import likelihoods
from isles.kernels import metric
from isles.problem import Problem
from isles.samplers.groups import Group

if TYPE_CHECKING:
    from isles.samplers.mcmc import MCMC

NEW = 0.5  # weight of a new look at the metric


def tempering(sampler: MCMC, burnt_in: int) -> float:
    """λ of the steps after so many: from `anneal` to 1 in the first half of burn-in, on a log scale."""
    return float(sampler.anneal ** max(0.0, 1 - 2 * burnt_in / max(sampler.burn_in, 1)))


def learn(problem: Problem, sampler: MCMC, group: Group, burnt_in: int) -> tuple[Group, int]:
    """`group` with a metric that knows where chains stand now, and the epochs that it cost each of them."""
    likelihood = likelihoods.inner(problem)
    if not sampler.kernel.learns_metric or likelihood is None or burnt_in >= max(sampler.adapt_until, 1):
        return group, 0
    number = problem.dtype.type
    precision = jnp.asarray(1 / problem.prior.variances(), problem.dtype)
    share = number(NEW if burnt_in else 1.0)
    scales = _look(problem, group, number(tempering(sampler, burnt_in)), precision, share, sampler.chains)
    return group._replace(tuning=group.tuning._replace(variances=scales)), likelihoods.outputs(likelihood, problem)


@partial(jax.jit, static_argnames="chains")
def _look(problem: Problem, group: Group, tempering: Array, precision: Array, share: Array, chains: int) -> Array:
    """Island by island: the slopes of all rows of one of them are large already."""
    positions = group.states.position.reshape(-1, chains, problem.dimension)
    one = lambda of: metric.fitted(problem, of[0], tempering, of[1], precision, share)
    return jax.lax.map(one, (positions, group.tuning.variances))


def flat(problem: Problem, sampler: MCMC, groups: int, burnt_in: int) -> Array:
    """`tempering`, one for each group of chains that is tuned together."""
    return jnp.full(groups, np.float64(tempering(sampler, burnt_in)), problem.dtype)
