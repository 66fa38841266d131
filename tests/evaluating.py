"""Problems evaluated in tests."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import isles
from isles import Problem


def aligned(values: Any) -> Any:
    """A float32 copy on a 64-byte boundary, whose memory JAX would share if it could."""
    memory = np.empty(values.size + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    copy = memory[start : start + values.size].reshape(values.shape)
    copy[:] = values
    return copy


def value_of(state: isles.State) -> float:
    return float(np.float64(state.log_likelihood) + np.float64(state.low_bits))


@partial(jax.jit, static_argnames="gradient")
def evaluated(problem: Problem, theta: Any, gradient: bool) -> isles.State:
    return problem.evaluate(theta, gradient=gradient)


def scored(problem: Problem, params: Any) -> float:
    """The log likelihood of parameters."""
    return value_of(evaluated(problem, problem.layout.ravel(params), gradient=False))
