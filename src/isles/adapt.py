"""Tuning as pure functions of what past steps showed. It looks backward and acts forward: no move is redone."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from isles import checks

FALLING = 0.9  # share of coordinates whose correlations must fall for `WhileFalling` to go on


@dataclass(frozen=True)
class Decorrelate:
    """Adaptive number of mutations: go on until particles have forgotten where the stage began.

    After each mutation the signed Pearson correlation over the island's particles between each coordinate
    now and at the start of the stage is averaged over coordinates (a coordinate without variance counts
    as 1). The stage ends when it is at most `threshold`, or after `max` mutations.

    The number of mutations is then a stopping time: the evidence has a bias of order 1/N.
    """

    threshold: float = 0.05
    max: int = 200

    def __post_init__(self) -> None:
        checks.fraction("threshold", self.threshold)
        checks.count("max", self.max)


@dataclass(frozen=True)
class WhileFalling(Decorrelate):
    """Adaptive number of mutations as in PyMC: go on while correlations keep falling.

    After each mutation the Pearson correlation over the island's particles between each coordinate now and at
    the start of the stage is compared with that after the mutation before. The stage ends when fewer than 90 % of
    the coordinates fell by more than `threshold`, or after `max` mutations. It stops where more mutations change
    little, also where particles have not forgotten their start: it suits kernels that mix, and short runs.
    """

    threshold: float = 0.01
    max: int = 200


def next_step_size(step_size: Array, acceptance: Array, target: Array, number: Array) -> Array:
    """Robbins-Monro on the log scale: method.md (20), after mutation m = 1, 2, ...

    log ε += ½ m^{−0.6} (ā − target).
    """
    gain = 0.5 * number.astype(step_size.dtype) ** -0.6
    return step_size * jnp.exp(gain * (acceptance - target))


def shrunk_variances(variances: Array, previous: Array, particles: int) -> Array:
    """Population variances, held back toward the last ones as by four more particles: method.md (21).

    Without it, the duplicates that resampling leaves among few particles give a variance of zero, and an
    island that never moves again.
    """
    return (particles * variances + 4 * previous) / (particles + 4)


def running_moments(mean: Array, variances: Array, positions: Array, number: Array) -> tuple[Array, Array]:
    """Mean and variances (I, d) after a look at positions (I, N, d), with weight (1 + m)^{−0.7} on the new.

    See method.md (22). The power forgets the way from the starting points, and diminishes.
    """
    gain = (1 + number).astype(mean.dtype) ** -0.7
    mean = mean + gain * (positions.mean(axis=1) - mean)
    squares = jnp.square(positions - mean[:, None]).mean(axis=1)
    return mean, variances + gain * (squares - variances)


def correlations(start: Array, now: Array) -> Array:
    """Correlation over particles of each coordinate, (I, d), of arrays (I, N, d): method.md (23)."""
    a = start - start.mean(axis=1, keepdims=True)
    b = now - now.mean(axis=1, keepdims=True)
    scale = jnp.sqrt(jnp.sum(a * a, axis=1) * jnp.sum(b * b, axis=1))  # (I, d)
    still = scale == 0
    return jnp.where(still, 1.0, jnp.sum(a * b, axis=1) / jnp.where(still, 1.0, scale))


def goes_on(rule: type[Decorrelate], last: Array, now: Array, threshold: Array) -> Array:
    """(I,) whether an island makes another mutation, by correlations (I, d) after the last one and after this."""
    if issubclass(rule, WhileFalling):
        return jnp.mean(last - now > threshold, axis=-1) > FALLING
    return now.mean(axis=-1) > threshold
