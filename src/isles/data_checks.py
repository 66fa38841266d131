"""Checks of data and of the network that is to fit them: each gives the value, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isles.priors import Gaussian, PriorLike, flat_prior

ADAPTERS = {  # of modules that are no functions of (params, x)
    "flax.linen": "from_linen(module, x)",
    "flax.nnx": "from_nnx(module)",
    "equinox": "from_equinox(module)",
}


def check_inputs(x: Any, row: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    """Inputs as an array of finite numbers, whose rows have the shape `row` if it is given."""
    try:
        x = np.asarray(x)
    except ValueError as error:
        raise ValueError(f"x is not an array: {error}; give rows of equal shapes") from None
    if x.dtype == object:
        raise TypeError("x holds Python objects; convert it to a numeric array first")
    if not (jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool):
        raise TypeError(f"x has dtype {x.dtype}; convert it to numbers first")
    if x.ndim == 0 or len(x) == 0:
        raise ValueError(f"x has shape {x.shape}; it needs rows, one a datum")
    if row is not None and x.shape[1:] != row:
        raise ValueError(
            f"x has shape {x.shape}, but the network was given rows of shape {row}; "
            f"x must have shape (rows{''.join(f', {size}' for size in row)}{'' if row else ','})"
            + (": x[None] for a single row" if x.shape == row else "")
        )
    if np.issubdtype(x.dtype, np.floating) and (bad := _not_finite(x)):
        raise ValueError(f"x holds {bad} values that are not finite in {_working(x)}; impute or remove them first")
    return x


def check_labels(y: Any, rows: int, classes: int) -> np.ndarray[Any, Any]:
    """Labels (rows,) as int32 in 0..classes−1."""
    y = np.asarray(y)
    if y.shape != (rows,):
        hint = ": y.ravel()?" if y.size == rows else "; give a label for each row"
        raise ValueError(f"y has shape {y.shape}; {rows} rows of x need labels of shape ({rows},){hint}")
    if y.dtype.kind not in "biuf" or not (y == np.floor(y)).all():
        raise ValueError(f"labels must be whole numbers 0, 1, ..., got dtype {y.dtype}; encode them first")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(
            f"labels run from {y.min()} to {y.max()}, but the network has {classes} classes; "
            f"labels must lie in 0..{classes - 1}"
        )
    return y.astype(np.int32)


def check_targets(y: Any, rows: int, row: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    """Targets as finite floats, one row for each row of x; of the shape `row` if it is given."""
    try:
        y = np.asarray(y, float)
    except (TypeError, ValueError):
        raise TypeError(f"y has dtype {np.asarray(y).dtype}; convert it to numbers first") from None
    if y.ndim == 0:
        raise ValueError(f"y has shape (); {rows} rows of x need as many targets")
    if len(y) != rows:
        raise ValueError(f"x has {rows} rows and y has {len(y)}; they must match")
    if row is not None and y.shape[1:] != row:
        raise ValueError(f"y has shape {y.shape}; it must have shape {(rows, *row)}")
    if bad := _not_finite(y):
        raise ValueError(f"y holds {bad} values that are not finite in {_working(y)}; remove or scale those rows")
    return y


def _working(values: np.ndarray[Any, Any]) -> np.dtype[Any]:
    return np.dtype(jax.dtypes.canonicalize_dtype(values.dtype))


def _not_finite(values: np.ndarray[Any, Any]) -> int:
    """How many are not, once they are in the dtype that JAX works in."""
    with np.errstate(over="ignore"):
        return int(np.count_nonzero(~np.isfinite(values.astype(_working(values)))))


def output_shape(
    apply: Callable[..., Any], prior: Gaussian | PriorLike, x: np.ndarray[Any, Any]
) -> tuple[int, ...]:
    """What a network returns for x, if it can be called at all and gives floating-point numbers."""
    if not callable(apply):
        raise TypeError(f"apply={apply!r} must be a function of (params, x)")
    params = flat_prior(prior).layout.struct()
    struct = jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))
    try:
        output = jax.eval_shape(apply, params, struct)
    except Exception as error:
        for library, adapter in ADAPTERS.items():
            if any(kind.__module__.startswith(library) for kind in type(apply).__mro__):
                raise TypeError(
                    f"apply is a {type(apply).__name__} of {library}, not a function of (params, x); "
                    f"take apply, params = isles.{adapter}, and like=params for the prior"
                ) from error
        if not isinstance(error, TypeError | ValueError | KeyError | IndexError):
            raise
        raise ValueError(
            f"apply(params, x) fails for x of shape {x.shape} and parameters of the prior's shapes: {error!r}; "
            f"{_remedy(error)}"
        ) from error
    if not hasattr(output, "shape"):
        raise TypeError(
            f"apply returns {type(output).__name__}; it must return one array, a row for each row of x"
        )
    if not jnp.issubdtype(output.dtype, jnp.floating):
        raise TypeError(
            f"apply returns dtype {output.dtype}; logits and means must be floating point, with gradients: leave "
            f"out rounding, argmax and casts"
        )
    return tuple(output.shape)


def _remedy(error: Exception) -> str:
    """What to do about a network that cannot be called."""
    if isinstance(error, jax.errors.JAXTypeError):
        return "write apply with jax.numpy alone, without NumPy and without Python's if and float() on values"
    if "positional argument" in str(error):
        return "write it as a function of both, apply(params, x)"
    return "the prior's like= and the network's input width must fit x"
