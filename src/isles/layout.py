"""The shape of a user's parameters: any pytree of floating arrays, and one flat vector for the samplers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Params = Any  # a pytree of floating-point arrays: a dict, a list, a single array, ...


@dataclass(frozen=True)
class Layout:
    """Where each leaf of the parameters lies in the flat vector.

    >>> layout = Layout.of({"w": np.zeros((2, 3), np.float32), "b": np.float32(0.0)})
    >>> layout.size, layout.names
    (7, ('b', 'w'))
    """

    treedef: jax.tree_util.PyTreeDef
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, params: Params) -> Layout:
        """The layout of `params`, which may hold arrays or `jax.ShapeDtypeStruct`s."""
        paths, treedef = jax.tree_util.tree_flatten_with_path(params)
        if not paths:
            raise ValueError(f"parameters {params!r} hold no array; give a pytree with at least one leaf")
        names, shapes, dtypes = [], [], []
        for path, leaf in paths:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(leaf))
            if not jnp.issubdtype(dtype, jnp.floating):
                raise TypeError(
                    f"parameter {name or 'array'} has dtype {dtype}; samplers move floating-point numbers only: "
                    f"write it as a float array, or keep it out of the parameters"
                )
            names.append(name)
            shapes.append(tuple(np.shape(leaf)))
            dtypes.append(str(dtype))
        if sum(math.prod(shape) for shape in shapes) == 0:
            raise ValueError("parameters have no coordinates: every leaf is empty")
        return cls(treedef, tuple(names), tuple(shapes), tuple(dtypes))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each leaf."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """Number of coordinates in all: d."""
        return sum(self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Working dtype of the flat vector: float64 if a leaf has it, float32 otherwise."""
        return np.dtype("float64" if "float64" in self.dtypes else "float32")

    def ravel(self, params: Params) -> Array:
        """Parameters to a vector (d,)."""
        leaves, treedef = jax.tree.flatten(params)
        if treedef != self.treedef or tuple(map(np.shape, leaves)) != self.shapes:
            raise ValueError(
                f"parameters of structure {treedef} and shapes {[np.shape(leaf) for leaf in leaves]} do not match "
                f"{self.treedef} with shapes {list(self.shapes)}"
            )
        return jnp.concatenate([jnp.ravel(leaf).astype(self.dtype) for leaf in leaves])

    def unravel(self, vector: Array) -> Params:
        """A vector (d,) to parameters."""
        pieces = jnp.split(vector, np.cumsum(self.sizes)[:-1])
        leaves = [
            piece.reshape(shape).astype(jax.dtypes.canonicalize_dtype(dtype))
            for piece, shape, dtype in zip(pieces, self.shapes, self.dtypes, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, leaves)

    def unravel_numpy(self, vectors: np.ndarray[Any, Any]) -> Params:
        """Vectors (..., d) on the host to parameters whose leaves have the same leading axes."""
        pieces = np.split(vectors, np.cumsum(self.sizes)[:-1], axis=-1)
        leaves = [
            piece.reshape(vectors.shape[:-1] + shape) for piece, shape in zip(pieces, self.shapes, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, leaves)

    def broadcast(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        """A scalar, a pytree prefix of scalars or arrays, or a full pytree, as one float64 vector (d,)."""
        if jax.tree_util.treedef_is_leaf(self.treedef):
            value = np.asarray(value)  # a list for a single array means its entries, not a pytree
        try:
            leaves = jax.tree.leaves(jax.tree.broadcast(value, self.struct()))
        except ValueError as error:
            raise ValueError(
                f"{name} must be a number, or a pytree that matches the parameters "
                f"({', '.join(self.names)}): {error}"
            ) from None
        pieces = []
        for leaf, path, shape in zip(leaves, self.names, self.shapes, strict=True):
            try:
                array = np.asarray(leaf, np.float64)
            except (TypeError, ValueError):
                raise TypeError(
                    f"{name} for parameter {path or 'array'} is {leaf!r}; give numbers, in the structure of like="
                ) from None
            try:
                pieces.append(np.broadcast_to(array, shape).ravel())
            except ValueError:
                raise ValueError(
                    f"{name} for parameter {path or 'array'} has shape {array.shape}, "
                    f"which does not broadcast to {shape}"
                ) from None
        return np.concatenate(pieces)

    def shapes_as_leaves(self) -> list[jax.ShapeDtypeStruct]:
        """One `jax.ShapeDtypeStruct` a leaf."""
        return [
            jax.ShapeDtypeStruct(shape, np.dtype(dtype))
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    def struct(self) -> Params:
        """The parameters as a pytree of `jax.ShapeDtypeStruct`s."""
        return jax.tree.unflatten(self.treedef, self.shapes_as_leaves())


class StaticFunction:
    """A user's function as a static argument of jit, also where it is not hashable."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        try:
            self.hash = hash(function)
        except TypeError:
            self.hash = id(function)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StaticFunction) or self.hash != other.hash:
            return False
        return self.function is other.function or bool(self.function == other.function)
