"""How XLA compiles the programs that move particles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import jax
import numpy as np

from isles.problem import Problem

SHORT = 48  # parameters, and rows of data evaluated at a time, up to which sums over them are short
SHORT_BYTES = 2048  # intermediates of a likelihood without data, up to which its sums are
# What XLA gives to its library of fast kernels: by default sums, too, which gains where they are long, and where
# they are short takes several times as long as a plain loop.
NO_SUMS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}


class ByLength:
    """A function of a problem and more, jitted for problems with short sums and for others."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.function, self.options = function, options
        self.__doc__ = function.__doc__
        self.long = jax.jit(function, **options)

    @cached_property
    def short(self) -> Any:
        """The program for short sums; that for long ones where XLA does not know the option."""
        if not is_known(*NO_SUMS.items()):
            return self.long
        return jax.jit(self.function, compiler_options=NO_SUMS, **self.options)

    def __call__(self, problem: Problem, *arguments: Any) -> Any:
        """What the function returns."""
        return (self.short if has_short_sums(problem) else self.long)(problem, *arguments)

    def _cache_size(self) -> int:
        """Programs compiled so far, as of `jax.jit`."""
        return sum(program._cache_size() for program in {self.long, self.short})


@cache
def is_known(*options: tuple[str, str]) -> bool:
    """Whether XLA takes these options: they are its own, and may go with its next version."""
    try:
        jax.jit(lambda x: x, compiler_options=dict(options)).lower(np.float32(0)).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def has_short_sums(problem: Problem) -> bool:
    """Whether no sum over parameters or rows of data is long: a function of what a run's definition holds."""
    likelihood = problem.chunk_rows <= SHORT if problem.rows else problem.fixed_bytes <= SHORT_BYTES
    return problem.dimension <= SHORT and likelihood
