"""Likelihoods of network outputs: each turns `apply(params, x)` into a sum of log densities over rows.

`classification` and `regression` build a `Problem` from a network, a prior and data, and check all three.
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
from isles.layout import Params
from isles.priors import Gaussian, PriorLike, flat_prior
from isles.problem import Problem

Apply = Callable[[Params, Array], Array]


@dataclass(frozen=True)
class Categorical:
    """Σ log softmax(apply(params, x))[y]; `apply` returns logits (rows, classes), y is (rows,) labels."""

    apply: Apply

    def __call__(self, params: Params, batch: tuple[Array, Array]) -> Array:
        """The sum over the batch's rows."""
        x, y = batch
        log_probs = jax.nn.log_softmax(self.apply(params, x))
        # a mask instead of an index: the gradient of an index is a scatter, which is slow on CPUs
        chosen = y[:, None] == jnp.arange(log_probs.shape[-1])
        return jnp.sum(jnp.where(chosen, log_probs, 0.0))


@dataclass(frozen=True)
class Bernoulli:
    """Σ log p(y) with p(1) = sigmoid(apply(params, x)); `apply` returns logits (rows,) or (rows, 1)."""

    apply: Apply

    def __call__(self, params: Params, batch: tuple[Array, Array]) -> Array:
        """The sum over the batch's rows."""
        x, y = batch
        return jnp.sum(log_bernoulli(self.apply(params, x).reshape(y.shape), y))


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
class GaussianNoise:
    """Σ log N(y; mean, std²); `output(params, x)` returns mean and std, which broadcast to y."""

    output: Callable[[Params, Array], tuple[Array, Array]]

    def __call__(self, params: Params, batch: tuple[Array, Array]) -> Array:
        """The sum over the batch's rows."""
        x, y = batch
        mean, std = self.output(params, x)
        std = jnp.broadcast_to(std.reshape(y.shape) if std.size == y.size else std, y.shape)
        z = (y - mean.reshape(y.shape)) / std
        return jnp.sum(-0.5 * z * z - jnp.log(std) - 0.5 * math.log(2 * math.pi))


def classification(
    apply: Apply, prior: Gaussian | PriorLike, x: Any, y: Any, *, chunk_rows: int | None = None
) -> Problem:
    """A classification problem; `apply(params, x)` returns logits.

    Logits of shape (rows, classes) give a softmax over labels 0..classes−1; logits of shape (rows,) or
    (rows, 1) give a Bernoulli likelihood over labels 0 and 1.

    >>> prior = Gaussian(like=np.zeros((4, 3)))
    >>> classification(lambda w, x: x @ w, prior, np.ones((9, 4)), [0, 1, 2] * 3).dimension
    12
    """
    x, y = _inputs(x), np.asarray(y)
    logits = _output_shape(apply, prior, x)
    if y.shape != (len(x),):
        raise ValueError(f"y has shape {y.shape}; {len(x)} rows of x need labels of shape ({len(x)},): y.ravel()?")
    if y.dtype.kind not in "biuf" or not (y == np.floor(y)).all():
        raise ValueError(f"labels must be whole numbers 0, 1, ..., got dtype {y.dtype}; encode them first")
    binary = logits in [(len(x),), (len(x), 1)]
    if not binary and len(logits) != 2:
        raise ValueError(f"apply returns logits of shape {logits}; it must return (rows, classes), or (rows,)")
    classes = 2 if binary else logits[1]
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(
            f"labels run from {y.min()} to {y.max()}, but the network has {classes} classes; "
            f"labels must lie in 0..{classes - 1}"
        )
    likelihood = Bernoulli(apply) if binary else Categorical(apply)
    return Problem(prior, likelihood, data=(x, y.astype(np.int32)), chunk_rows=chunk_rows)


