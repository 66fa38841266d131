"""Chains that weigh many proposals a step, as one compiled program over the islands of a block, one chain each.

The sampler that advances them, and what is kept of their points, is in `mpmcmc`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import adapt
from isles.problem import Problem, State

RIDGE = 1e-4  # of its own diagonal, added to a learned covariance: few points do not span all directions


class Chains(NamedTuple):
    """One chain an island, between two steps, and sums since counters were at zero."""

    states: State  # leaves (I, ...)
    step_size: Array  # (I,)
    mean: Array | None  # (I, d) of the weighted points so far, where the proposal learns from them
    covariance: Array | None  # (I, d, d)
    step: Array  # () steps so far
    left: Array  # (I,) sum of the probabilities of leaving the current point
    effective: Array  # (I,) sum of the effective numbers of points, 1/Σp²
    lost: Array  # (I,) steps none of whose points has a likelihood
    nonfinite: Array  # (I, K) evaluations that gave NaN or +inf


class Points(NamedTuple):
    """The points of each step, the current one first; leaves (steps, I, K + 1, ...) in a buffer."""

    position: Array
    log_prior: Array
    log_likelihood: Array
    weight: Array  # sums to 1 over a step, or to 0 where no point has a likelihood


class Dials(NamedTuple):
    """Numbers that steer adaptation."""

    target: Any  # () probability of leaving the current point that the step size aims at
    adapt_until: Any  # () steps before which the step size may change
    stds: Any  # (d,) of proposals at step size 1, where they are not learned


@jax.jit
def draw_prior(problem: Problem, keys: Array) -> State:
    """A prior draw and its evaluation for each key: one epoch each."""
    return problem.over_particles(lambda key: problem.evaluate(problem.prior.draw(key), gradient=False))(keys)


@partial(jax.jit, static_argnames=("proposals", "adaptive"))
def new_chains(
    problem: Problem, states: State, dials: Dials, step_size: Any, proposals: int, adaptive: bool
) -> Chains:
    """Chains about to begin; what is learned starts at the prior's variances."""
    islands, counts = len(states.position), partial(jnp.zeros, dtype=jnp.int32)
    sums = jnp.zeros(islands, problem.dtype)
    return Chains(
        states=states,
        step_size=jnp.full(islands, step_size, problem.dtype),
        mean=states.position if adaptive else None,
        covariance=jnp.tile(jnp.diag(dials.stds**2), (islands, 1, 1)) if adaptive else None,
        step=counts(()),
        left=sums,
        effective=sums,
        lost=counts(islands),
        nonfinite=counts((islands, proposals)),
    )  # fmt: skip


@jax.jit
def go_on(chains: Chains) -> Chains:
    """A copy with counters at zero, to give away."""
    chains = jax.tree.map(jnp.copy, chains)
    counters = {name: getattr(chains, name) for name in ("left", "effective", "lost", "nonfinite")}
    return chains._replace(**jax.tree.map(jnp.zeros_like, counters))


@partial(jax.jit, static_argnames=("steps", "islands", "points"))
def empty_points(problem: Problem, steps: int, islands: int, points: int) -> Points:
    """Room for the points of so many steps."""
    scalars = jnp.zeros((steps, islands, points), problem.dtype)
    positions = jnp.zeros((*scalars.shape, problem.dimension), problem.dtype)
    return Points(positions, scalars, jnp.copy(scalars), jnp.copy(scalars))


@partial(jax.jit, static_argnames="proposals", donate_argnames=("chains", "buffer"))
def walk(
    problem: Problem,
    chains: Chains,
    buffer: Points | None,
    keys: Array,
    dials: Dials,
    offset: Array,
    count: Array,
    proposals: int,
) -> tuple[Chains, Points | None]:
    """`count` steps of every chain; their points go into the buffer, if there is one, from `offset` on."""

    def step(index: Array, carry: tuple[Chains, Points | None]) -> tuple[Chains, Points | None]:
        chains, buffer = carry
        chains, points = _step(problem, chains, keys, dials, proposals)
        if buffer is not None:
            buffer = jax.tree.map(lambda all, one: all.at[offset + index].set(one), buffer, points)
        return chains, buffer

    return jax.lax.fori_loop(0, count, step, (chains, buffer))


