"""Laplace's approximation: a Gaussian about the MAP estimate, with the curvature of the generalised Gauss-Newton.

The curvature is Σ JᵀFJ over rows plus the prior's precision, with J the Jacobian of the likelihood's parameters
(logits, or means and log stds) and F their Fisher information. It is never negative, unlike the Hessian.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import cache, checks, keys, models
from isles.ascent import Optimised
from isles.baselines.optimise import optimise
from isles.baselines.results import as_posterior, complain, describe, evaluate, require_likelihood, require_problem
from isles.layout import Layout
from isles.likelihoods import Bernoulli, Categorical, GaussianNoise, Likelihood
from isles.posterior import Epochs, Posterior
from isles.priors import Gaussian
from isles.problem import Problem

CHUNK_BYTES = 1 << 26  # of Jacobians at a time
MOST_COORDINATES = 10_000  # of a full covariance

Floats = np.ndarray[Any, np.dtype[np.float64]]


def laplace(
    problem: Problem,
    draws: int = 100,
    *,
    last_layer: bool | Sequence[str] = False,
    epochs: int = 1000,
    learning_rate: float = 0.01,
    batch_rows: int | None = None,
    starts: int = 1,
    seed: int = 0,
) -> Posterior:
    """Draws from N(MAP estimate, Λ⁻¹), with Λ the generalised Gauss-Newton curvature of the log posterior.

    By default Λ is cut down to its diagonal. With `last_layer`, the covariance is full over these parameters, and
    the others stay where the MAP estimate has them. Draws go through the network itself, not its linearisation.
    On a linear-Gaussian model a full covariance is exact, a diagonal gives variances 1/Λ_ii. Cost: that of
    `map_estimate`, one epoch for each row of J (of one datum), and one a draw. The Gaussian's mean is where Adam
    ends, which may be a standard deviation from the optimum after too few epochs: raise them until it stays.

    Args:
        problem: made by `isles.classification` or `isles.regression`, with an `isles.Gaussian` prior.
        draws: equally weighted.
        last_layer: False for all parameters with a diagonal; True for the last layer of a network of
            `isles.models`; or names of parameters, as `["w2", "b2"]`, or `["layers/2"]` for all that begin so.
        epochs: of `map_estimate`, as all that follow.
        learning_rate: at first.
        batch_rows: rows of a step; the curvature takes all rows.
        starts: draws from the prior to start from; the best end is kept.
        seed: decides all random numbers.
    """
    likelihood = require_likelihood(require_problem(problem), "Laplace's approximation")
    checks.count("draws", draws)
    checks.count("starts", starts)
    prior = problem.prior
    if not isinstance(prior, Gaussian):
        raise TypeError(
            f"Laplace's approximation needs a prior with a known curvature, isles.Gaussian; got {prior!r}"
        )
    chosen = None if last_layer is False else _coordinates(problem.layout, likelihood, last_layer)
    cache.keep_compiled()
    ends = optimise(problem, starts, Optimised(epochs, learning_rate, batch_rows), seed)
    score = np.asarray(ends.log_likelihood, np.float64) + np.asarray(ends.log_prior, np.float64)
    mean = np.asarray(ends.position, np.float64)[np.argmax(np.where(np.isnan(score), -np.inf, score))]
    outputs = _outputs(likelihood)
    which = np.arange(problem.dimension) if chosen is None else chosen
    curvature = _curvature(
        problem, jnp.asarray(mean, problem.dtype), jnp.asarray(which), full=chosen is not None,
        rows=int(np.clip(CHUNK_BYTES // (problem.dtype.itemsize * outputs * problem.dimension), 1, problem.rows)),
    )  # fmt: skip
    key = keys.island_keys(keys.root(seed), keys.Purpose.POSTERIOR, 2, np.zeros(1))[0]
    noise = np.asarray(jax.random.normal(key, (draws, len(which)), problem.dtype), np.float64)
    positions = np.repeat(mean[None], draws, axis=0)
    positions[:, which] += _scatter(np.asarray(curvature, np.float64) + _precision(prior, which, chosen), noise)
    states = evaluate(problem.for_particles(draws), jnp.asarray(positions, problem.dtype))
    complain(states.log_likelihood, "draws", "raise epochs, so that the fit is at its optimum", level=2)
    settings: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "batch_rows": batch_rows}
    kind = "Laplace, diagonal" if chosen is None else "Laplace, last layer"
    return as_posterior(
        problem,
        states,
        kind=kind,
        settings=describe("laplace", draws=draws, last_layer=last_layer, **settings, starts=starts),
        epochs=Epochs(epochs + 1 + outputs + 1, starts * (epochs + 1) + outputs + draws),
        seed=seed,
    )


def _coordinates(layout: Layout, likelihood: Likelihood, last_layer: object) -> np.ndarray[Any, Any]:
    """Which of the flat parameters are in the last layer."""
    if last_layer is True:
        network: Any = getattr(likelihood.apply, "__self__", likelihood.apply)
        if isinstance(network, models.MLP):
            names: Sequence[Any] = [f"w{network.layers}", f"b{network.layers}"]
        elif isinstance(network, models.CNN):
            names = ["w", "b"]
        else:
            raise ValueError(
                f"last_layer=True knows networks of isles.models only; name the parameters of yours, some of "
                f"{', '.join(layout.names)}"
            )
        if isinstance(likelihood, GaussianNoise) and likelihood.noise_std == "learned":
            names = [f"network/{name}" for name in names]
    elif isinstance(last_layer, Sequence) and not isinstance(last_layer, str) and last_layer:
        names = last_layer
    else:
        raise TypeError(f"last_layer={last_layer!r} must be True, False or a list of names, as ['w2', 'b2']")
    for name in names:
        if not any(_begins(path, name) for path in layout.names):
            near = difflib.get_close_matches(str(name), layout.names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"last_layer: no parameter is called {name!r}; there are {', '.join(layout.names)}{hint}"
            )
    inside = [any(_begins(path, name) for name in names) for path in layout.names]
    chosen = np.flatnonzero(np.repeat(inside, layout.sizes))
    if len(chosen) > MOST_COORDINATES:
        raise ValueError(
            f"last_layer={last_layer!r} has {len(chosen)} parameters, whose covariance is too large; at most "
            f"{MOST_COORDINATES}: name fewer, or take the diagonal with last_layer=False"
        )
    return chosen


def _begins(path: str, name: object) -> bool:
    return path == name or path.startswith(f"{name}/")


def _outputs(likelihood: Likelihood) -> int:
    """Jacobian rows of one datum."""
    match likelihood:
        case Categorical():
            return likelihood.classes
        case Bernoulli():
            return 1
    return 2 * int(np.prod(likelihood.targets))


def _root(likelihood: Likelihood, params: Any, x: Array) -> Array:
    """A function of the parameters whose Jacobian A has AᵀA = JᵀFJ, of one row x."""
    hold = jax.lax.stop_gradient
    if isinstance(likelihood, GaussianNoise):  # F = diag(1/std², 2) for (mean, log std)
        mean, std = likelihood.output(params, x[None])
        return jnp.concatenate([(mean / hold(std)).ravel(), np.sqrt(2) * jnp.log(std).ravel()])
    logits = likelihood.output(params, x[None])[0]
    if isinstance(likelihood, Bernoulli):
        probability = jax.nn.sigmoid(hold(logits[1]))
        return (jnp.sqrt(probability * (1 - probability)) * logits[1])[None]
    probabilities = jax.nn.softmax(hold(logits))  # F = diag(p) − ppᵀ
    return jnp.sqrt(probabilities) * (logits - probabilities @ logits)


@partial(jax.jit, static_argnames=("full", "rows"))
def _curvature(problem: Problem, position: Array, chosen: Array, full: bool, rows: int) -> Array:
    """Σ AᵀA over all rows, for the chosen coordinates; (k, k), or its diagonal (k,)."""
    x, likelihood = problem.data[0], problem.log_likelihood

    def add(total: Array, part: Array) -> tuple[Array, None]:
        jacobians = jax.vmap(
            lambda row: jax.jacrev(lambda at: _root(likelihood, problem.layout.unravel(at), row))(position)  # type: ignore[arg-type]
        )(part)
        jacobians = jacobians.reshape(-1, position.size)[:, chosen]
        return total + (jacobians.T @ jacobians if full else jnp.sum(jacobians**2, axis=0)), None

    size = chosen.size
    total = jnp.zeros((size, size) if full else size, position.dtype)
    whole = len(x) // rows * rows
    total, _ = jax.lax.scan(add, total, x[:whole].reshape(-1, rows, *x.shape[1:]))
    return total if whole == len(x) else add(total, x[whole:])[0]


def _precision(prior: Gaussian, which: Any, chosen: Any) -> Floats:
    """Of the prior: a matrix for chosen coordinates, else the diagonal."""
    if prior.dense:
        inverse = np.linalg.inv(np.asarray(prior.factor, np.float64))
        matrix = inverse.T @ inverse
        return np.diag(matrix) if chosen is None else matrix[np.ix_(which, which)]
    diagonal = 1 / np.asarray(prior.factor, np.float64)[which] ** 2
    return diagonal if chosen is None else np.diag(diagonal)


def _scatter(curvature: Floats, noise: Floats) -> Floats:
    """Draws (n, k) of N(0, curvature⁻¹) from standard normal noise."""
    if curvature.ndim == 1:
        return noise / np.sqrt(curvature)
    return np.linalg.solve(np.linalg.cholesky(curvature).T, noise.T).T
