"""Priors that sample, score and whiten from one definition. Data and likelihoods do not live here.

A user meets parameters as pytrees (`sample`, `log_prob`); kernels meet flat vectors (`draw`, `log_density`,
`log_ratio`, `gradient`, `whiten`).
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular

from isles.lanes import lay
from isles.layout import Layout, Params


class PriorLike(Protocol):
    """What a user's own prior needs: draws and a normalised log density that belong together."""

    def sample(self, key: Array) -> Params:
        """One draw."""
        ...

    def log_prob(self, params: Params) -> Array:
        """Log density, a scalar."""
        ...


@jax.tree_util.register_pytree_node_class
class Gaussian:
    r"""A Gaussian prior N(mean, C) over any pytree of parameters.

    θ = mean + F z with z ~ N(0, I), where F = diag(std), or the Cholesky factor of `covariance`. Draws,
    density and whitening all come from this one pair (mean, F), so they cannot disagree.

    Args:
        like: parameters, or their shapes; only structure, shapes and dtypes are read.
        mean: a number, numbers per leaf, or a full pytree; broadcast.
        std: likewise, all positive; 1.0 when neither `std` nor `covariance` is given.
        covariance: a (d, d) matrix in the order of `jax.flatten_util.ravel_pytree(like)`, for small problems.

    >>> prior = Gaussian(like={"w": np.zeros((3, 2)), "b": np.zeros(2)}, std={"w": 0.5, "b": 0.1})
    >>> prior.sample(jax.random.key(0))["w"].shape
    (3, 2)
    """

    mean: Array  # (d,)
    factor: Array  # (d,) standard deviations, or (d, d) lower triangular
    layout: Layout
    dense: bool

    def __init__(self, like: Params, mean: Any = 0.0, std: Any = None, *, covariance: Any = None) -> None:
        self.layout = layout = Layout.of(like)
        self.mean = _cast("mean", _finite("mean", layout.broadcast("mean", mean)), layout)
        if covariance is None:
            stds = _finite("std", layout.broadcast("std", 1.0 if std is None else std))
            if not (stds > 0).all():
                raise ValueError(f"std={stds.min()} must be positive for every parameter")
            self.factor, self.dense = _cast("std", stds, layout), False
        else:
            if std is not None:
                raise ValueError("give std or covariance, not both")
            self.factor, self.dense = _cast("covariance", _cholesky(covariance, layout.size), layout), True

    def tree_flatten(self) -> tuple[tuple[Array, Array], tuple[Layout, bool]]:
        """Arrays are traced by jit; the rest is part of the program."""
        return (self.mean, self.factor), (self.layout, self.dense)

    @classmethod
    def tree_unflatten(cls, static: tuple[Layout, bool], arrays: tuple[Array, Array]) -> Gaussian:
        """The inverse of `tree_flatten`."""
        prior = object.__new__(cls)
        (prior.mean, prior.factor), (prior.layout, prior.dense) = arrays, static
        return prior

    def sample(self, key: Array) -> Params:
        """One draw, as parameters."""
        return self.layout.unravel(self.draw(key))

    def log_prob(self, params: Params) -> Array:
        """Log density of parameters."""
        return self.log_density(self.layout.ravel(params))

    def draw(self, key: Array) -> Array:
        """One draw, as a vector (d,)."""
        return self.unwhiten(jax.random.normal(key, self.mean.shape, self.mean.dtype))

    def log_density(self, vector: Array) -> Array:
        """Log density of a vector (d,)."""
        z = self.whiten(vector)
        scales = jnp.diagonal(self.factor) if self.dense else self.factor
        return -0.5 * z @ z - jnp.sum(jnp.log(scales)) - 0.5 * z.size * math.log(2 * math.pi)

    def log_ratio(self, new: Array, old: Array) -> Array:
        """log p(new) − log p(old) from differences, method.md (24): exact to rounding though both be large."""
        gap = self._solve(old - new)  # whitened after the subtraction, which loses nothing
        return 0.5 * jnp.sum(lay(gap * (self.whiten(old) + self.whiten(new))))

    def gradient(self, vector: Array) -> Array:
        """Gradient of the log density."""
        if self.dense:
            return -solve_triangular(self.factor, self.whiten(vector), lower=True, trans=1)
        return (self.mean - vector) * (1 / self.factor**2)  # one product a parameter, in the innermost loop

    def whiten(self, vector: Array) -> Array:
        """z with vector = mean + F z; standard normal under the prior."""
        return self._solve(vector - self.mean)

    def unwhiten(self, z: Array) -> Array:
        """mean + F z."""
        return self.mean + (self.factor @ z if self.dense else self.factor * z)

    def _solve(self, vector: Array) -> Array:
        return solve_triangular(self.factor, vector, lower=True) if self.dense else vector / self.factor

    def variances(self) -> np.ndarray[Any, Any]:
        """Marginal prior variances (d,), on the host in float64."""
        factor = np.asarray(self.factor, np.float64)
        return (factor**2).sum(axis=1) if self.dense else factor**2


