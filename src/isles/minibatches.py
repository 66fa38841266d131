"""Gradients from some rows of the data: unbiased estimates, at a fraction of an epoch."""

from __future__ import annotations

import jax
from jax import Array

from isles import checks
from isles.problem import Problem, State


def check(problem: Problem, batch_rows: object) -> None:
    """Raise if a problem has no such minibatches; None stands for all rows."""
    if batch_rows is None:
        return
    rows = checks.count("batch_rows", batch_rows)
    if not problem.rows:
        raise ValueError(f"batch_rows={rows} needs data= to draw rows from; this problem has none, leave it out")
    if rows > problem.rows:
        raise ValueError(f"batch_rows={rows} must be at most the {problem.rows} rows of data; None takes all")


def steps(problem: Problem, epochs: int, batch_rows: int | None) -> int:
    """Steps of a minibatch each that `epochs` passes over the data pay for."""
    count = epochs if batch_rows is None else epochs * problem.rows // batch_rows
    if count >= 1 << 31:
        raise ValueError(f"epochs={epochs} make {count} steps, at most 2³¹ − 1: lower it, or raise batch_rows")
    return count


def estimate(problem: Problem, key: Array, position: Array, batch_rows: int | None) -> State:
    """What `problem.evaluate` finds, with the gradient, estimated from rows drawn with replacement; None: all."""
    if batch_rows is None:
        return problem.evaluate(position, gradient=True)
    chosen = jax.random.randint(key, (batch_rows,), 0, problem.rows)
    found = problem.of_rows(chosen).evaluate(position, gradient=True)
    assert found.gradient is not None
    scale = problem.rows / batch_rows
    return found._replace(log_likelihood=scale * found.log_likelihood, gradient=scale * found.gradient)
