"""Likelihoods of network outputs: each turns `apply(params, x)` into a sum of log densities over rows.

`classification` and `regression` build a `Problem` from a network, a prior and data, and check all three. A
likelihood holds the network and shapes, never data: a posterior keeps it to predict with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import checks
from isles.data_checks import check_inputs, check_labels, check_targets, output_shape
from isles.layout import Params
from isles.preparing import OfNetwork
from isles.priors import Gaussian, PriorLike, flat_prior
from isles.problem import Problem

Apply = Callable[[Params, Array], Array]
Noise = float | str | Callable[[Params], Array]


@dataclass(frozen=True)
class Categorical(OfNetwork):
    """Σ log softmax(apply(params, x))[y]; `apply` returns logits (rows, classes), y is (rows,) labels."""

    apply: Apply
    inputs: tuple[int, ...]  # shape of one row of x
    classes: int

    def __call__(self, params: Params, batch: tuple[Array, Array]) -> Array:
        """The sum over the batch's rows."""
        return jnp.sum(self.scores(params, *batch))

    def scores(self, params: Params, x: Array, y: Array) -> Array:
        """Log probabilities (rows, classes), zero but at the labels."""
        log_probs = jax.nn.log_softmax(self.apply(params, x))
        # a mask instead of an index: the gradient of an index is a scatter, which is slow on CPUs
        chosen = y[:, None] == jnp.arange(log_probs.shape[-1])
        return jnp.where(chosen, log_probs, 0.0)

    def output(self, params: Params, x: Array) -> Array:
        """Logits (rows, classes)."""
        return self.apply(params, x)

    def information(self, params: Params, x: Array) -> tuple[Array, Array]:
        """Log-probabilities and probabilities: see `fisher`."""
        log_probs = jax.nn.log_softmax(self.apply(params, x))
        return log_probs, jnp.exp(log_probs)


@dataclass(frozen=True)
class Bernoulli(OfNetwork):
    """Σ log p(y) with p(1) = sigmoid(apply(params, x)); `apply` returns logits (rows,) or (rows, 1)."""

    apply: Apply
    inputs: tuple[int, ...]  # shape of one row of x
    classes = 2

    def __call__(self, params: Params, batch: tuple[Array, Array]) -> Array:
        """The sum over the batch's rows."""
        return jnp.sum(self.scores(params, *batch))

    def scores(self, params: Params, x: Array, y: Array) -> Array:
        """Log probabilities (rows,) of the labels."""
        return log_bernoulli(self.apply(params, x).reshape(y.shape), y)

    def output(self, params: Params, x: Array) -> Array:
        """Logits (rows, 2), of which the first is zero."""
        logits = self.apply(params, x).reshape(-1)
        return jnp.stack([jnp.zeros_like(logits), logits], axis=-1)

    def information(self, params: Params, x: Array) -> tuple[Array, Array]:
        """Logits and p(1 − p): see `fisher`."""
        logits = self.apply(params, x).reshape(-1, 1)
        return logits, jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits)


@jax.custom_jvp
def log_bernoulli(logits: Array, y: Array) -> Array:
    """log σ(logits) where y is 1, log(1 − σ(logits)) elsewhere; twice as fast as by `jax.nn.log_sigmoid`."""
    signed = jnp.where(y == 1, logits, -logits)
    return jnp.minimum(signed, 0) - jnp.log(1 + jnp.exp(-jnp.abs(logits)))


