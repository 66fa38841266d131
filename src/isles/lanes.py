"""Particles side by side in memory: inner loops over many particles instead of over few parameters.

Arrays of particles are (N, d), with the parameters of a particle next to each other, so that XLA's inner loops are
as short as d. Where mutations are traced inside `side_by_side`, kernels that know how ask for the other order of
the same arrays: of every one that they carry or add up, since one left out costs a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint

_wanted: ContextVar[bool] = ContextVar("_wanted", default=False)


@contextlib.contextmanager
def side_by_side(wanted: bool) -> Iterator[None]:
    """Programs that are traced inside have particles side by side, if wanted."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def lay(vector: Array) -> Array:
    """A vector (d,) of one particle, which is one of many under `jax.vmap`."""
    return _lay(vector) if _wanted.get() else vector


def lay_rows(tree: Any) -> Any:
    """Arrays whose first axis is particles."""
    return jax.tree.map(_particles_last, tree) if _wanted.get() else tree


def _particles_last(rows: Array) -> Array:
    return with_layout_constraint(rows, Layout((1, 0))) if rows.ndim == 2 else rows


@jax.custom_jvp
def _lay(vector: Array) -> Array:
    return _asked(vector)


@_lay.defjvp
def _lay_slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _lay(primals[0]), tangents[0]


@jax.custom_batching.custom_vmap
def _asked(vector: Array) -> Array:
    return vector


@_asked.def_vmap
def _asked_of_all(size: int, batched: Any, rows: Array) -> tuple[Array, bool]:
    return _particles_last(rows), True
