"""`isles.threefry` gives the numbers of `jax.random`, and those of the cipher's authors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
from isles import compiling, keys, threefry


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # Random123, known answers of threefry2x32 with 20 rounds
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers(key: tuple[int, int], counter: tuple[int, int], words: tuple[int, int]) -> None:
    key_words = jnp.uint32(key[0]), jnp.uint32(key[1])
    found = threefry.threefry(key_words, jnp.uint32(counter[0]), jnp.uint32(counter[1]))
    assert tuple(map(int, found)) == words


def rows(function: Any, keys: jax.Array) -> Any:
    found = jax.jit(jax.vmap(function))(keys)
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), found)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_numbers_are_those_of_jax(dtype: str, impl: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        keys = jax.random.split(jax.random.key(3, impl=impl), 50)
        for ours, theirs in [
            (lambda key: threefry.fold_in(key, 7), lambda key: jax.random.fold_in(key, 7)),
            (
                lambda key: threefry.fold_in(key, np.uint32(2**32 - 1)),
                lambda key: jax.random.fold_in(key, 2**32 - 1),
            ),
            (lambda key: jnp.stack(threefry.split(key)), jax.random.split),
            (lambda key: threefry.exponential(key, dtype), lambda key: jax.random.exponential(key, (), dtype)),
            *[
                (lambda key, n=n: threefry.bits(key, n), lambda key, n=n: jax.random.bits(key, (n,), jnp.uint32))
                for n in (9,)
            ],
            *[
                (
                    lambda key, n=n: threefry.normal(key, n, dtype),
                    lambda key, n=n: jax.random.normal(key, (n,), dtype),
                )
                for n in (5, 16, 17)
            ],
        ]:
            found, due = rows(ours, keys), rows(theirs, keys)
            assert found.dtype == due.dtype
            np.testing.assert_array_equal(found, due)


# ---- uniform numbers for resampling ----


def test_uniforms_depend_on_stage_and_island_only() -> None:
    """Not on which stages were drawn together, nor on how many numbers a stage takes; by the numbers of JAX."""
    root, purpose, islands = keys.root(5), keys.Purpose.RESAMPLING, np.array([3, 7])
    ahead = keys.Uniforms(root, purpose, islands, 1)
    for stage in (0, 1, 17, 2):
        found = ahead.at(stage)
        assert found.shape == (2, 1)
        np.testing.assert_array_equal(found, keys.uniforms(root, purpose, stage, islands, 4)[:, :1])
        np.testing.assert_array_equal(found[1:], keys.uniforms(root, purpose, stage, islands[1:], 1))
        for row, island in zip(found, islands, strict=True):
            key = root
            for number in (int(purpose), stage, int(island)):
                key = jax.random.fold_in(key, number)
            high, low = (int(word) for word in jax.random.bits(key, (2,), jnp.uint32))
            assert row[0] == ((high >> 5) * 2**26 + (low >> 6)) / 2**53


# ---- which program moves particles ----


def gaussian(dimension: int) -> isles.Problem:
    prior = isles.Gaussian(like=np.zeros(dimension, np.float32))
    return isles.Problem(prior, lambda theta: -((theta - 1) ** 2).sum())


def test_long_sums_have_a_program_of_their_own() -> None:
    assert compiling.has_short_sums(gaussian(16))
    assert not compiling.has_short_sums(gaussian(100))
    few, many = np.ones((4, 3), np.float32), np.ones((500, 3), np.float32)
    problem = lambda x: isles.regression(
        lambda w, x: x @ w, isles.Gaussian(np.zeros(3)), x, x[:, 0], noise_std=1.0
    )
    assert compiling.has_short_sums(problem(few))
    assert not compiling.has_short_sums(problem(many))


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    double = compiling.ByLength(lambda problem, x: 2 * x)
    assert double.short is not double.long
    monkeypatch.setattr(compiling, "NO_SUMS", {"xla_no_such_option": "1"})
    double = compiling.ByLength(lambda problem, x: 2 * x)
    assert double.short is double.long
    assert double(gaussian(2), np.float32(3)) == 6
    assert double._cache_size() == 1
