"""MC dropout: one network trained with dropout, whose masks stay in use when it predicts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import ascent, cache, checks, keys, minibatches
from isles.ascent import Climb, Optimised
from isles.baselines.results import (
    as_posterior,
    complain,
    describe,
    draw_prior,
    require_likelihood,
    require_problem,
)
from isles.layout import Layout, Params, StaticFunction
from isles.likelihoods import Apply, Likelihood
from isles.posterior import Epochs, Posterior
from isles.problem import Problem, State

MASKS = 1 << 24  # numbers that float32 holds exactly

KeyedApply = Callable[[Params, Array, Array], Array]


def mc_dropout(
    problem: Problem,
    apply: KeyedApply,
    draws: int = 100,
    *,
    epochs: int = 1000,
    learning_rate: float = 0.01,
    batch_rows: int | None = None,
    seed: int = 0,
) -> Posterior:
    """Draws are thinned networks: the same optimised parameters, each with a dropout mask of its own.

    Training maximises the posterior density with new masks at every step (Gal, Ghahramani 2016). A draw is
    `{"network": params, "mask": a number}`; its mask is the same for all rows, so that it is one function. Cost:
    `epochs`, and one a draw.

    Args:
        problem: made by `isles.classification` or `isles.regression` with the network as it is without dropout.
        apply: the network with dropout, a function of (params, x, key) that drops units by `key`. For Flax:
            `lambda params, x, key: module.apply({"params": params}, x, train=True, rngs={"dropout": key})`.
        draws: masks, equally weighted.
        epochs: passes over the data: as many steps, or more of them with minibatches.
        learning_rate: at first; it falls to zero along a cosine. In units of the parameters.
        batch_rows: rows of a step, drawn with replacement; by default all.
        seed: decides all random numbers.
    """
    likelihood = require_likelihood(require_problem(problem), "MC dropout")
    checks.count("draws", draws)
    way = Optimised(epochs, learning_rate, batch_rows)
    way.check(problem)
    _check(apply, problem, likelihood)
    root = keys.root(seed)
    cache.keep_compiled()
    one = lambda purpose: keys.island_keys(root, purpose, 0, np.zeros(1))
    fitted = _fit(
        problem, draw_prior(problem, one(keys.Purpose.PRIOR)), one(keys.Purpose.OPTIMISATION)[0],
        StaticFunction(apply), np.asarray(learning_rate, problem.dtype), np.int32(way.steps(problem)), batch_rows,
    )  # fmt: skip
    uniforms = keys.uniforms(root, keys.Purpose.POSTERIOR, 3, np.zeros(1), draws)[0]
    masks = jnp.asarray(np.floor(uniforms * MASKS), problem.dtype)
    states = _evaluate(problem.for_particles(draws), fitted.position[0], masks, StaticFunction(apply))
    complain(states.log_likelihood, "draws", f"lower learning_rate={learning_rate}", level=2)
    like = {"mask": jax.ShapeDtypeStruct((), problem.dtype), "network": problem.layout.struct()}
    return as_posterior(
        problem,
        states._replace(position=jnp.concatenate([masks[:, None], states.position], axis=1)),
        kind="MC dropout",
        settings=describe(
            "mc_dropout", draws=draws, epochs=epochs, learning_rate=learning_rate, batch_rows=batch_rows
        ),
        epochs=Epochs(epochs + 1, epochs + draws),
        seed=seed,
        layout=Layout.of(like),
        likelihood=dataclasses.replace(likelihood, apply=Thinned(apply)),
    )


@dataclass(frozen=True)
class Thinned:
    """A network with dropout as a function of `{"network": params, "mask": number}`; each number is a fixed mask.

    To read a posterior of `mc_dropout` from a file: `isles.load(path, apply=isles.baselines.Thinned(apply))`.
    """

    apply: KeyedApply

    def __call__(self, params: Params, x: Array) -> Array:
        """Row by row, since a network may draw another mask for each row of a batch."""
        key = _mask_key(params["mask"])
        return jax.vmap(lambda row: self.apply(params["network"], row[None], key)[0])(x)


def _mask_key(number: Array) -> Array:
    return jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), number.astype(jnp.uint32))


def _check(apply: object, problem: Problem, likelihood: Likelihood) -> None:
    """Raise if it is no network with dropout that goes with the problem's."""
    if not callable(apply):
        raise TypeError(f"apply={apply!r} must be a function of (params, x, key)")
    if getattr(likelihood, "noise_std", None) == "learned":
        raise ValueError(
            "MC dropout needs the network's own parameters, and noise_std='learned' adds one to them; give a "
            "number or 'predicted'"
        )
    arguments = problem.layout.struct(), problem.arguments(2)[1][0]
    due = jax.eval_shape(likelihood.apply, *arguments).shape
    try:
        found = jax.eval_shape(apply, *arguments, jax.eval_shape(jax.random.key, 0))
    except TypeError as error:
        raise TypeError(
            f"apply(params, x, key) fails: {error}; its third argument is a key for dropout"
        ) from error
    if getattr(found, "shape", None) != due:
        raise ValueError(
            f"apply(params, x, key) returns {found} for two rows, and the problem's network an array of shape "
            f"{due}; both must be the same network, with and without dropout"
        )


def _keyed(problem: Problem, change: Callable[[Any], Apply], apply: StaticFunction) -> Problem:
    """The problem of the network with dropout."""
    keyed = copy.copy(problem)
    likelihood: Any = problem.log_likelihood
    keyed.log_likelihood = dataclasses.replace(likelihood, apply=change(apply.function))
    return keyed


@partial(jax.jit, static_argnames=("apply", "batch_rows"))
def _fit(
    problem: Problem,
    start: Array,
    key: Array,
    apply: StaticFunction,
    rate: Array,
    steps: Array,
    batch_rows: int | None,
) -> Climb:
    whole = problem.rows if batch_rows is None else batch_rows
    problem = copy.copy(problem)
    problem.chunk_rows = whole  # in one piece, or rows of different chunks would share their masks

    def slope(positions: Array, step: Array) -> Array:
        key_mask, key_rows = jax.random.split(jax.random.fold_in(key, step))
        keyed = _keyed(problem, lambda apply: lambda params, x: apply(params, x, key_mask), apply)
        estimate: Any = minibatches.estimate(keyed, key_rows, positions[0], batch_rows).gradient
        return (estimate + problem.prior.gradient(positions[0]))[None]

    return ascent.ascend(slope, ascent.foot(start, steps), rate, steps)


@partial(jax.jit, static_argnames="apply")
def _evaluate(problem: Problem, position: Array, masks: Array, apply: StaticFunction) -> State:
    def one(mask: Array) -> State:
        change = lambda apply: lambda params, x: Thinned(apply)({"network": params, "mask": mask}, x)
        return _keyed(problem, change, apply).evaluate(position, gradient=False)

    return jax.lax.map(one, masks, batch_size=64)
