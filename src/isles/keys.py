"""Random keys by meaning: (seed, purpose, stage, island, particle) decide a draw, the order of work does not."""

from __future__ import annotations

import enum
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import checks, threefry
from isles.threefry import fold_in

STAGES_AHEAD = 16


class Purpose(enum.IntEnum):
    """What a random number is for."""

    PRIOR = 0
    MUTATION = 1
    RESAMPLING = 2
    POSTERIOR = 3
    OPTIMISATION = 4


def root(seed: int) -> Array:
    """The key of a whole run. Every seed from 0 to 2⁶⁴ − 1 gives another."""
    seed = check_seed(seed)
    return _root(np.uint32(seed >> 32), np.uint32(seed & 0xFFFFFFFF))


def check_seed(seed: int) -> int:
    """A number that `root` takes."""
    seed = checks.count("seed", seed, minimum=0)
    if seed >= 1 << 64:
        raise ValueError(f"seed={seed} must be below 2**64")
    return seed


def apart(root: Array) -> Array:
    """A root key whose numbers have nothing to do with those of `root`: for runs frozen on a pilot of any seed."""
    return jax.random.fold_in(root, np.uint32(0xF0F0F0F0))


def island_keys(root: Array, purpose: Purpose, stage: int, islands: np.ndarray[Any, Any]) -> Array:
    """One key an island, (I,)."""
    return _island_keys(root, np.uint32(purpose), np.uint32(stage), np.asarray(islands, np.uint32))


def particle_keys(
    root: Array, purpose: Purpose, stage: int, islands: np.ndarray[Any, Any], particles: int
) -> Array:
    """One key a row, (I·N,), island by island."""
    return rows(root, purpose, stage, islands).keys(particles)


def rows(root: Array, purpose: Purpose, stage: int, islands: np.ndarray[Any, Any]) -> Rows:
    """`Rows` with the dtypes that keep compiled code reusable."""
    return Rows(root, np.uint32(purpose), np.uint32(stage), np.asarray(islands, np.uint32))


class Rows(NamedTuple):
    """What the keys of rows are made of: a program of its own to make them takes longer than making them."""

    root: Array
    purpose: Any  # ()
    stage: Any  # ()
    islands: Any  # (I,)

    def keys(self, particles: int) -> Array:
        """`particle_keys`."""
        return _particle_keys(self.root, self.purpose, self.stage, self.islands, particles)


class Uniforms:
    """Uniform numbers in [0, 1) with 53 random bits, float64, (I, count) a stage, for resampling on the host.

    One number a stage is drawn for several stages at a time, since a call of the device takes as long as many.
    """

    def __init__(self, root: Array, purpose: Purpose, islands: np.ndarray[Any, Any], count: int) -> None:
        self.root, self.purpose, self.islands, self.count = root, purpose, islands, count
        self.ahead = STAGES_AHEAD if count == 1 else 1
        self.numbers: dict[int, np.ndarray[Any, Any]] = {}  # of the stages drawn last

    def at(self, stage: int) -> np.ndarray[Any, Any]:
        """Those of one stage."""
        if stage not in self.numbers:
            stages = np.arange(stage, stage + self.ahead, dtype=np.uint32)
            islands = np.asarray(self.islands, np.uint32)
            bits = np.asarray(_bits(self.root, np.uint32(self.purpose), stages, islands, self.count), np.uint64)
            high, low = bits[..., 0] >> np.uint64(5), bits[..., 1] >> np.uint64(6)
            self.numbers = dict(zip(stages.tolist(), (high * 2.0**26 + low) * 2.0**-53, strict=True))
        return self.numbers[stage]


def uniforms(
    root: Array, purpose: Purpose, stage: int, islands: np.ndarray[Any, Any], count: int
) -> np.ndarray[Any, Any]:
    """`Uniforms` of one stage, (I, count)."""
    return Uniforms(root, purpose, islands, count).at(stage)


@jax.jit
def _root(high: Array, low: Array) -> Array:
    return fold_in(fold_in(jax.random.key(0, impl="threefry2x32"), high), low)


@jax.jit
def _island_keys(root: Array, purpose: Array, stage: Array, islands: Array) -> Array:
    return jax.vmap(partial(fold_in, fold_in(fold_in(root, purpose), stage)))(islands)


@partial(jax.jit, static_argnames="particles")
def _particle_keys(root: Array, purpose: Array, stage: Array, islands: Array, particles: int) -> Array:
    keys, numbers = _island_keys(root, purpose, stage, islands), jnp.arange(particles, dtype=jnp.uint32)
    return jax.vmap(lambda key: jax.vmap(partial(fold_in, key))(numbers))(keys).reshape(-1)


@partial(jax.jit, static_argnames="count")
def _bits(root: Array, purpose: Array, stages: Array, islands: Array, count: int) -> Array:
    keys = jax.vmap(lambda stage: _island_keys(root, purpose, stage, islands))(stages)
    return jax.vmap(jax.vmap(lambda key: threefry.bits(key, 2 * count).reshape(count, 2)))(keys)
