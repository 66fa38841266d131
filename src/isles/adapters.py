"""Networks of Flax and Equinox as `apply(params, x)` with parameters of their own structure.

Each adapter returns a pair: `apply`, and the parameters as they were initialised, to be `like=` of a prior:

    apply, params = isles.from_equinox(network)
    problem = isles.classification(apply, isles.Gaussian(like=params), x, y)

Networks must be functions of their parameters: no dropout, and batch statistics stay as they are.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from isles.layout import Params
from isles.likelihoods import Apply


def from_linen(module: Any, x: Any, *, seed: int = 0) -> tuple[Apply, Params]:
    """A `flax.linen.Module`, initialised with rows x (n, ...).

    Args:
        module: the network.
        x: some inputs, of which only the shape counts.
        seed: of the first parameters.
    """
    linen = _module("flax.linen", "flax")
    _check(module, linen.Module, "flax.linen.Module")
    variables = dict(module.init(jax.random.key(seed), jnp.asarray(x)))
    if "params" not in variables:
        raise ValueError(f"{type(module).__name__} has no parameters, so there is nothing to sample")
    params = variables.pop("params")  # what is left, such as batch statistics, stays as it is

    def apply(params: Params, x: Array) -> Array:
        return module.apply({"params": params, **variables}, x)

    return apply, params


def from_nnx(module: Any) -> tuple[Apply, Params]:
    """A `flax.nnx.Module`. Its parameters become nested dicts, by the names of its attributes."""
    nnx = _module("flax.nnx", "flax")
    _check(module, nnx.Module, "flax.nnx.Module")
    graph, state, rest = nnx.split(module, nnx.Param, ...)
    params = nnx.to_pure_dict(state)
    if not jax.tree.leaves(params):
        raise ValueError(f"{type(module).__name__} has no parameters, so there is nothing to sample")

    def apply(params: Params, x: Array) -> Array:
        filled = jax.tree.map(lambda leaf: leaf, state)  # a copy: the module's own parameters stay
        nnx.replace_by_pure_dict(filled, params)
        return nnx.merge(graph, filled, rest)(x)

    return apply, params


def from_equinox(module: Any) -> tuple[Apply, Params]:
    """An `equinox.Module` that takes one row, as those of `equinox.nn` do; `apply` takes many.

    Its parameters are the module itself with all but its floating-point arrays left out.
    """
    equinox = _module("equinox", "equinox")
    _check(module, equinox.Module, "equinox.Module")
    params, rest = equinox.partition(module, equinox.is_inexact_array)
    if not jax.tree.leaves(params):
        raise ValueError(f"{type(module).__name__} has no parameters, so there is nothing to sample")

    def apply(params: Params, x: Array) -> Array:
        return jax.vmap(equinox.combine(params, rest))(x)

    return apply, params


def _module(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"this adapter needs {extra}; pip install 'isles[{extra}]'") from None


def _check(module: Any, kind: type, name: str) -> None:
    if not isinstance(module, kind):
        given = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        raise TypeError(f"expected an instance of {name}, got {given}; build the network first")
