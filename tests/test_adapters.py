"""Networks of other libraries: what the adapted one gives is what the original gives, for any parameters."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of these libraries about each other's versions
    import equinox as eqx
    from flax import linen, nnx

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = np.arange(12) % 2


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.BatchNorm(use_running_average=True)(linen.Dense(5)(x))
        return linen.Dense(2)(jnp.tanh(x))


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.second = nnx.Linear(3, 5, rngs=rngs), nnx.Linear(5, 2, rngs=rngs)
        self.norm = nnx.BatchNorm(5, use_running_average=True, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(jnp.tanh(self.norm(self.first(x))))


def linen_pair() -> tuple[Any, Any, Any]:
    module = Linen()
    variables = module.init(jax.random.key(0), X)
    return isles.from_linen(module, X), lambda x: module.apply(variables, x), ["Dense_0", "kernel"]


def nnx_pair() -> tuple[Any, Any, Any]:
    module = Nnx(nnx.Rngs(0))
    return isles.from_nnx(module), module, ["first", "kernel"]


def equinox_pair() -> tuple[Any, Any, Any]:
    module = eqx.nn.MLP(3, 2, 5, 1, jnp.tanh, key=jax.random.key(0))
    return isles.from_equinox(module), jax.vmap(module), None


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # so few particles deserve warnings
@pytest.mark.parametrize("pair", [linen_pair, nnx_pair, equinox_pair])
def test_adapted_network_is_the_original(pair: Any) -> None:
    (apply, params), original, path = pair()
    expected = original(X)
    np.testing.assert_allclose(apply(params, X), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(apply)(params, X), expected, rtol=1e-5, atol=1e-6)
    doubled = apply(jax.tree.map(lambda leaf: 2 * leaf, params), X)
    assert not np.allclose(doubled, expected)
    np.testing.assert_array_equal(original(X), expected)  # the original keeps its parameters
    if path is not None:
        assert params[path[0]][path[1]].shape == (3, 5)
    problem = isles.classification(apply, isles.Gaussian(like=params), X, Y)
    posterior = isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=10), particles=8, mutations=20))
    draw = jax.tree.map(lambda leaf: leaf[0, 0], posterior.draws)
    one_draw = posterior.predict(X, per_draw=True).probabilities[0, 0]
    np.testing.assert_allclose(one_draw, jax.nn.softmax(apply(draw, X)), rtol=1e-4)


def test_what_is_not_a_network_is_refused() -> None:
    with pytest.raises(TypeError, match=r"the class Linen; build the network first"):
        isles.from_linen(Linen, X)
    with pytest.raises(TypeError, match=r"flax\.nnx\.Module, got a Linen"):
        isles.from_nnx(Linen())
    with pytest.raises(ValueError, match=r"has no parameters"):
        isles.from_equinox(eqx.nn.Identity())


@pytest.mark.parametrize(
    ("module", "adapter"),
    [
        (Linen(), "from_linen"),
        (Nnx(nnx.Rngs(0)), "from_nnx"),
        (eqx.nn.MLP(3, 2, 5, 1, key=jax.random.key(0)), "from_equinox"),
    ],
    ids=["linen", "nnx", "equinox"],
)
def test_a_module_given_as_it_is_is_told_of_its_adapter(module: Any, adapter: str) -> None:
    with pytest.raises(
        TypeError, match=rf"not a function of \(params, x\); take apply, params = isles\.{adapter}"
    ):
        isles.classification(module, isles.Gaussian(like=np.zeros(3)), X, Y)