def regression(
    apply: Apply,
    prior: Gaussian | PriorLike,
    x: Any,
    y: Any,
    *,
    noise_std: float | str | Callable[[Params], Array],
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
    x, y = _inputs(x), np.asarray(y, float)
    if y.ndim == 0:
        raise ValueError(f"y has shape (); {len(x)} rows of x need as many targets")
    if len(y) != len(x):
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}; they must match")
    if not np.isfinite(y).all():
        raise ValueError(
            f"y holds {np.count_nonzero(~np.isfinite(y))} values that are not finite; remove those rows"
        )
    if not isinstance(noise_std, str) and not callable(noise_std):
        noise_std = checks.positive("noise_std", noise_std)
    returned, expected = _output_shape(apply, prior, x), y.shape
    if noise_std == "predicted":
        expected = (len(y), 2 * (y.size // len(y)))
    if returned != expected and not (noise_std != "predicted" and np.prod(returned) == y.size == len(y)):
        raise ValueError(f"apply returns shape {returned}; y of shape {y.shape} needs {expected}")
    output: Callable[[Params, Array], tuple[Array, Array]]
    if noise_std == "learned":
        prior, output = _with_noise_parameter(prior), _LearnedNoise(apply)
    elif noise_std == "predicted":
        output = _PredictedNoise(apply)
    elif callable(noise_std):
        output = _NoiseFunction(apply, noise_std)
    elif isinstance(noise_std, str):
        raise ValueError(f"noise_std={noise_std!r} must be a number, 'learned', 'predicted' or a function")
    else:
        output = _FixedNoise(apply, noise_std)
    return Problem(prior, GaussianNoise(output), data=(x, y), chunk_rows=chunk_rows)


@dataclass(frozen=True)
class _FixedNoise:
    apply: Apply
    std: float

    def __call__(self, params: Params, x: Array) -> tuple[Array, Array]:
        mean = self.apply(params, x)
        return mean, jnp.asarray(self.std, mean.dtype)


@dataclass(frozen=True)
class _LearnedNoise:
    apply: Apply

    def __call__(self, params: Params, x: Array) -> tuple[Array, Array]:
        return self.apply(params["network"], x), jnp.exp(params["log_noise_std"])


@dataclass(frozen=True)
class _NoiseFunction:
    apply: Apply
    std: Callable[[Params], Array]

    def __call__(self, params: Params, x: Array) -> tuple[Array, Array]:
        return self.apply(params, x), jnp.asarray(self.std(params))


@dataclass(frozen=True)
class _PredictedNoise:
    apply: Apply

    def __call__(self, params: Params, x: Array) -> tuple[Array, Array]:
        mean, log_std = jnp.split(self.apply(params, x), 2, axis=-1)
        return mean, jnp.exp(log_std)


def _with_noise_parameter(prior: Gaussian | PriorLike) -> Gaussian:
    if not isinstance(prior, Gaussian) or prior.dense:
        raise ValueError(
            "noise_std='learned' extends an isles.Gaussian prior with stds; for another prior, put the noise "
            "into your own parameters and pass noise_std=lambda params: ..."
        )
    mean, std = prior.layout.unravel(prior.mean), prior.layout.unravel(prior.factor)
    like = {"network": prior.layout.struct(), "log_noise_std": jax.ShapeDtypeStruct((), prior.layout.dtype)}
    return Gaussian(like, {"network": mean, "log_noise_std": 0.0}, {"network": std, "log_noise_std": 1.0})


def _inputs(x: Any) -> np.ndarray[Any, Any]:
    x = np.asarray(x)
    if x.ndim == 0 or len(x) == 0:
        raise ValueError(f"x has shape {x.shape}; it needs rows, one a datum")
    if x.dtype == object:
        raise TypeError("x holds Python objects; convert it to a numeric array first")
    if np.issubdtype(x.dtype, np.floating):
        working = jax.dtypes.canonicalize_dtype(x.dtype)
        with np.errstate(over="ignore"):
            bad = np.count_nonzero(~np.isfinite(x.astype(working)))
        if bad:
            raise ValueError(f"x holds {bad} values that are not finite in {working}; impute or remove them first")
    return x


def _output_shape(apply: Apply, prior: Gaussian | PriorLike, x: np.ndarray[Any, Any]) -> tuple[int, ...]:
    struct = jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))
    output = jax.eval_shape(apply, flat_prior(prior).layout.struct(), struct)
    if not hasattr(output, "shape"):
        raise TypeError(
            f"apply returns {type(output).__name__}; it must return one array, a row for each row of x"
        )
    return tuple(output.shape)
