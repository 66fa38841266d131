"""What differs between the run that a folder holds and the one that is to be continued there, in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from isles.store.folder import Saved


def differences(found: Saved, wanted: Saved) -> list[str]:
    """In settings, problem and what decides numbers; versions are not looked at."""
    lines = []
    for section in ("settings", "problem", "numbers"):
        old, new = found.facts.get(section, {}), wanted.facts[section]
        lines += [
            _difference(name, old.get(name), new.get(name))
            for name in dict.fromkeys([*new, *old])
            if old.get(name) != new.get(name) and name not in ("reference", "sampler", "sampler_text")
        ]
        if section == "settings":
            lines += _sampler_differences("sampler", old.get("sampler"), new["sampler"])
            if not lines and old.get("sampler_text") != new["sampler_text"]:  # of a class of the user's
                lines.append(_difference("sampler", old.get("sampler_text"), new["sampler_text"]))
    if not lines and not _same_tensors(found, wanted):
        lines.append("the sampler was frozen on another pilot run")
    return lines


def _difference(name: str, old: Any, new: Any) -> str:
    if name in ("data", "prior", "likelihood"):
        return f"the {name} differs from the one that the run was begun with"
    if isinstance(old, dict) and isinstance(new, dict):
        names = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return f"{name} differ: {', '.join(names[:5])}"
    return f"{name} was {old} and is {new}"


def _sampler_differences(name: str, old: Any, new: Any) -> list[str]:
    """Only the fields that differ, of samplers and of what they hold, as `codec` encodes them."""
    if old == new:
        return []
    if not all(isinstance(value, dict) for value in (old, new)):
        return [_difference(name, old, new)]
    kind = lambda value: value.get("class") or value.get("foreign")
    if kind(old) is None or kind(old) != kind(new):
        return [_difference(name, *(kind(value) or next(iter(value.values())) for value in (old, new)))]
    old, new = (value.get("fields", {}) for value in (old, new))
    return [
        line
        for field in {**old, **new}
        for line in _sampler_differences(f"{name}.{field}", old.get(field), new.get(field))
    ]


def _same_tensors(found: Saved, wanted: Saved) -> bool:
    return found.tensors.keys() == wanted.tensors.keys() and all(
        np.array_equal(found.tensors[name], wanted.tensors[name], equal_nan=True) for name in wanted.tensors
    )
