"""The numbers of `jax.random` that every mutation draws, bit for bit, in a form that is fast on CPUs.

There `jax.random` rolls the rounds of its cipher into a loop over arrays in memory. Here a hash is one expression,
which XLA compiles into one pass over all particles.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = np.uint32(0x1BD11BDA)
LANES = 8  # of a vector register


def threefry(key: tuple[Any, Any], first: Any, second: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): a key and a counter, two words each, to two words."""
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    first, second = first + keys[0], second + keys[1]
    for group in range(5):
        for places in ROTATIONS[group % 2]:
            first = first + second
            second = first ^ ((second << np.uint32(places)) | (second >> np.uint32(32 - places)))
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def fold_in(key: Array, number: Any) -> Array:
    """`jax.random.fold_in(key, number)`."""
    if (words := _words(key)) is None:
        return jax.random.fold_in(key, number)
    return _key(threefry(words, np.uint32(0), jnp.asarray(number).astype(jnp.uint32)))


def split(key: Array) -> tuple[Array, Array]:
    """`jax.random.split(key)`."""
    if (words := _words(key)) is None:
        first, second = jax.random.split(key)
        return first, second
    return _key(threefry(words, np.uint32(0), np.uint32(0))), _key(threefry(words, np.uint32(0), np.uint32(1)))


def bits(key: Array, count: int) -> Array:
    """`jax.random.bits(key, (count,), jnp.uint32)`."""
    if (pair := _words(key)) is None:
        return jax.random.bits(key, (count,), jnp.uint32)
    first, second = threefry(pair, np.uint32(0), jnp.arange(count, dtype=jnp.uint32))
    return first ^ second


def normal(key: Array, count: int, dtype: Any) -> Array:
    """`jax.random.normal(key, (count,), dtype)`."""
    if (words := _words(key)) is None:
        return jax.random.normal(key, (count,), dtype)
    whole = -(-count // LANES) * LANES
    above = np.nextafter(np.array(-1, dtype), np.array(0, dtype))  # −1 itself would give −inf
    uniform = _unit(words, jnp.arange(whole, dtype=jnp.uint32), dtype) * (1 - above) + above
    numbers = np.array(np.sqrt(2), dtype) * jax.lax.erf_inv(jnp.maximum(uniform, above))
    # XLA merges no loop across this sum over single numbers. Without it, it would draw the numbers anew wherever
    # they are used, and one by one those of `count` that do not fill a register.
    unsigned = _unsigned(dtype)
    bits = jax.lax.bitcast_convert_type(numbers, unsigned)
    bits = jax.lax.reduce_window(bits, unsigned(0), jax.lax.bitwise_xor, (1,), (1,), "VALID")
    return jax.lax.bitcast_convert_type(bits[:count], dtype)


def exponential(key: Array, dtype: Any) -> Array:
    """`jax.random.exponential(key, (), dtype)`."""
    if (words := _words(key)) is None:
        return jax.random.exponential(key, (), dtype)
    return -jnp.log1p(-_unit(words, np.uint32(0), dtype))


def _words(key: Array) -> tuple[Array, Array] | None:
    """The two words of a threefry key; None if it is of another kind."""
    data = jax.random.key_data(key)
    return (data[0], data[1]) if data.shape == (2,) else None


def _key(words: tuple[Array, Array]) -> Array:
    return jax.random.wrap_key_data(jnp.stack(words), impl="threefry2x32")


def _unit(words: tuple[Array, Array], counter: Any, dtype: Any) -> Array:
    """Uniform numbers in [0, 1), one for each counter, with as many random bits as the dtype's mantissa."""
    first, second = threefry(words, np.uint32(0), counter)
    number, unsigned = np.finfo(dtype), _unsigned(dtype)
    wide = unsigned is np.uint64
    bits = (first.astype(unsigned) << unsigned(32)) | second.astype(unsigned) if wide else first ^ second
    mantissa = (bits >> unsigned(number.bits - number.nmant)) | np.array(1, dtype).view(unsigned)
    return jax.lax.bitcast_convert_type(mantissa, dtype) - 1


def _unsigned(dtype: Any) -> Any:
    return np.uint32 if np.dtype(dtype).itemsize == 4 else np.uint64
