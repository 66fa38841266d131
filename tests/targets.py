"""Problems known in closed form or by quadrature at every tempering, and a logistic regression, which is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import isles


@dataclass(frozen=True)
class Conjugate:
    """y = Xθ + noise, θ ~ N(m₀, C₀): Gaussian at every tempering."""

    prior_mean: np.ndarray[Any, Any]
    prior_covariance: np.ndarray[Any, Any]
    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    noise_std: float
    problem: isles.Problem

    def tempered(self, tempering: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Mean and covariance of prior × likelihood^λ."""
        prior_precision = np.linalg.inv(self.prior_covariance)
        covariance = np.linalg.inv(prior_precision + tempering * self.x.T @ self.x / self.noise_std**2)
        pull = prior_precision @ self.prior_mean + self.x.T @ self.y * tempering / self.noise_std**2
        return covariance @ pull, covariance

    @property
    def mean(self) -> np.ndarray[Any, Any]:
        return self.tempered(1.0)[0]

    @property
    def covariance(self) -> np.ndarray[Any, Any]:
        return self.tempered(1.0)[1]

    @property
    def log_evidence(self) -> float:
        marginal = self.noise_std**2 * np.eye(len(self.y)) + self.x @ self.prior_covariance @ self.x.T
        log_det = np.linalg.slogdet(2 * np.pi * marginal)[1]
        residual = self.y - self.x @ self.prior_mean
        return float(-0.5 * residual @ np.linalg.solve(marginal, residual) - 0.5 * log_det)


def conjugate(
    dimension: int = 16, rows: int = 32, noise_std: float = 1.0, seed: int = 0, dense: bool = False
) -> Conjugate:
    """The tractable Gaussian of the paper's Section 3 by default; with `dense`, a correlated, shifted prior."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, dimension))
    truth = np.ones(dimension) if noise_std == 1 else rng.normal(size=dimension)
    y = x @ truth + noise_std * rng.normal(size=rows)
    mean, covariance = np.zeros(dimension), np.eye(dimension)
    prior = isles.Gaussian(like=np.zeros(dimension))
    if dense:
        root = rng.normal(size=(dimension, dimension)) / np.sqrt(dimension)
        mean, covariance = rng.normal(size=dimension), root @ root.T + 0.3 * np.eye(dimension)
        prior = isles.Gaussian(like=np.zeros(dimension), mean=mean, covariance=covariance)
    problem = isles.regression(linear, prior, x, y, noise_std=noise_std)
    return Conjugate(mean, covariance, x, y, noise_std, problem)


def linear(theta: jax.Array, x: jax.Array) -> jax.Array:
    return x @ theta


def mixture(dimension: int = 16) -> isles.Problem:
    """0.2 N(1, I) + 0.8 N(−1, I) as a likelihood ratio to the prior N(0, I): log evidence 0."""

    def log_likelihood(theta: jax.Array) -> jax.Array:
        centre = jnp.ones(dimension)
        near = -0.5 * jnp.sum((theta - centre) ** 2) + jnp.log(0.2)
        far = -0.5 * jnp.sum((theta + centre) ** 2) + jnp.log(0.8)
        return jnp.logaddexp(near, far) + 0.5 * jnp.sum(theta**2)

    return isles.Problem(isles.Gaussian(like=np.zeros(dimension)), log_likelihood)


def logistic(dimension: int, rows: int) -> isles.Problem:
    """A logistic regression."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, dimension)).astype(np.float32)
    y = (x @ rng.normal(size=dimension) + rng.logistic(size=rows) > 0).astype(np.float32)

    def log_likelihood(theta: Any, batch: Any) -> Any:
        x, y = batch
        logits = x @ theta
        return jnp.sum(y * logits - jnp.logaddexp(0.0, logits))

    return isles.Problem(isles.Gaussian(like=np.zeros(dimension), std=3.0), log_likelihood, (x, y))


def skewed() -> isles.Problem:
    """A skewed, bimodal density in one dimension under a N(0.3, 1.2²) prior."""
    prior = isles.Gaussian(like=np.zeros(1), mean=0.3, std=1.2)
    return isles.Problem(prior, skewed_log_likelihood)


def skewed_log_likelihood(theta: jax.Array) -> jax.Array:
    t = theta[0]
    return jnp.logaddexp(-2.0 * (t - 1.5) ** 2, -0.7 - 0.5 * (t + 1.5) ** 2) + jnp.tanh(t)


@dataclass(frozen=True)
class Grid:
    """A one-dimensional distribution by quadrature."""

    points: np.ndarray[Any, Any]
    cdf_values: np.ndarray[Any, Any]

    def cdf(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.interp(x, self.points, self.cdf_values)

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
        return np.interp(rng.uniform(size=count), self.cdf_values, self.points)

    def moment(self, power: int) -> float:
        middle = 0.5 * (self.points[1:] + self.points[:-1])
        return float(np.sum(middle**power * np.diff(self.cdf_values)))


def quadrature(log_density: Any, low: float = -8.0, high: float = 8.0, size: int = 40_001) -> Grid:
    points = np.linspace(low, high, size)
    with jax.enable_x64(True):
        log_values = np.asarray(jax.vmap(log_density)(jnp.asarray(points)[:, None]))
    middle = 0.5 * (np.exp(log_values[1:]) + np.exp(log_values[:-1]))
    cdf = np.concatenate([[0.0], np.cumsum(middle)])
    return Grid(points, cdf / cdf[-1])


def skewed_tempered(tempering: float) -> Grid:
    """The skewed target at a tempering."""
    return quadrature(lambda t: tempering * skewed_log_likelihood(t) - 0.5 * ((t[0] - 0.3) / 1.2) ** 2)
