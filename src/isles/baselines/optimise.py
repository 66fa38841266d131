"""Optimised parameters: maximum a posteriori, maximum likelihood, and ensembles of either.

Every start is a row of one vectorised program over the problem's own chunks of data, so a step is one epoch.
"""

from __future__ import annotations

import warnings
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import cache, checks, keys
from isles.checks import DeadIslandsError, IslesWarning
from isles.likelihoods import known
from isles.posterior import Epochs, Posterior
from isles.problem import Problem, State


def map_estimate(
    problem: Problem,
    *,
    epochs: int = 1000,
    learning_rate: float = 0.01,
    starts: int = 1,
    prior: bool = True,
    seed: int = 0,
) -> Posterior:
    """The parameters of the highest posterior density that Adam finds, as a posterior of one draw.

    Args:
        problem: what to fit.
        epochs: steps, each with the gradient over all data.
        learning_rate: at first; it falls to zero along a cosine. In units of the parameters.
        starts: draws from the prior to start from; the best end is kept.
        prior: whether the prior's density counts; False gives maximum likelihood.
        seed: decides the starts.
    """
    ends = _optimise(problem, checks.count("starts", starts), epochs, learning_rate, prior, seed)
    score = np.asarray(ends.log_likelihood, np.float64) + prior * np.asarray(ends.log_prior, np.float64)
    best = int(np.argmax(np.where(np.isnan(score), -np.inf, score)))
    kind = "MAP estimate" if prior else "maximum likelihood"
    settings = f"map_estimate(epochs={epochs}, learning_rate={learning_rate}, starts={starts}, prior={prior})"
    return _posterior(problem, ends, [best], kind, settings, epochs, seed)


def deep_ensemble(
    problem: Problem,
    members: int = 10,
    *,
    epochs: int = 1000,
    learning_rate: float = 0.01,
    prior: bool = True,
    seed: int = 0,
) -> Posterior:
    """Members optimised from starts of their own, as equally weighted draws.

    Args:
        problem: what to fit.
        members: how many; the first of them do not change when there are more.
        epochs: steps, each with the gradient over all data.
        learning_rate: at first; it falls to zero along a cosine. In units of the parameters.
        prior: whether the prior's density regularises every member; False fits the likelihood alone.
        seed: decides the starts, draws from the prior.
    """
    ends = _optimise(problem, checks.count("members", members), epochs, learning_rate, prior, seed)
    kind = "deep ensemble" if prior else "deep ensemble, maximum likelihood"
    settings = f"deep_ensemble(members={members}, epochs={epochs}, learning_rate={learning_rate}, prior={prior})"
    return _posterior(problem, ends, list(range(members)), kind, settings, epochs, seed)


def _optimise(problem: Problem, starts: int, epochs: int, learning_rate: float, prior: bool, seed: int) -> State:
    """The states, starts first, where Adam ends."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={problem!r} must be an isles.Problem; build one with isles.Problem(prior, ...)")
    epochs = checks.count("epochs", epochs)
    rate = checks.positive("learning_rate", learning_rate)
    _optax()  # raises if it is not there
    cache.keep_compiled()
    problem = problem.for_particles(starts)
    key = keys.particle_keys(keys.root(seed), keys.Purpose.PRIOR, 0, np.zeros(1), starts)
    ends = _run(problem, key, np.asarray(rate, problem.dtype), np.int32(epochs), prior)
    alive = np.isfinite(np.asarray(ends.log_likelihood))
    if not alive.any():
        raise DeadIslandsError(
            f"none of {starts} fits has a usable likelihood: lower learning_rate={learning_rate}, narrow the "
            f"prior that they start from, or evaluate log_likelihood(prior.sample(key)) to see what is wrong"
        )
    if not alive.all():
        lost = starts - int(alive.sum())
        message = f"{lost} of {starts} fits have no usable likelihood and count for nothing: lower learning_rate"
        warnings.warn(message, IslesWarning, stacklevel=3)
    return ends


@partial(jax.jit, static_argnames="prior")
def _run(problem: Problem, key: Array, rate: Array, epochs: Array, prior: bool) -> State:
    optax = _optax()
    adam = optax.scale_by_adam()
    evaluate = problem.over_particles(partial(problem.evaluate, gradient=True))

    def step(number: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        positions, moments = carry
        slope = evaluate(positions).gradient
        if prior:
            slope += problem.over_particles(problem.prior.gradient)(positions)
        move, moments = adam.update(slope, moments)
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * (number / epochs).astype(positions.dtype)))
        return positions + rate * cosine * move, moments

    positions = problem.over_particles(problem.prior.draw)(key)
    positions, _ = jax.lax.fori_loop(0, epochs, step, (positions, adam.init(positions)))
    return evaluate(positions)


def _posterior(
    problem: Problem, ends: State, chosen: list[int], kind: str, settings: str, epochs: int, seed: int
) -> Posterior:
    rows = lambda values: np.asarray(values)[None, chosen]
    starts = len(ends.log_prior)
    log_likelihood = rows(ends.log_likelihood)
    return Posterior(
        layout=problem.layout,
        positions=rows(ends.position),
        log_prior=rows(ends.log_prior),
        log_likelihood=log_likelihood,
        log_weights=np.where(np.isfinite(log_likelihood), 0.0, -np.inf),
        island_log_evidence=None,
        chain_shape=None,
        shared_start=False,
        trace={},
        epochs=Epochs(epochs + 1, starts * (epochs + 1)),
        nonfinite=np.asarray([np.asarray(ends.nonfinite).sum()]),
        dead=np.zeros(1, np.int64),
        island_sums={},
        island_sum_weights=np.zeros(1),
        sampler=settings,
        adaptive=True,
        weighting="equal",
        seed=seed,
        likelihood=known(problem),
        kind=kind,
    )


def _optax() -> ModuleType:
    try:
        import optax
    except ImportError:
        raise ImportError("isles.baselines needs optax; pip install 'isles[baselines]'") from None
    return optax