def _step(problem: Problem, chains: Chains, keys: Array, dials: Dials, proposals: int) -> tuple[Chains, Points]:
    states, islands = chains.states, len(chains.step_size)
    both = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, chains.step)))(keys)
    place = partial(_propose, dials.stds, proposals)
    where = jax.vmap(place)(both[:, 0], states.position, chains.step_size, chains.covariance)
    flat = where.reshape(islands * proposals, -1)  # all islands at once, as a network sees its particles
    new = problem.over_particles(partial(problem.evaluate, gradient=False))(flat)
    joined = lambda old, new: jnp.concatenate(
        [old[:, None], new.reshape(islands, proposals, *old.shape[1:])], axis=1
    )
    points: State = jax.tree.map(joined, states, new)  # (I, K + 1, ...)
    weights = jax.vmap(partial(weigh, problem))(points)
    usable = weights.sum(axis=1) > 0
    chosen = jnp.where(usable, jax.vmap(jax.random.categorical)(both[:, 1], jnp.log(weights)), 0)
    left = weights[:, 1:].sum(axis=1)
    number = chains.step + 1
    size = adapt.next_step_size(chains.step_size, left, dials.target, number)
    mean, covariance = chains.mean, chains.covariance
    if mean is not None and covariance is not None:
        learned = jax.vmap(partial(_learn, number))(mean, covariance, points.position, weights)
        mean = jnp.where(usable[:, None], learned[0], mean)
        covariance = jnp.where(usable[:, None, None], learned[1], covariance)
    effective = jnp.where(usable, 1 / jnp.maximum((weights**2).sum(axis=1), 1e-30), 0)
    chains = Chains(
        states=jax.tree.map(lambda leaf: jax.vmap(lambda rows, index: rows[index])(leaf, chosen), points),
        step_size=jnp.where(number <= dials.adapt_until, size, chains.step_size),
        mean=mean,
        covariance=covariance,
        step=number,
        left=chains.left + left,
        effective=chains.effective + effective,
        lost=chains.lost + ~usable,
        nonfinite=chains.nonfinite + new.nonfinite.reshape(islands, proposals),
    )
    return chains, Points(points.position, points.log_prior, points.log_likelihood, weights)


def _propose(
    stds: Array, proposals: int, key: Array, position: Array, step_size: Array, covariance: Array | None
) -> Array:
    """K points (K, d) around a point that is itself drawn around `position`, method.md (10)."""
    noise = jax.random.normal(key, (proposals + 1, position.size), position.dtype)
    if covariance is None:
        noise = noise * stds
    else:
        ridge = jnp.diag(RIDGE * jnp.diagonal(covariance))
        noise = noise @ jnp.linalg.cholesky(covariance + ridge).T
    moves = step_size * jnp.asarray(np.sqrt(0.5), position.dtype) * noise
    return position + moves[0] + moves[1:]


def weigh(problem: Problem, points: State) -> Array:
    """p_j, method.md (11), of points with leaves (K + 1, ...); all zero where no point has a likelihood."""
    total = points.log_prior + points.log_likelihood
    best = jnp.argmax(jnp.where(points.nonfinite | jnp.isnan(total), -jnp.inf, total))
    reference = jax.tree.map(lambda leaf: leaf[best], points)
    one = jnp.ones((), problem.dtype)
    ratios = jnp.exp(jax.vmap(lambda point: problem.log_ratio(point, reference, one))(points))
    return ratios / jnp.maximum(ratios.sum(), 1e-30)


def _learn(number: Array, mean: Array, covariance: Array, points: Array, weights: Array) -> tuple[Array, Array]:
    """Mean (d,) and covariance (d, d) after a look at weighted points: method.md (12)."""
    gain = (1 + number).astype(mean.dtype) ** -0.7
    points = jnp.where(weights[:, None] > 0, points, 0.0)
    mean = mean + gain * (weights @ points - mean)
    centred = points - mean
    return mean, covariance + gain * ((weights[:, None] * centred).T @ centred - covariance)
