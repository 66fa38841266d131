"""A mass of blocks along the diagonal, from the Fisher information: for kernels whose momentum has one.

Parameters that stand side by side share a block. Products with one dense matrix of d parameters would move d²
numbers from memory in every leapfrog of every island, which takes longer than the gradient of a small network.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular

from isles import likelihoods
from isles.problem import Problem

MOST = 256  # parameters of a block


def shape(dimension: int) -> tuple[int, int]:
    """Blocks, as few as may be, and the parameters of each; the last one may be filled up."""
    count = -(-dimension // MOST)
    return count, -(-dimension // count)


def product(matrices: Array, vector: Array) -> Array:
    """The matrix with these blocks (blocks, b, b) along its diagonal times a vector (d,)."""
    parts = likelihoods.in_blocks(vector, (matrices.shape[0], matrices.shape[1]))
    return jnp.einsum("nij,nj->ni", matrices, parts).reshape(-1)[: vector.size]


def diagonal(variances: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """M₀⁻¹ and C as in `fitted`, (2, blocks, b, b), of a diagonal mass."""
    blocks = shape(variances.size)
    whole = np.ones(blocks[0] * blocks[1])
    whole[: variances.size] = variances
    return np.stack([np.eye(blocks[1]) * part.reshape(*blocks, 1) for part in (whole, whole**-0.5)])


def fitted(
    problem: Problem, positions: Array, tempering: Array, scales: Array, precision: Array, share: Array
) -> Array:
    """M₀⁻¹ and C, (2, blocks, b, b), with M₀ = CCᵀ = share · (λ F + precision) + (1 − share) · what it was.

    F is the Fisher information's mean over positions (N, d), `precision` (d,) the prior's. Where a point without a
    likelihood, or rounding, leaves no positive definite matrix, `scales` stay.
    """
    likelihood = likelihoods.inner(problem)
    assert likelihood is not None
    factors = scales[1]
    blocks = factors.shape[0], factors.shape[1]
    add = lambda total, position: (total + likelihoods.fisher(likelihood, problem, position, blocks), None)
    fisher = jax.lax.scan(add, jnp.zeros_like(factors), positions)[0] / len(positions)
    eye = jnp.eye(blocks[1], dtype=problem.dtype)
    prior = eye * likelihoods.in_blocks(precision, blocks, fill=1.0)[..., None]
    last = jnp.einsum("nij,nkj->nik", factors, factors)
    factor = jnp.linalg.cholesky(share * (tempering * fisher + prior) + (1 - share) * last)
    inverse = jax.vmap(lambda lower: solve_triangular(lower, eye, lower=True))(factor)
    found = jnp.stack([jnp.einsum("nji,njk->nik", inverse, inverse), factor])
    return jnp.where(jnp.isfinite(found).all(), found, scales)
