"""What a function of arrays needs beside its arguments, told from shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

VIEWS = {"broadcast_in_dim", "reshape", "squeeze", "transpose"}  # operations that need no memory of their own


def intermediate_bytes(function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """Bytes of all intermediate results of a function of shapes."""

    def size(jaxpr: Any) -> int:
        total = 0
        for equation in jaxpr.eqns:
            inner = list(jaxprs_in_params(equation.params))
            if inner:  # a call, whose results are counted inside
                total += sum(map(size, inner))
            elif equation.primitive.name not in VIEWS:
                total += sum(var.aval.size * var.aval.dtype.itemsize for var in equation.outvars)
            if equation.primitive.name == "conv_general_dilated":  # unfolds its input, there and back
                (output,), window = equation.outvars, equation.invars[1].aval
                features = window.shape[equation.params["dimension_numbers"].rhs_spec[0]]
                total += 2 * output.aval.size * window.size // features**2 * window.dtype.itemsize
        return total

    return size(jax.make_jaxpr(function)(*arguments).jaxpr)
