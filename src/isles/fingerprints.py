"""Checksums of arrays and of what functions compute: whether two problems are one and the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr


def fingerprint(tree: Any) -> str:
    """A checksum of a pytree's arrays."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf, order="C")
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        if array.size:
            digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:32]


def fingerprint_function(function: Callable[..., Any], *arguments: Any) -> str:
    """A checksum of what a function computes on arguments of these shapes, and of the arrays that it holds."""
    traced = jax.make_jaxpr(function)(*arguments)
    program = re.sub(r" at 0x[0-9a-f]+|0x[0-9a-f]+", "", str(traced.jaxpr))
    constants = [*traced.consts, *_inner_constants(traced.jaxpr)]
    return hashlib.sha256((program + fingerprint(constants)).encode()).hexdigest()[:32]


def _inner_constants(jaxpr: Jaxpr) -> Iterator[Any]:
    """Arrays held by functions inside, such as jitted ones: the text of a program does not show them."""
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values())):
            if isinstance(value, ClosedJaxpr):
                yield from value.consts
                yield from _inner_constants(value.jaxpr)
            elif isinstance(value, Jaxpr):
                yield from _inner_constants(value)
