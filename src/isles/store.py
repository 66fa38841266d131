"""Tensors on disk: safetensors files, written whole or not at all, never a pickle. No sampling lives here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

Tensors = dict[str, np.ndarray[Any, Any]]


def write(path: str | os.PathLike[str], tensors: Tensors, facts: dict[str, Any]) -> None:
    """Write tensors and JSON facts to a temporary name, flush them to disk, then rename."""
    path = Path(path)
    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    content = save(contiguous, metadata={"isles": json.dumps(facts)})
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and facts of a file that `write` wrote."""
    try:
        with safe_open(str(path), framework="np") as file:
            facts = json.loads((file.metadata() or {}).get("isles", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a readable isles file: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"{path} holds tensors, but not of isles; give a file that posterior.save wrote")
    return tensors, facts


def pack(name: str, tree: Any, tensors: Tensors) -> Any:
    """Put the leaves of a tree into `tensors`; return its structure as JSON, None where JSON cannot hold it."""
    leaves = jax.tree.leaves(tree)
    for number, leaf in enumerate(leaves):
        tensors[f"{name}/{number}"] = np.asarray(leaf)
    structure = _structure(jax.tree.unflatten(jax.tree.structure(tree), range(len(leaves))))
    return structure if _plain(structure) else None


def unpack(name: str, structure: Any, tensors: Tensors) -> Any:
    """The inverse of `pack`."""
    kind, content = structure
    if kind == "leaf":
        return tensors[f"{name}/{content}"]
    if kind == "dict":
        return {key: unpack(name, value, tensors) for key, value in content}
    items = [unpack(name, value, tensors) for value in content]
    return items if kind == "list" else tuple(items)


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
