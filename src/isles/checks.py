"""Checks of settings: each gives the value, the rule and the remedy. No numerics live here."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Sequence


class IslesWarning(UserWarning):
    """The result stands, but something about it deserves a look."""


class DeadIslandsError(RuntimeError):
    """No particle of any island has a usable likelihood, so there is nothing to sample from."""


class DeadWorkerError(RuntimeError):
    """Worker processes died on the same block again and again."""


class SettingsError(ValueError):
    """Settings of a run that do not go together; nothing was begun."""


class UnknownProblemError(ValueError):
    """A name of a problem leads to none."""


class FolderError(OSError):
    """A run folder cannot be read or written as asked; the message says what to do."""


class DamagedFileError(FolderError, ValueError):
    """A file's content is not what isles wrote."""


class PartialRunError(RuntimeError):
    """Islands are missing from a run, and nobody has said that this is welcome."""


def count(name: str, value: object, *, minimum: int = 1) -> int:
    """`value` as an int that is at least `minimum`.

    >>> count("particles", 32)
    32
    """
    if isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a whole number, not a bool; write {name}=1 or more")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name}={value!r} must be a whole number of type int, got {type(value).__name__}; "
            f"write {name}={minimum} or more"
        ) from None
    if number < minimum:
        raise ValueError(f"{name}={number} must be at least {minimum}")
    return number


def positive(name: str, value: object) -> float:
    """`value` as a finite float above zero."""
    number = _number(name, value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name}={number} must be positive and finite")
    return number


def fraction(name: str, value: object) -> float:
    """`value` as a float strictly between 0 and 1."""
    number = _number(name, value)
    if not 0 < number < 1:
        raise ValueError(f"{name}={number} must lie strictly between 0 and 1")
    return number


def choice(name: str, value: object, options: Sequence[str]) -> str:
    """`value` if it is one of `options`."""
    if value not in options:
        near = difflib.get_close_matches(str(value), options, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, options))}{hint}")
    return str(value)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a number, not a bool")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r} must be a number, got {type(value).__name__}") from None
