"""Whether a user's log-likelihood is a sum over rows, as chunks of rows need it to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import jaxpr_as_fun

if TYPE_CHECKING:
    from isles.problem import Problem

TOLERANCE = 1e-3  # of the largest of the numbers that are compared
FLOOR = 1e-6  # a difference that is nothing


def check(problem: Problem) -> None:
    """Raise if, at one prior draw, the value of two rows is not the sum of those of each.

    No look at all rows, since that would be an evaluation that nobody counts. Functions that know batches of one
    size only, or that have side effects, are left alone.
    """
    if problem.rows < 3 or type(problem.log_likelihood).__module__.startswith("isles."):
        return
    part = lambda batch, rows: jax.tree.map(lambda leaf: leaf[rows], batch)
    both = part(problem.data, slice(0, 2))

    def values(key: Array, both: Any) -> list[Array]:
        params = problem.layout.unravel(problem.prior.draw(key))
        batches = (both, part(both, slice(0, 1)), part(both, slice(1, 2)))
        return [problem.log_likelihood(params, batch) for batch in batches]

    arguments = (jax.random.key(0), both)
    try:
        program = jax.make_jaxpr(values)(*arguments)
    except Exception:
        return
    if program.effects:
        return
    # operation by operation: those of so few rows are compiled once for all problems of the kind
    together, first, second = (float(value) for value in jaxpr_as_fun(program)(*jax.tree.leaves(arguments)))
    largest = max(abs(together), abs(first), abs(second))
    if np.isfinite(largest) and abs(together - (first + second)) > max(TOLERANCE * largest, FLOOR):
        raise ValueError(
            f"log_likelihood is not a sum over rows: at a draw of the prior it is {first:.6g} for the first row, "
            f"{second:.6g} for the second, and {together:.6g} for both; return the sum over rows, "
            f"not a mean, or give chunk_rows={problem.rows} if all rows must be seen together"
        )
