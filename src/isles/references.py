"""Problems by name: `package.module:function`, or `package.module:function?name=value&name=value`. No JAX.

Values are whole numbers, numbers or text; commas make a tuple: `isles.builtin:problem?data=digits&hidden=64,32`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

from isles.checks import UnknownProblemError

WHOLE = re.compile(r"[+-]?\d+")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Reference(NamedTuple):
    """Where a problem is, and what its function is called with."""

    module: str
    name: str
    arguments: dict[str, Any]


def parse(text: str) -> Reference:
    """What a reference says.

    >>> parse("mnist:problem?hidden=64,32&prior_std=0.5")
    Reference(module='mnist', name='problem', arguments={'hidden': (64, 32), 'prior_std': 0.5})
    """
    place, has_arguments, query = text.partition("?")
    module, _, name = place.partition(":")
    if not name or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError(
            f"problem={text!r} must be like package.module:function, as mnist:problem for mnist.py, or "
            f"package.module:function?name=value&name=value"
        )
    arguments: dict[str, Any] = {}
    if has_arguments:
        try:
            pairs = parse_qsl(query or "?", keep_blank_values=True, strict_parsing=True, errors="strict")
        except ValueError as error:
            raise ValueError(f"problem={text!r}: {error}; write name=value&name=value after the ?") from None
        for key, value in pairs:
            if not key.isidentifier() or not value or key in arguments:
                fault = (
                    "is given twice"
                    if key in arguments
                    else "has no value"
                    if key.isidentifier()
                    else "is no name"
                )
                raise ValueError(f"problem={text!r}: {key!r} {fault}; write name=value&name=value after the ?")
            arguments[key] = _read(value)
    return Reference(module, name, arguments)


def find(text: str) -> tuple[Any, dict[str, Any]]:
    """What a reference names, imported but not called, and the arguments that fit it."""
    module, name, arguments = parse(text)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnknownProblemError(
            f"problem={text!r} cannot be imported: {error}; run in the folder that holds it, or install it"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UnknownProblemError(f"problem={text!r}: {module} has no {name}; check the spelling")
        found = getattr(found, part)
    if callable(found) or arguments:
        try:
            inspect.signature(found).bind(**arguments)
        except TypeError as error:
            raise UnknownProblemError(
                f"problem={text!r}: {error}; give what {name} takes after the ?, as {module}:{name}?name=value"
            ) from None
    return found, arguments


def write(module: str, name: str, arguments: Mapping[str, Any]) -> str:
    """The inverse of `parse`.

    >>> write("isles.builtin", "problem", {"data": "digits", "hidden": (64, 32)})
    'isles.builtin:problem?data=digits&hidden=64,32'
    """
    values = {
        key: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for key, value in arguments.items()
    }
    query = "&".join(f"{key}={quote(value, safe=',')}" for key, value in values.items())
    return f"{module}:{name}" + (f"?{query}" if query else "")


def _read(value: str) -> Any:
    if "," in value:
        return tuple(_read(part) for part in value.split(",") if part)
    if WHOLE.fullmatch(value):
        return int(value)
    return float(value) if NUMBER.fullmatch(value) else value
