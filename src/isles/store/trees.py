"""Users' pytrees of arrays as tensors, and their structure as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from isles.layout import Layout, Params
from isles.store.files import Tensors


def pack(name: str, tree: Any, tensors: Tensors) -> Any:
    """Put the leaves of a tree into `tensors`; return its structure as JSON, None where JSON cannot hold it."""
    leaves = jax.tree.leaves(tree)
    for number, leaf in enumerate(leaves):
        tensors[f"{name}/{number}"] = np.asarray(leaf)
    structure = _structure(jax.tree.unflatten(jax.tree.structure(tree), range(len(leaves))))
    return structure if _plain(structure) else None


def unpack(name: str, structure: Any, tensors: Mapping[str, Any]) -> Any:
    """The inverse of `pack`."""
    kind, content = structure
    if kind == "leaf":
        return tensors[f"{name}/{content}"]
    if kind == "dict":
        return {key: unpack(name, value, tensors) for key, value in content}
    items = [unpack(name, value, tensors) for value in content]
    return items if kind == "list" else tuple(items)


def describe_layout(layout: Layout) -> dict[str, Any]:
    """The structure of parameters as JSON."""
    structure = jax.tree.unflatten(layout.treedef, range(len(layout.names)))
    return {
        "structure": pack("layout", structure, {}),
        "shapes": [list(shape) for shape in layout.shapes],
        "dtypes": list(layout.dtypes),
    }


def read_layout(stored: dict[str, Any], like: Params = None) -> Layout:
    """The layout that `describe_layout` described; `like` where the parameters are not plain containers."""
    shapes, dtypes = stored["shapes"], stored["dtypes"]
    if like is not None:
        layout = Layout.of(like)
        if [list(shape) for shape in layout.shapes] != shapes:
            raise ValueError(f"the parameters given have shapes {layout.shapes}, those of the file {shapes}")
    elif stored["structure"] is None:
        raise ValueError(
            "these parameters are not plain dicts, lists or tuples; pass like= with the same structure, "
            "or problem="
        )
    else:
        leaves = {f"layout/{i}": jax.ShapeDtypeStruct(tuple(shape), float) for i, shape in enumerate(shapes)}
        layout = Layout.of(unpack("layout", stored["structure"], leaves))
    return dataclasses.replace(layout, dtypes=tuple(dtypes))


def _structure(tree: Any) -> Any:
    if type(tree) is int:
        return ["leaf", tree]
    if type(tree) is dict and all(type(key) is str for key in tree):
        return ["dict", [[key, _structure(value)] for key, value in tree.items()]]
    if type(tree) in (list, tuple):
        return [type(tree).__name__, [_structure(value) for value in tree]]
    return ["unknown", repr(type(tree))]


def _plain(structure: Any) -> bool:
    kind, content = structure
    if kind == "dict":
        return all(_plain(value) for _, value in content)
    return kind == "leaf" or (kind != "unknown" and all(map(_plain, content)))
