"""How a network written for stacked particles becomes `apply(params, x)` of one, fast under `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from isles.layout import Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prepared:
    """Inputs of a network, and what it makes of them before it looks at parameters: once, for many calls."""

    x: Array  # (rows, ...)
    seen: Array

    def __len__(self) -> int:
        return len(self.x)


class Network(Protocol):
    """What `side_by_side` needs; hashable."""

    def plain(self, params: Params, x: Array) -> Array:
        """Outputs (rows, outputs) of one particle."""
        ...

    def _forward(self, params: Params, seen: Array) -> tuple[Array, Any]:
        """Stacked params (particles, ...) and what is seen of x to outputs (particles, outputs, rows), and what
        the backward pass needs, particles first.
        """
        ...

    def _backward(self, params: Params, seen: Array, kept: Any, slope: Array) -> Params:
        """The slopes of the stacked params from those of the outputs."""
        ...


@lru_cache
def side_by_side(network: Network) -> Callable[[Params, Array, Array], Array]:
    """`apply(params, x, seen)` of one particle, whose vmap over particles is one pass over all of them.

    `seen` follows from x, whose slopes are those of `plain`.
    """
    run_forward, run_backward = _over_particles(network._forward), _over_particles(network._backward)

    @jax.custom_vjp
    def apply(params: Params, x: Array, seen: Array) -> Array:
        return run_forward(params, seen)[0].T

    def keep(params: Params, x: Array, seen: Array) -> tuple[Array, Any]:
        value, kept = run_forward(params, seen)
        return value.T, (params, x, seen, kept)

    def pull_back(saved: Any, slope: Array) -> tuple[Params, Array, Array]:
        params, x, seen, kept = saved
        (slope_x,) = jax.vjp(lambda x: network.plain(params, x), x)[1](slope)  # costs nothing unless it is used
        return run_backward(params, seen, kept, slope.T), slope_x, jnp.zeros_like(seen)

    apply.defvjp(keep, pull_back)

    def checked(params: Params, x: Array, seen: Array) -> Array:
        dtype = jax.tree.leaves(params)[0].dtype
        return apply(params, x.astype(dtype), seen.astype(dtype))

    return checked


def _over_particles(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of stacked particles, second argument shared, as one of a single particle with its own vmap."""

    def single(params: Params, x: Array, *rest: Any) -> Any:
        one = lambda tree: jax.tree.map(lambda leaf: leaf[None], tree)
        return jax.tree.map(lambda leaf: leaf[0], function(one(params), x, *one(rest)))

    call = custom_vmap(single)

    @call.def_vmap
    def rule(size: int, batched: Any, params: Params, x: Array, *rest: Any) -> Any:
        if batched[1]:  # every particle has its own inputs
            axes = jax.tree.map(lambda flag: 0 if flag else None, tuple(batched))
            value = jax.vmap(single, axes)(params, x, *rest)
        else:
            whole = lambda leaf, flag: leaf if flag else jnp.broadcast_to(leaf, (size, *leaf.shape))
            params, rest = jax.tree.map(whole, (params, rest), (batched[0], tuple(batched[2:])))
            value = function(params, x, *rest)
        return value, jax.tree.map(lambda _: True, value)

    return call
