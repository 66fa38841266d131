"""Values as JSON and tensors: numbers, arrays, and tuples, lists, dicts and known classes of them.

Only classes that are named in `classes` are ever made, so a file cannot name code to run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from isles.checks import DamagedFileError
from isles.store.files import Tensors

Classes = Mapping[str, type]


def encode(value: Any, tensors: Tensors, classes: Classes, path: str = "value") -> Any:
    """`value` as JSON; its arrays go to `tensors`, under names that begin with `path`.

    A class that is not known is only described: it can be compared with another, not decoded.
    """
    inside = lambda item, name: encode(item, tensors, classes, f"{path}/{name}")
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        tensors[path] = np.asarray(value)
        return {"tensor": path}
    if type(value) in (tuple, list):
        return {type(value).__name__: [inside(item, i) for i, item in enumerate(value)]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: inside(item, key) for key, item in value.items()}}
    kind = type(value)
    name = kind.__name__
    fields = _fields(value)
    if fields is not None:
        content = {field: inside(getattr(value, field), field) for field in fields}
        known = classes.get(name) is kind
        return {"class" if known else "foreign": name if known else f"{kind.__module__}.{name}", "fields": content}
    return {"foreign": f"{kind.__module__}.{kind.__qualname__}"}


def decode(content: Any, tensors: Tensors, classes: Classes) -> Any:
    """The inverse of `encode`."""
    try:
        return _decode(content, tensors, classes)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, (DamagedFileError, ForeignClassError)):
            raise
        raise DamagedFileError(f"the content is not what isles writes: {error!r}") from error


class ForeignClassError(ValueError):
    """A value of a class that isles does not know was stored, so only its user can make it again."""


def _decode(content: Any, tensors: Tensors, classes: Classes) -> Any:
    if content is None or isinstance(content, (bool, str, int, float)):
        return content
    inside = lambda item: _decode(item, tensors, classes)
    match content:
        case {"float": str(text)} if text in ("nan", "inf", "-inf"):
            return float(text)
        case {"tensor": str(name)}:
            return tensors[name]
        case {"tuple": list(items)}:
            return tuple(map(inside, items))
        case {"list": list(items)}:
            return list(map(inside, items))
        case {"dict": dict(items)}:
            return {key: inside(item) for key, item in items.items()}
        case {"class": str(name), "fields": dict(items)}:
            return classes[name](**{key: inside(item) for key, item in items.items()})
        case {"foreign": str(name)}:
            raise ForeignClassError(name)
    raise DamagedFileError(f"{str(content)[:100]} is not what isles writes")


def _fields(value: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(value._fields)
    return None
