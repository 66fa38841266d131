"""The problems that libraries are compared on: each as an `isles.Problem` and as plain JAX functions.

Data are read from the folder that `ISLES_DATA` names: `australian.csv` and `mnist.npz`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import isles
from isles.models import CNN


@dataclass(frozen=True)
class Case:
    """One posterior, with what peers need to sample from it."""

    name: str
    problem: isles.Problem
    like: Any  # shapes of the parameters
    std: float  # of the prior, which is N(0, std²) for every parameter
    plain: Callable[[Any], Any]  # log-likelihood of parameters, as a user of plain JAX writes it
    summary: Callable[[Any], Any] = lambda params: params  # quantities (q,) whose posterior means are compared
    log_evidence: float | None = None  # where it is known

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.like))

    def fused(self, params: Any) -> Any:
        """The log-likelihood that isles evaluates, over all data at once."""
        data = self.problem.data
        return self.problem.log_likelihood(params, *([] if data is None else [data]))

    def log_prior(self, params: Any) -> Any:
        """Log density of the prior."""
        squares = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))
        return -0.5 * squares / self.std**2 - self.dimension * math.log(self.std * math.sqrt(2 * math.pi))

    def draw(self, key: Any, count: int) -> Any:
        """Prior draws; leaves have that leading axis."""
        leaves, structure = jax.tree.flatten(self.like)
        keys = jax.random.split(key, len(leaves))
        draws = [self.std * jax.random.normal(k, (count, *x.shape)) for k, x in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(structure, draws)


def gaussian() -> Case:
    """y ~ N(θ, s²) with θ ~ N(0, 1) in 16 dimensions and no data set: everything is known in closed form."""
    y, s = np.linspace(-2, 2, 16), np.linspace(0.3, 1, 16)

    def log_density(theta: Any, variance: Any) -> Any:
        return -0.5 * jnp.sum((jnp.asarray(y, jnp.float32) - theta) ** 2 / variance + np.log(2 * np.pi * variance))

    log_likelihood = lambda theta: log_density(theta, np.float32(s**2))
    like = jax.ShapeDtypeStruct((16,), jnp.float32)
    problem = isles.Problem(isles.Gaussian(like), log_likelihood)
    return Case(
        "Gaussian, d=16", problem, like, 1.0, log_likelihood, log_evidence=float(log_density(0.0, 1 + s**2))
    )


def credit_data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Australian credit approval: 690 rows of an intercept and 14 standardised features, and labels 0 and 1."""
    table = np.genfromtxt(_folder() / "australian.csv", delimiter=",", skip_header=1)
    features = (table[:, :-1] - table[:, :-1].mean(axis=0)) / table[:, :-1].std(axis=0)
    return np.column_stack([np.ones(len(table)), features]), table[:, -1].astype(np.int32)


def credit() -> Case:
    """Logistic regression on the Australian credit data, N(0, 1) priors on the 15 coefficients."""
    x, y = credit_data()
    x = x.astype(np.float32)
    like = jax.ShapeDtypeStruct((15,), jnp.float32)

    def plain(theta: Any) -> Any:
        logits = x @ theta
        return jnp.sum(y * logits - jnp.logaddexp(0.0, logits))

    problem = isles.classification(lambda theta, x: x @ theta, isles.Gaussian(like), x, y)
    return Case("logistic regression", problem, like, 1.0, plain)


def mnist_cnn(power: float = 1.0) -> Case:
    """A small CNN on the first 1000 images of MNIST, N(0, 0.1²) priors on its 7,890 parameters.

    `power` is that of the likelihood: a small one is where the first stages of tempering lead.
    """
    with np.load(_folder() / "mnist.npz") as file:
        x, y = (file["x_train"][:1000] / 255).astype(np.float32), file["y_train"][:1000].astype(np.int32)
    network, std = CNN(), 0.1
    prior = isles.Gaussian(network.shapes(), std=std)
    whole = isles.classification(network.apply, prior, x, y)
    problem = isles.Problem(prior, lambda params, batch: power * whole.log_likelihood(params, batch), whole.data)

    def plain(params: Any) -> Any:
        log_probs = jax.nn.log_softmax(network.plain(params, x))
        return power * jnp.sum(jnp.take_along_axis(log_probs, y[:, None], axis=1))

    squares = lambda params: jnp.stack([jnp.mean(jnp.square(leaf)) for leaf in jax.tree.leaves(params)])
    return Case("CNN on MNIST", problem, network.shapes(), std, plain, squares)


def _folder() -> Path:
    if "ISLES_DATA" not in os.environ:
        raise RuntimeError("set ISLES_DATA to the folder that holds australian.csv and mnist.npz")
    return Path(os.environ["ISLES_DATA"])
