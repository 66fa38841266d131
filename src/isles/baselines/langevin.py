"""Chains by stochastic gradients, without acceptance: SGLD and SGHMC. More draws do not remove their error."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import ascent, cache, checks, keys, minibatches
from isles.ascent import Optimised, check_start
from isles.baselines.results import as_posterior, complain, describe, draw_prior, evaluate, require_problem
from isles.posterior import Epochs, Posterior
from isles.problem import Problem


def sgld(
    problem: Problem,
    chains: int = 8,
    *,
    epochs: int = 2000,
    step_size: float = 1e-4,
    first_step_size: float | None = None,
    batch_rows: int | None = None,
    burn_in: float = 0.5,
    draws: int = 50,
    start: str | Optimised = "prior",
    seed: int = 0,
) -> Posterior:
    """Stochastic gradient Langevin dynamics (Welling, Teh 2011), chains side by side, each an island.

    θ += ε/2 ĝ + √ε ξ, with ĝ an unbiased estimate of the log posterior's gradient and no acceptance. During
    burn-in ε falls geometrically from `first_step_size` to `step_size`, where it stays. Draws are of a
    distribution that is off by O(ε): on N(0, s²) its variance is s²(1 + εG/4)/(1 − ε/(4s²)), with G the variance
    of ĝ, which is zero with all rows. Cost: `epochs`, and one more a draw.

    Args:
        problem: what to sample.
        chains: independent ones.
        epochs: passes of every chain over the data, burn-in included: as many steps, or more with minibatches.
        step_size: ε of all draws, in squared units of the parameters; chains diverge from 4/curvature on.
        first_step_size: ε at the start; by default the same.
        batch_rows: rows of a step, drawn with replacement for each chain by itself; by default all.
        burn_in: the share of steps before the first draw.
        draws: of each chain, evenly spaced over the other steps.
        start: `"prior"`, `"optimised"` or `isles.Optimised(...)`, as for `isles.MCMC`.
        seed: decides all random numbers.
    """
    settings: dict[str, Any] = {"epochs": epochs, "step_size": step_size, "first_step_size": first_step_size}
    settings |= {"batch_rows": batch_rows, "burn_in": burn_in, "draws": draws, "start": start}
    return _sample(problem, chains, 1.0, seed, "SGLD", describe("sgld", chains=chains, **settings), **settings)


def sghmc(
    problem: Problem,
    chains: int = 8,
    *,
    epochs: int = 2000,
    step_size: float = 1e-4,
    first_step_size: float | None = None,
    friction: float = 0.1,
    batch_rows: int | None = None,
    burn_in: float = 0.5,
    draws: int = 50,
    start: str | Optimised = "prior",
    seed: int = 0,
) -> Posterior:
    """Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox, Guestrin 2014), chains side by side, each an island.

    v ← (1 − α) v + ε/2 ĝ + √(α ε) ξ, θ += v, with no acceptance and no correction for the noise of minibatches.
    With friction α = 1 this is `sgld`. The step size falls as it does there. Cost: `epochs`, and one more a draw.

    Args:
        problem: what to sample.
        chains: independent ones.
        epochs: passes of every chain over the data, burn-in included: as many steps, or more with minibatches.
        step_size: ε of all draws, in squared units of the parameters.
        first_step_size: ε at the start; by default the same.
        friction: α, the share of velocity that a step loses.
        batch_rows: rows of a step, drawn with replacement for each chain by itself; by default all.
        burn_in: the share of steps before the first draw.
        draws: of each chain, evenly spaced over the other steps.
        start: `"prior"`, `"optimised"` or `isles.Optimised(...)`, as for `isles.MCMC`.
        seed: decides all random numbers.
    """
    friction = checks.fraction("friction", friction)
    settings: dict[str, Any] = {"epochs": epochs, "step_size": step_size, "first_step_size": first_step_size}
    settings |= {"batch_rows": batch_rows, "burn_in": burn_in, "draws": draws, "start": start}
    text = describe("sghmc", chains=chains, friction=friction, **settings)
    return _sample(problem, chains, friction, seed, "SGHMC", text, **settings)


def _sample(
    problem: Problem,
    chains: int,
    friction: float,
    seed: int,
    kind: str,
    text: str,
    *,
    epochs: int,
    step_size: float,
    first_step_size: float | None,
    batch_rows: int | None,
    burn_in: float,
    draws: int,
    start: str | Optimised,
) -> Posterior:
    require_problem(problem)
    checks.count("chains", chains)
    checks.count("epochs", epochs)
    checks.count("draws", draws)
    last = checks.positive("step_size", step_size)
    first = last if first_step_size is None else checks.positive("first_step_size", first_step_size)
    minibatches.check(problem, batch_rows)
    steps = minibatches.steps(problem, epochs, batch_rows)
    burnt = int(checks.fraction("burn_in", burn_in) * steps)
    thin = (steps - burnt) // draws
    if not thin:
        raise ValueError(
            f"epochs={epochs} leave {steps - burnt} steps after burn-in, too few for draws={draws}; raise epochs, "
            f"or take fewer draws"
        )
    burnt = steps - draws * thin  # not a step is left over
    way = check_start(start)
    cache.keep_compiled()
    problem = problem.for_particles(chains)
    root = keys.root(seed)
    own = lambda purpose: keys.particle_keys(root, purpose, 0, np.arange(chains), 1)
    positions = draw_prior(problem, own(keys.Purpose.PRIOR))
    spent, number = epochs + draws, problem.dtype.type
    if way is not None:
        way.check(problem)
        rate, climb_steps = number(way.learning_rate), np.int32(way.steps(problem))
        rows, foot = own(keys.Purpose.OPTIMISATION), ascent.foot(positions, climb_steps, way.shrink)
        positions = ascent.climb(problem, foot, rows, rate, climb_steps, way.batch_rows).position
        spent += way.epochs
    found = _run(
        problem, positions, own(keys.Purpose.MUTATION), number(first), number(last), number(friction),
        np.int32(burnt), np.int32(thin), batch_rows, draws,
    )  # fmt: skip
    states = evaluate(problem, found.reshape(-1, problem.dimension))
    complain(states.log_likelihood, "draws", f"lower step_size={step_size} or first_step_size", level=3)
    return as_posterior(
        problem,
        states,
        kind=kind,
        settings=text,
        epochs=Epochs(spent, chains * spent),
        seed=seed,
        islands=chains,
        chain_shape=(1, draws),
        draw_steps=thin,
    )


@partial(jax.jit, static_argnames=("batch_rows", "draws"))
def _run(
    problem: Problem,
    positions: Array,
    row_keys: Array,
    first: Array,
    last: Array,
    friction: Array,
    burn_in: Array,
    thin: Array,
    batch_rows: int | None,
    draws: int,
) -> Array:
    """Draws (chains, draws, d)."""

    def move(key: Array, position: Array, velocity: Array, size: Array) -> tuple[Array, Array]:
        key_rows, key_noise = jax.random.split(key)
        gradient: Any = minibatches.estimate(problem, key_rows, position, batch_rows).gradient
        pull = gradient + problem.prior.gradient(position)
        noise = jax.random.normal(key_noise, position.shape, position.dtype)
        velocity = (1 - friction) * velocity + 0.5 * size * pull + jnp.sqrt(friction * size) * noise
        return position + velocity, velocity

    def step(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        share = jnp.minimum(number / jnp.maximum(burn_in, 1), 1).astype(problem.dtype)
        size = first * (last / first) ** share
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(row_keys, number)
        return problem.over_particles(move, (0, 0, 0, None))(step_keys, *carry, size)

    def draw(carry: tuple[Array, Array], index: Array) -> tuple[Any, Array]:
        begin = burn_in + index * thin
        carry = jax.lax.fori_loop(begin, begin + thin, step, carry)
        return carry, carry[0]

    carry = jax.lax.fori_loop(0, burn_in, step, (positions, jnp.zeros_like(positions)))
    _, found = jax.lax.scan(draw, carry, jnp.arange(draws, dtype=jnp.int32))
    return jnp.moveaxis(found, 0, 1)