@jax.tree_util.register_static
class Custom:
    """A user's own `sample`/`log_prob` pair, in the flat form that kernels use."""

    def __init__(self, prior: PriorLike) -> None:
        self.prior = prior
        key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
        self.layout = Layout.of(jax.eval_shape(prior.sample, key))
        score = jax.eval_shape(prior.log_prob, self.layout.struct())
        if np.shape(score) != () or not jnp.issubdtype(score.dtype, jnp.floating):
            raise ValueError(
                f"prior.log_prob returns shape {np.shape(score)} and dtype {getattr(score, 'dtype', '?')}; "
                f"it must return one floating-point scalar: sum over the parameters"
            )

    def draw(self, key: Array) -> Array:
        """One draw, as a vector (d,)."""
        return self.layout.ravel(self.prior.sample(key))

    def log_density(self, vector: Array) -> Array:
        """Log density of a vector (d,); NaN and +inf count as outside the support."""
        value = self._score(vector)
        return jnp.where(_is_no_number(value), -jnp.inf, value)

    def is_broken(self, vector: Array) -> Array:
        """Whether the density of a vector is no number: NaN, or +inf."""
        return _is_no_number(self._score(vector))

    def _score(self, vector: Array) -> Array:
        return jnp.asarray(self.prior.log_prob(self.layout.unravel(vector)), self.layout.dtype)

    def log_ratio(self, new: Array, old: Array) -> Array:
        """log p(new) − log p(old)."""
        return self.log_density(new) - self.log_density(old)

    def gradient(self, vector: Array) -> Array:
        """Gradient of the log density, zero where it is not finite."""
        slope = jax.grad(self.log_density)(vector)
        return jnp.where(jnp.isfinite(slope), slope, 0.0)

    def variances(self) -> np.ndarray[Any, Any]:
        """Marginal variances (d,) of 1024 prior draws; sets first scales only, so a fixed key will do."""
        draws = jax.vmap(self.draw)(jax.random.split(jax.random.key(0), 1024))
        variances = np.asarray(draws, np.float64).var(axis=0)
        return np.where(np.isfinite(variances) & (variances > 0), variances, 1.0)


def _is_no_number(log_density: Array) -> Array:
    return jnp.isnan(log_density) | (log_density == jnp.inf)


def flat_prior(prior: object) -> Gaussian | Custom:
    """`prior` in the flat form, or an error that says what a prior needs."""
    if isinstance(prior, Gaussian | Custom):
        return prior
    if (
        not isinstance(prior, type)
        and callable(getattr(prior, "sample", None))
        and callable(getattr(prior, "log_prob", None))
    ):
        return Custom(prior)  # type: ignore[arg-type]
    raise TypeError(
        f"prior={prior!r} must be isles.Gaussian(...) or an object with sample(key) and log_prob(params)"
    )


def _finite(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds {values[~np.isfinite(values)][0]}; every value must be finite")
    return values


def _cast(name: str, values: np.ndarray[Any, Any], layout: Layout) -> Array:
    """`values` in the working dtype, if none of them overflows or vanishes there."""
    with np.errstate(over="ignore", under="ignore"):
        cast = values.astype(layout.dtype)
    if not np.isfinite(cast).all() or ((cast == 0) & (values != 0)).any():
        raise ValueError(f"{name} between {values.min():.3g} and {values.max():.3g} does not fit {layout.dtype}")
    return jnp.asarray(cast)


def _cholesky(covariance: Any, size: int) -> np.ndarray[Any, Any]:
    matrix = np.asarray(covariance, np.float64)
    if matrix.shape != (size, size):
        raise ValueError(f"covariance has shape {matrix.shape}; {size} parameters need ({size}, {size})")
    _finite("covariance", matrix)
    if not np.allclose(matrix, matrix.T, rtol=1e-5, atol=1e-8 * np.abs(matrix).max()):
        raise ValueError("covariance must be symmetric; write (C + C.T) / 2")
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(matrix)[0]
        raise ValueError(
            f"covariance must be positive definite; its smallest eigenvalue is {smallest:.3g}"
        ) from None
