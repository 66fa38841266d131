"""What is sampled, with its truth: Gaussians, a mixture of two, and the logistic regression on credit data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

import isles

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Target:
    """A posterior whose moments and evidence are known."""

    problem: isles.Problem
    mean: Floats  # (d,)
    covariance: Floats  # (d, d)
    log_evidence: float


def linear(theta: Any, x: Any) -> Any:
    """The model of all regressions here; one function for all, so that one compiled program serves them."""
    return x @ theta


@lru_cache(maxsize=16)
def gaussian(
    draw: int = 0, *, observations: int = 4, noise: float = 0.01, dimension: int = 16, ones: bool = False
) -> Target:
    """y = Xθ + ν with θ ~ N(0, I), ν ~ N(0, noise² I), X_ij ~ N(0, 1): the paper's Appendix D.3.

    Args:
        draw: of X, y and the θ that y comes from, a prior draw.
        observations: m.
        noise: standard deviation of ν.
        dimension: d.
        ones: whether that θ is 1 in every coordinate, as in the paper's Section 3.
    """
    rng = np.random.default_rng([draw, observations, dimension])
    x = rng.normal(size=(observations, dimension)).astype(np.float32)
    theta = rng.normal(size=dimension)
    theta = np.ones(dimension) if ones else theta
    y = (x @ theta + noise * rng.normal(size=observations)).astype(np.float32)
    exact_x, exact_y = x.astype(np.float64), y.astype(np.float64)  # as the sampler has them
    covariance = np.linalg.inv(np.eye(dimension) + exact_x.T @ exact_x / noise**2)
    marginal = noise**2 * np.eye(observations) + exact_x @ exact_x.T
    log_evidence = -0.5 * (
        exact_y @ np.linalg.solve(marginal, exact_y) + np.linalg.slogdet(2 * np.pi * marginal)[1]
    )
    prior = isles.Gaussian(like=np.zeros(dimension, np.float32))
    problem = isles.regression(linear, prior, x, y, noise_std=noise)
    return Target(problem, covariance @ exact_x.T @ exact_y / noise**2, covariance, float(log_evidence))


def mixture_ratio(theta: Any) -> Any:
    """log of [0.2 N(θ; 1, I) + 0.8 N(θ; −1, I)] / N(θ; 0, I)."""
    total = jnp.sum(theta)
    return jnp.logaddexp(np.log(0.2) + total, np.log(0.8) - total) - 0.5 * theta.size


@lru_cache(maxsize=4)
def mixture(dimension: int = 16) -> Target:
    """0.2 N(1, I) + 0.8 N(−1, I) as the posterior of a prior N(0, I), where the paper starts all methods."""
    problem = isles.Problem(isles.Gaussian(like=np.zeros(dimension, np.float32)), mixture_ratio)
    spread = (1 - 0.6**2) * np.ones((dimension, dimension))  # the centres ±1 with mean −0.6
    return Target(problem, np.full(dimension, -0.6), np.eye(dimension) + spread, 0.0)


@lru_cache(maxsize=1)
def credit() -> isles.Problem:
    """Logistic regression on the 690 rows of Australian credit: 15 coefficients with prior N(0, 100)."""
    data = isles.data.load("australian")
    prior = isles.Gaussian(like=np.zeros(data.x_train.shape[1], np.float32), std=10.0)
    return isles.classification(linear, prior, data.x_train, data.y_train)
