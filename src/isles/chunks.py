"""`tune`: measure how many rows of data to evaluate at a time. `Problem` chooses a number by shapes alone."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import cache, checks
from isles.problem import Problem

TUNE_BYTES = 1 << 30  # intermediates of the largest chunk that is tried
GAIN = 0.95  # a chunk must take less than this share of the default's time to replace it
EVALUATIONS = 3  # of a program that is measured; as in a run, what can be made of the data beforehand is made once


def tune(problem: Problem, *, particles: int = 32, gradient: bool = True, rounds: int = 3) -> int:
    """Measure the number of rows at a time that evaluates `problem` fastest; pass it on as `chunk_rows=`.

    Measurements of this kind differ between machines and from day to day, and the number of rows decides how sums
    are rounded: write the number down if you want the same bits again.

    Args:
        problem: what will be sampled.
        particles: how many are evaluated together: particles of an island × islands of a block.
        gradient: whether the kernel uses gradients, as HMC and MALA do.
        rounds: measurements of each size; the fastest counts.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem={problem!r} must be an isles.Problem; build one with isles.Problem(prior, ...)")
    if not problem.rows:
        return 0
    problem = problem.for_particles(particles)
    seconds = measure(
        problem, candidates(problem, particles), particles=particles, gradient=gradient, rounds=rounds
    )
    best = min(seconds, key=lambda rows: seconds[rows])
    return best if seconds[best] < GAIN * seconds[problem.chunk_rows] else problem.chunk_rows


def candidates(problem: Problem, particles: int) -> list[int]:
    """Powers of two around the problem's own size, up to what memory allows, and that size."""
    most = min(problem.rows, TUNE_BYTES // max(2 * particles * problem.row_bytes, 1), 8 * problem.chunk_rows)
    least = max(min(problem.chunk_rows // 8, most), 1)
    powers = [1 << k for k in range(least.bit_length() - 1, max(most, 1).bit_length())]
    return sorted({*powers, problem.chunk_rows})


def measure(
    problem: Problem, sizes: Iterable[int], *, particles: int = 32, gradient: bool = True, rounds: int = 3
) -> dict[int, float]:
    """Seconds of one epoch of all particles in chunks of each size: the fastest of `rounds`, taken in turn."""
    cache.keep_compiled()
    sizes = list(sizes)
    checks.count("rounds", rounds)
    keys = jax.random.split(jax.random.key(0), checks.count("particles", particles))
    positions = jax.vmap(problem.prior.draw)(keys)
    parts = {rows: _part(problem, rows) for rows in sizes}
    run = lambda rows: jax.block_until_ready(_evaluate(parts[rows], positions, gradient))
    for rows in sizes:
        run(rows)
    seconds = dict.fromkeys(sizes, np.inf)
    for _ in range(rounds):
        for rows in sizes:
            start = time.perf_counter()
            run(rows)
            epochs = EVALUATIONS * parts[rows].rows / problem.rows
            seconds[rows] = min(seconds[rows], (time.perf_counter() - start) / epochs)
    return {rows: float(value) for rows, value in seconds.items()}


def _part(problem: Problem, rows: int) -> Problem:
    """The first few chunks of a long problem: enough to see what one costs."""
    part = copy.copy(problem.with_chunk_rows(rows))
    part.rows = min(problem.rows, rows * max(-(-problem.chunk_rows // rows), 4))
    part.data = jax.tree.map(lambda leaf: leaf[: part.rows], problem.data)
    return part


@partial(jax.jit, static_argnames="gradient")
def _evaluate(problem: Problem, positions: Array, gradient: bool) -> Array:
    ready = problem.prepared()

    def move(_: Array, positions: Array) -> Array:
        """Next to nothing, by what was found, so that no evaluation can be left out."""
        states = jax.vmap(partial(ready.evaluate, gradient=gradient))(positions)
        found = states.log_likelihood[:, None] if states.gradient is None else states.gradient
        return positions + jnp.finfo(positions.dtype).tiny * found

    return jax.lax.fori_loop(0, EVALUATIONS, move, positions)
