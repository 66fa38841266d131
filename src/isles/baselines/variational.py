"""Mean-field variational inference: the independent Gaussian that is nearest to the posterior in KL(q ‖ p)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import ascent, cache, checks, keys, minibatches
from isles.ascent import Climb, Optimised
from isles.baselines.results import as_posterior, complain, describe, evaluate, require_problem
from isles.posterior import Epochs, Posterior
from isles.problem import Problem


def mean_field(
    problem: Problem,
    draws: int = 100,
    *,
    epochs: int = 2000,
    learning_rate: float = 0.01,
    batch_rows: int | None = None,
    samples: int = 8,
    first_std: float = 0.1,
    seed: int = 0,
) -> Posterior:
    """Draws from q = N(m, diag(s²)) with the highest ELBO, E_q[log likelihood + log prior − log q], that is found.

    Gradients are those of θ = m + s z, z ~ N(0, I), in pairs ±z, without the term whose mean is zero (Roeder, Wu,
    Duvenaud 2017). On a Gaussian posterior with precision Λ, m is its mean and s² = 1/Λ_ii, not the marginal
    variance. The ELBO of the draws is in `trace["elbo"]` and `diagnostics()`; it is below the log evidence by
    KL(q ‖ posterior). Cost: `epochs` × samples, and one epoch a draw.

    Args:
        problem: what to approximate.
        draws: from the end, equally weighted.
        epochs: passes of every sample over the data: as many steps, or more of them with minibatches.
        learning_rate: at first; it falls to zero along a cosine. In units of m and log s.
        batch_rows: rows of a step, drawn with replacement for each sample by itself; by default all.
        samples: draws of z a step, an even number.
        first_std: s at the start, where m is a prior draw.
        seed: decides all random numbers.
    """
    require_problem(problem)
    checks.count("draws", draws)
    if checks.count("samples", samples, minimum=2) % 2:
        raise ValueError(f"samples={samples} must be even, since they come in pairs; take {samples + 1}")
    first_std = checks.positive("first_std", first_std)
    way = Optimised(epochs, learning_rate, batch_rows)
    way.check(problem)
    root = keys.root(seed)
    cache.keep_compiled()
    one = lambda purpose, stage=0: keys.island_keys(root, purpose, stage, np.zeros(1))[0]
    fitted = _fit(
        problem.for_particles(samples), one(keys.Purpose.PRIOR), one(keys.Purpose.OPTIMISATION),
        jnp.asarray(math.log(first_std), problem.dtype), np.asarray(learning_rate, problem.dtype),
        np.int32(way.steps(problem)), batch_rows, samples // 2,
    )  # fmt: skip
    mean, log_std = fitted.position
    noise = jax.random.normal(one(keys.Purpose.POSTERIOR, 1), (draws, problem.dimension), problem.dtype)
    states = evaluate(problem.for_particles(draws), mean + jnp.exp(log_std) * noise)
    complain(
        states.log_likelihood, "draws", f"lower learning_rate={learning_rate} or first_std={first_std}", level=2
    )
    score = np.asarray(states.log_likelihood, np.float64) + np.asarray(states.log_prior, np.float64)
    entropy = np.asarray(log_std, np.float64).sum() + 0.5 * problem.dimension * (1 + math.log(2 * math.pi))
    settings: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "batch_rows": batch_rows}
    return as_posterior(
        problem,
        states,
        kind="mean-field variational inference",
        settings=describe("mean_field", draws=draws, **settings, samples=samples, first_std=first_std),
        epochs=Epochs(epochs + 1, epochs * samples + draws),
        seed=seed,
        trace={"elbo": np.array([[score.mean() + entropy]])},
    )


@partial(jax.jit, static_argnames=("batch_rows", "pairs"))
def _fit(
    problem: Problem,
    start: Array,
    key: Array,
    log_std: Array,
    rate: Array,
    steps: Array,
    batch_rows: int | None,
    pairs: int,
) -> Climb:
    """Rows of the end's position are m and log s."""

    def slope(found: Array, step: Array) -> Array:
        mean, std = found[0], jnp.exp(found[1])
        key_noise, key_rows = jax.random.split(jax.random.fold_in(key, step))
        half = jax.random.normal(key_noise, (pairs, mean.size), mean.dtype)
        noise = jnp.concatenate([half, -half])

        def pull(key: Array, z: Array) -> Array:
            """∇ (log posterior − log q) at θ, with q held fixed."""
            position = mean + std * z
            gradient: Any = minibatches.estimate(problem, key, position, batch_rows).gradient
            return gradient + problem.prior.gradient(position) + z / std

        pulls = problem.over_particles(pull)(jax.random.split(key_rows, 2 * pairs), noise)
        return jnp.stack([pulls.mean(axis=0), (pulls * noise * std).mean(axis=0)])

    position = problem.prior.draw(start)
    first = jnp.stack([position, jnp.full_like(position, log_std)])
    return ascent.ascend(slope, ascent.foot(first, steps), rate, steps)
