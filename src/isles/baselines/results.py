"""What every baseline returns: draws with their likelihoods as a `Posterior`, and complaints about bad ones."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from isles.checks import DeadIslandsError, IslesWarning
from isles.likelihoods import Likelihood, known
from isles.posterior import Epochs, Posterior
from isles.problem import Problem, State

EVALUATED = 64  # draws at a time


def require_problem(problem: object) -> Problem:
    """A `Problem`, or an error."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={problem!r} must be an isles.Problem; build one with isles.Problem(prior, ...)")
    return problem


def require_likelihood(problem: Problem, what: str) -> Likelihood:
    """The problem's likelihood, where a method has to know what the network predicts."""
    likelihood = known(problem)
    if likelihood is None:
        raise ValueError(
            f"{what} needs to know what the network predicts, and this problem's log_likelihood is your own "
            f"function; build the problem with isles.classification or isles.regression"
        )
    return likelihood


def complain(log_likelihood: Any, what: str, remedy: str, *, level: int = 3) -> None:
    """Warn of draws or fits without a usable likelihood; raise if all of them are so."""
    alive = np.isfinite(np.asarray(log_likelihood))
    lost = alive.size - int(alive.sum())
    if lost == alive.size:
        raise DeadIslandsError(
            f"none of {lost} {what} has a usable likelihood: {remedy}, narrow the prior, or evaluate "
            f"log_likelihood(prior.sample(key)) to see what is wrong"
        )
    if lost:
        message = f"{lost} of {alive.size} {what} have no usable likelihood and count for nothing: {remedy}"
        warnings.warn(message, IslesWarning, stacklevel=level + 1)


@jax.jit
def draw_prior(problem: Problem, keys: Array) -> Array:
    """A prior draw for each key."""
    return problem.over_particles(problem.prior.draw)(keys)


@jax.jit
def evaluate(problem: Problem, positions: Array) -> State:
    """States of draws (R, d): an epoch each."""
    return jax.lax.map(partial(problem.evaluate, gradient=False), positions, batch_size=EVALUATED)


def describe(function: str, **settings: Any) -> str:
    """A call as text."""
    return f"{function}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


def as_posterior(
    problem: Problem,
    states: State,
    *,
    kind: str,
    settings: str,
    epochs: Epochs,
    seed: int,
    islands: int = 1,
    **more: Any,
) -> Posterior:
    """Equally weighted draws from states (islands · draws, ...); those without a likelihood have no weight."""
    by_island = lambda values: np.asarray(values).reshape(islands, -1, *np.shape(values)[1:])
    log_likelihood = by_island(states.log_likelihood)
    fields: dict[str, Any] = {
        "layout": problem.layout,
        "positions": by_island(states.position),
        "log_prior": by_island(states.log_prior),
        "log_likelihood": log_likelihood,
        "log_weights": np.where(np.isfinite(log_likelihood), 0.0, -np.inf),
        "island_log_evidence": None,
        "chain_shape": None,
        "shared_start": False,
        "trace": {},
        "epochs": epochs,
        "nonfinite": by_island(states.nonfinite).sum(axis=1),
        "dead": np.zeros(islands, np.int64),
        "island_sums": {},
        "island_sum_weights": np.zeros(islands),
        "sampler": settings,
        "adaptive": True,
        "weighting": "equal",
        "seed": seed,
        "likelihood": known(problem),
        "kind": kind,
    }
    return Posterior(**fields | more)