@log_bernoulli.defjvp
def _log_bernoulli_slope(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    logits, y = primals
    small = jnp.exp(-jnp.abs(logits))  # never overflows
    probability = jnp.where(logits >= 0, 1, small) / (1 + small)
    return log_bernoulli(logits, y), ((y == 1) - probability) * tangents[0]


@dataclass(frozen=True)
class GaussianNoise(OfNetwork):
    """Σ log N(y; mean, std²); for what `apply` returns with each kind of noise, see `regression`."""

    apply: Apply
    noise_std: Noise
    inputs: tuple[int, ...]  # shape of one row of x
    targets: tuple[int, ...]  # shape of one row of y

    def __call__(self, params: Params, batch: tuple[Array, Array]) -> Array:
        """The sum over the batch's rows."""
        return jnp.sum(self.scores(params, *batch))

    def scores(self, params: Params, x: Array, y: Array) -> Array:
        """Log densities of the targets, of the shape of y."""
        mean, std = self.output(params, x)
        z = (y - mean) / std
        return -0.5 * z * z - jnp.log(std) - 0.5 * math.log(2 * math.pi)

    def output(self, params: Params, x: Array) -> tuple[Array, Array]:
        """Means and noise stds, both (rows, *targets)."""
        network = params["network"] if self.noise_std == "learned" else params
        mean = self.apply(network, x)
        if self.noise_std == "learned":
            std = jnp.exp(params["log_noise_std"])
        elif self.noise_std == "predicted":
            mean, log_std = jnp.split(mean, 2, axis=-1)
            std = jnp.exp(log_std)
        elif callable(self.noise_std):
            std = jnp.asarray(self.noise_std(params))
        else:
            std = jnp.asarray(self.noise_std, mean.dtype)
        mean = mean.reshape(len(x), *self.targets)
        return mean, jnp.broadcast_to(std.reshape(mean.shape) if std.size == mean.size else std, mean.shape)

    def information(self, params: Params, x: Array) -> tuple[Array, Array]:
        """Means with 1/σ², and where σ depends on parameters, log σ with 2: see `fisher`."""
        mean, std = (value.reshape(len(x), -1) for value in self.output(params, x))
        if isinstance(self.noise_std, float):
            return mean, std**-2
        values = jnp.concatenate([mean, jnp.log(std)], axis=1)
        return values, jnp.concatenate([std**-2, jnp.full_like(std, 2.0)], axis=1)


Likelihood = Categorical | Bernoulli | GaussianNoise


@dataclass(frozen=True)
class Masked:
    """The sum over those rows of (x, y, counts) where `counts` is true: data padded to a usual size."""

    likelihood: Likelihood

    def __call__(self, params: Params, batch: tuple[Array, Array, Array]) -> Array:
        """The sum over the batch's rows that count."""
        x, y, counts = batch
        scores = self.likelihood.scores(params, x, y)
        return jnp.sum(jnp.where(counts.reshape(-1, *[1] * (scores.ndim - 1)), scores, 0.0))


def known(problem: Problem) -> Likelihood | None:
    """The problem's likelihood, if isles knows what it predicts."""
    return problem.log_likelihood if isinstance(problem.log_likelihood, Likelihood) else None


def inner(problem: Problem) -> Likelihood | None:
    """The same, also where some rows do not count."""
    found = problem.log_likelihood
    return found.likelihood if isinstance(found, Masked) else known(problem)


def fisher(
    likelihood: Likelihood, problem: Problem, position: Array, blocks: tuple[int, int] | None = None
) -> Array:
    """Expected Fisher information (d, d) of the rows of data: Σ_rows Σ_k w_k ∇v_k ∇v_kᵀ.

    v and w, both (rows, k), are what `likelihood.information` gives. A row costs k backward passes. With `blocks`,
    their number n and the parameters b of each, only those along the diagonal, (n, b, b), filled up with zeros.
    """
    layout = problem.layout

    def matrix(params: Params, batch: tuple[Array, ...]) -> Array:
        vector = layout.ravel(params)

        def row(x: Array) -> tuple[Array, Array]:
            def one(vector: Array) -> tuple[Array, Array]:
                values, scales = likelihood.information(layout.unravel(vector), x[None])
                return values[0], scales[0]

            return jax.jacrev(one, has_aux=True)(vector)

        slopes, scales = jax.vmap(row)(batch[0])  # (rows, k, d), (rows, k)
        for counts in batch[2:]:  # of `Masked`
            scales = jnp.where(counts[:, None], scales, 0)
        if blocks is None:
            return jnp.einsum("rk,rki,rkj->ij", scales, slopes, slopes)
        slopes = in_blocks(slopes, blocks)
        return jnp.einsum("rk,rkni,rknj->nij", scales, slopes, slopes)

    slope_bytes = outputs(likelihood, problem) * problem.dimension * problem.dtype.itemsize
    return problem.sum_matrix(matrix, position, row_bytes=3 * slope_bytes)


def in_blocks(vector: Array, blocks: tuple[int, int], fill: float = 0.0) -> Array:
    """A vector (d,), or an array of them, as (..., blocks, parameters of each); the last block is filled up."""
    short = blocks[0] * blocks[1] - vector.shape[-1]
    padding = [(0, 0)] * (vector.ndim - 1) + [(0, short)]
    return jnp.pad(vector, padding, constant_values=fill).reshape(*vector.shape[:-1], *blocks)


def outputs(likelihood: Likelihood, problem: Problem) -> int:
    """k, the numbers of a row whose gradients make up its Fisher information."""
    params, batch = problem.arguments(1)
    return int(jax.eval_shape(likelihood.information, params, batch[0])[0].shape[1])


def classification(
    apply: Apply,
    prior: Gaussian | PriorLike,
    x: Any,
    y: Any,
    *,
    classes: int | None = None,
    chunk_rows: int | None = None,
) -> Problem:
    """A classification problem; `apply(params, x)` returns logits.

    Logits of shape (rows, classes) give a softmax over labels 0..classes−1; logits of shape (rows,) or
    (rows, 1) give a Bernoulli likelihood over labels 0 and 1.

    Args:
        apply: the network.
        prior: the prior of its parameters.
        x: inputs (rows, ...).
        y: labels (rows,).
        classes: how many there are. The network's width says it too and must agree; only labels that are all
            alike need it, since they are most often a mistake.
        chunk_rows: see `Problem`.

    >>> prior = Gaussian(like=np.zeros((4, 3)))
    >>> classification(lambda w, x: x @ w, prior, np.ones((9, 4)), [0, 1, 2] * 3).dimension
    12
    """
    x = check_inputs(x)
    logits = output_shape(apply, prior, x)
    binary = logits in [(len(x),), (len(x), 1)]
    if not binary and (len(logits) != 2 or logits[0] != len(x)):
        raise ValueError(
            f"apply returns logits of shape {logits} for {len(x)} rows of x; it must return (rows, classes), "
            f"or (rows,)"
        )
    width = 2 if binary else logits[1]
    if classes is not None and checks.count("classes", classes, minimum=2) != width:
        raise ValueError(
            f"classes={classes}, but apply returns logits of shape {logits}, which are those of {width} classes; "
            f"change classes, or the network's last layer"
        )
    y = check_labels(y, len(x), width)
    if classes is None and y.min() == y.max():
        raise ValueError(
            f"all {len(y)} labels are {y.min()}: there is nothing to tell apart; check y, or pass "
            f"classes={width} if that is what you have"
        )
    row = x.shape[1:]
    likelihood = Bernoulli(apply, row) if binary else Categorical(apply, row, width)
    return Problem(prior, likelihood, data=(x, y), chunk_rows=chunk_rows)


def regression(
    apply: Apply,
    prior: Gaussian | PriorLike,
    x: Any,
    y: Any,
    *,
    noise_std: Noise,
    chunk_rows: int | None = None,
) -> Problem:
    """A regression problem with Gaussian noise; `apply(params, x)` returns means of the shape of y.

    Args:
        apply: the network.
        prior: the prior of its parameters.
        x: inputs (rows, ...).
        y: targets (rows,) or (rows, outputs).
        noise_std: a number; `"learned"`, one more parameter: parameters become
            `{"network": params, "log_noise_std": ()}` with log std ~ N(0, 1) a priori, so scale y to about 1;
            `"predicted"`: apply returns (rows, 2·outputs), means then log stds; or a function of the parameters.
        chunk_rows: see `Problem`.
    """
    x = check_inputs(x)
    y = check_targets(y, len(x))
    if not isinstance(noise_std, str) and not callable(noise_std):
        noise_std = checks.positive("noise_std", noise_std)
        if not 0 < (rounded := np.asarray(noise_std).astype(flat_prior(prior).layout.dtype)) < np.inf:
            raise ValueError(f"noise_std={noise_std} is {rounded} in {rounded.dtype}; scale y and noise_std")
    returned, expected = output_shape(apply, prior, x), y.shape
    if noise_std == "predicted":
        expected = (len(y), 2 * (y.size // len(y)))
    if returned != expected and not (noise_std != "predicted" and np.prod(returned) == y.size == len(y)):
        raise ValueError(f"apply returns shape {returned}; y of shape {y.shape} needs {expected}")
    if isinstance(noise_std, str) and noise_std not in ("learned", "predicted"):
        raise ValueError(f"noise_std={noise_std!r} must be a number, 'learned', 'predicted' or a function")
    if noise_std == "learned":
        prior = with_noise_parameter(prior)
    likelihood = GaussianNoise(apply, noise_std, x.shape[1:], y.shape[1:])
    return Problem(prior, likelihood, data=(x, y), chunk_rows=chunk_rows)


def with_noise_parameter(prior: Gaussian | PriorLike) -> Gaussian:
    """The prior of `{"network": ..., "log_noise_std": ()}`, with log std ~ N(0, 1)."""
    if not isinstance(prior, Gaussian) or prior.dense:
        raise ValueError(
            "noise_std='learned' extends an isles.Gaussian prior with stds; for another prior, put the noise "
            "into your own parameters and pass noise_std=lambda params: ..."
        )
    mean, std = prior.layout.unravel(prior.mean), prior.layout.unravel(prior.factor)
    like = {"network": prior.layout.struct(), "log_noise_std": jax.ShapeDtypeStruct((), prior.layout.dtype)}
    return Gaussian(like, {"network": mean, "log_noise_std": 0.0}, {"network": std, "log_noise_std": 1.0})
