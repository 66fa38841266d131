"""Optimised parameters: maximum a posteriori, maximum likelihood, and ensembles of either.

Every start is a row of one vectorised program over the problem's own chunks of data.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from isles import ascent, cache, checks, keys
from isles.ascent import Optimised
from isles.baselines.results import as_posterior, complain, describe, draw_prior, evaluate, require_problem
from isles.posterior import Epochs, Posterior
from isles.problem import Problem, State


def map_estimate(
    problem: Problem,
    *,
    epochs: int = 1000,
    learning_rate: float = 0.01,
    batch_rows: int | None = None,
    starts: int = 1,
    prior: bool = True,
    seed: int = 0,
) -> Posterior:
    """The parameters of the highest posterior density that Adam finds, as a posterior of one draw.

    Args:
        problem: what to fit.
        epochs: passes over the data: as many steps, or more of them with minibatches.
        learning_rate: at first; it falls to zero along a cosine. In units of the parameters.
        batch_rows: rows of a step, drawn with replacement; by default all.
        starts: draws from the prior to start from; the best end is kept.
        prior: whether the prior's density counts; False gives maximum likelihood.
        seed: decides the starts.
    """
    checks.count("starts", starts)
    ends = optimise(problem, starts, Optimised(epochs, learning_rate, batch_rows), seed, prior=prior)
    score = np.asarray(ends.log_likelihood, np.float64) + prior * np.asarray(ends.log_prior, np.float64)
    best = int(np.argmax(np.where(np.isnan(score), -np.inf, score)))
    settings: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "batch_rows": batch_rows}
    return as_posterior(
        problem,
        jax.tree.map(lambda leaf: leaf[best : best + 1], ends),
        kind="MAP estimate" if prior else "maximum likelihood",
        settings=describe("map_estimate", **settings, starts=starts, prior=prior),
        epochs=Epochs(epochs + 1, starts * (epochs + 1)),
        seed=seed,
    )


def deep_ensemble(
    problem: Problem,
    members: int = 10,
    *,
    epochs: int = 1000,
    learning_rate: float = 0.01,
    batch_rows: int | None = None,
    prior: bool = True,
    seed: int = 0,
) -> Posterior:
    """Members optimised from starts of their own, as equally weighted draws.

    Args:
        problem: what to fit.
        members: how many; the first of them do not change when there are more.
        epochs: passes over the data: as many steps, or more of them with minibatches.
        learning_rate: at first; it falls to zero along a cosine. In units of the parameters.
        batch_rows: rows of a step, drawn with replacement for each member by itself; by default all.
        prior: whether the prior's density regularises every member; False fits the likelihood alone.
        seed: decides the starts, draws from the prior.
    """
    checks.count("members", members)
    ends = optimise(problem, members, Optimised(epochs, learning_rate, batch_rows), seed, prior=prior)
    settings: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "batch_rows": batch_rows}
    return as_posterior(
        problem,
        ends,
        kind="deep ensemble" if prior else "deep ensemble, maximum likelihood",
        settings=describe("deep_ensemble", members=members, **settings, prior=prior),
        epochs=Epochs(epochs + 1, members * (epochs + 1)),
        seed=seed,
    )


def optimise(problem: Problem, starts: int, way: Optimised, seed: int, *, prior: bool = True) -> State:
    """The states where climbs from prior draws end; complaints point at the caller's caller."""
    problem = require_problem(problem).for_particles(starts)
    way.check(problem)
    root = keys.root(seed)
    cache.keep_compiled()
    own = lambda purpose: keys.particle_keys(root, purpose, 0, np.zeros(1), starts)
    positions = draw_prior(problem, own(keys.Purpose.PRIOR))
    steps, rate = np.int32(way.steps(problem)), np.asarray(way.learning_rate, problem.dtype)
    rows = own(keys.Purpose.OPTIMISATION)
    foot = ascent.foot(positions, steps, way.shrink)
    end = ascent.climb(problem, foot, rows, rate, steps, way.batch_rows, prior=prior)
    ends = evaluate(problem, end.position)
    complain(ends.log_likelihood, "fits", f"lower learning_rate={way.learning_rate}", level=3)
    return ends
