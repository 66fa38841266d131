"""Sums over rows of data, a chunk at a time, with what rounding takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from isles.layout import Params
from isles.preparing import Ready

Total = tuple[Array, Array, Any]  # a value, what rounding took from it, and a tree that is summed as it is


def over_chunks(
    function: Callable[..., Any], params: Params, data: Any, size: int, ready: Ready | None = None
) -> Total:
    """Σ over rows of function(params, batch) -> (value, tree)."""
    rows = len(jax.tree.leaves(data)[0])
    size = min(size, rows)
    whole, remainder = divmod(rows, size)

    def chunk(index: Array | int) -> Any:
        if ready is not None:
            return jax.tree.map(partial(jax.lax.dynamic_index_in_dim, index=index, keepdims=False), ready.chunks)
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index * size, size), data)

    value, tree = function(params, chunk(0))
    total = (value, jnp.zeros_like(value), tree)
    if whole > 1:
        step = lambda index, total: add(total, *function(params, chunk(index)))
        total = jax.lax.fori_loop(1, whole, step, total)
    if remainder:  # a user's sum cannot be masked, so the rows left over are a smaller call
        left = jax.tree.map(lambda leaf: leaf[rows - remainder :], data) if ready is None else ready.left
        total = add(total, *function(params, left))
    return total


def add(total: Total, value: Array, tree: Any) -> Total:
    """One more chunk; the value's rounding goes to the low part."""
    high, low, trees = total
    high, error = two_sum(high, value)
    return high, low + error, jax.tree.map(jnp.add, trees, tree)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, and what rounding took from it (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
