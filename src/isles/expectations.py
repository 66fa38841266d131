"""Weighted means of functions of the draws, island by island, evaluated in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isles.layout import Layout, Params, StaticFunction

CHUNK_BYTES = 1 << 26  # of parameters and results held on the device at a time


def island_sums(
    layout: Layout,
    function: Callable[[Params], Any],
    positions: np.ndarray[Any, Any],
    weights: np.ndarray[Any, Any],
) -> Any:
    """Σ_i weights[p, i] · function(θ[p, i]) for each island p: a pytree of float64 arrays (P, ...).

    Args:
        layout: structure of the parameters.
        function: of one draw's parameters; returns a pytree of arrays.
        positions: flat draws (P, N, d).
        weights: (P, N); draws of weight zero are not looked at, so a NaN there does no harm.
    """
    islands, particles, size = positions.shape
    rows, row_weights = positions.reshape(-1, size), np.asarray(weights, np.float64).ravel()
    struct = jax.eval_shape(function, layout.struct())
    if not jax.tree.leaves(struct):
        raise ValueError(f"{function!r} returns no array; it must return a pytree of numbers")
    row_bytes = 8 * (size + sum(int(np.prod(np.shape(leaf))) for leaf in jax.tree.leaves(struct)))
    chunk = int(np.clip(CHUNK_BYTES // row_bytes, 1, len(rows)))
    evaluate = _compiled(layout, StaticFunction(function))
    totals = jax.tree.map(lambda leaf: np.zeros((islands, *np.shape(leaf))), struct)

    def add(total: np.ndarray[Any, Any], values: Any, start: int) -> None:
        values = np.asarray(values, np.float64)
        w = row_weights[start : start + len(values)].reshape(-1, *[1] * (values.ndim - 1))
        owner = np.arange(start, start + len(values)) // particles
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        total[owner[first]] += np.add.reduceat(w * np.where(w == 0, 0.0, values), first, axis=0)

    for start in range(0, len(rows), chunk):
        piece = rows[start : start + chunk]
        padded = np.concatenate(
            [piece, np.repeat(piece[:1], chunk - len(piece), axis=0)]
        )  # one shape, one program
        results = jax.device_get(evaluate(jnp.asarray(padded)))
        jax.tree.map(lambda total, values: add(total, values[: len(piece)], start), totals, results)  # noqa: B023
    return totals


@lru_cache(maxsize=64)  # bounded: users give new lambdas in loops
def _compiled(layout: Layout, function: StaticFunction) -> Callable[[Any], Any]:
    return jax.jit(jax.vmap(lambda vector: function.function(layout.unravel(vector))))
