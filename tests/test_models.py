"""The reference networks: many particles side by side must give what one at a time gives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
from isles.models import CNN, MLP

NETWORKS = {
    "mlp": MLP(inputs=7, hidden=(5,), outputs=3),
    "deep tanh mlp": MLP(inputs=7, hidden=(5, 4), outputs=2, activation="tanh"),
    "sigmoid mlp": MLP(inputs=7, hidden=(6,), outputs=1, activation="sigmoid"),
    "logistic regression": MLP(inputs=7, hidden=(), outputs=3),
    "cnn": CNN(image=(6, 8, 1), channels=2, outputs=3),
    "cnn with uneven image": CNN(image=(7, 5, 2), channels=3, outputs=4),
    "cnn with wide kernel and pool": CNN(image=(9, 9, 2), channels=2, outputs=3, kernel=5, pool=3),
    "cnn with a pool wider than its kernel": CNN(image=(9, 8, 2), channels=2, outputs=3, kernel=3, pool=4),
    "cnn without pooling": CNN(image=(4, 5, 1), channels=2, outputs=3, pool=1),
}


def inputs(network: Any, rows: int, dtype: Any) -> jax.Array:
    shape = network.image if isinstance(network, CNN) else (network.inputs,)
    return jax.random.normal(jax.random.key(5), (rows, *shape), dtype)


def particles(network: Any, count: int, dtype: Any) -> Any:
    prior = isles.Gaussian(like=network.shapes(dtype), std=0.3)
    keys = jax.random.split(jax.random.key(1), count)
    return jax.vmap(lambda key: prior.layout.unravel(prior.draw(key)))(keys)


def value_and_slopes(apply: Callable[..., jax.Array], params: Any, x: jax.Array) -> Any:
    def score(params: Any) -> Any:
        output = apply(params, x)
        return jnp.sum(jnp.sin(output * jnp.arange(1, output.shape[1] + 1))), output

    return jax.vmap(jax.value_and_grad(score, has_aux=True))(params)


def assert_close(one: Any, other: Any, tolerance: float) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * float(jnp.abs(b).max()))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
def test_side_by_side_equals_plain(network: Any, double: bool) -> None:
    with jax.enable_x64(double):
        dtype, tolerance = (jnp.float64, 1e-10) if double else (jnp.float32, 1e-5)
        params, x = particles(network, 6, dtype), inputs(network, 11, dtype)
        fast = jax.jit(lambda p, x: value_and_slopes(network.apply, p, x))(params, x)
        plain = jax.jit(lambda p, x: value_and_slopes(network.plain, p, x))(params, x)
        assert_close(fast, plain, tolerance)
        assert jax.tree.leaves(fast)[0].dtype == dtype


@pytest.mark.parametrize("network", [NETWORKS["deep tanh mlp"], NETWORKS["cnn"]], ids=["mlp", "cnn"])
def test_one_particle_inputs_of_its_own_and_slopes_of_inputs(network: Any) -> None:
    params, x = particles(network, 4, jnp.float32), inputs(network, 12, jnp.float32)
    one = jax.tree.map(lambda leaf: leaf[0], params)
    assert_close(network.apply(one, x), network.plain(one, x), 1e-5)
    own = x.reshape(4, 3, *x.shape[1:])  # each particle sees other rows
    assert_close(jax.vmap(network.apply)(params, own), jax.vmap(network.plain)(params, own), 1e-5)
    nested = jax.vmap(jax.vmap(network.apply, (0, None)), (None, 0))(params, own)
    assert_close(nested, jax.vmap(jax.vmap(network.plain, (0, None)), (None, 0))(params, own), 1e-5)
    slope = lambda apply: jax.grad(lambda x: jnp.sum(apply(one, x) ** 2))(x)
    assert_close(slope(network.apply), slope(network.plain), 1e-5)


def test_second_derivatives_are_refused_not_wrong() -> None:
    network = NETWORKS["deep tanh mlp"]
    params, x = network.init(jax.random.key(0)), inputs(network, 3, jnp.float32)
    total = lambda apply: lambda params: jnp.sum(apply(params, x) ** 2)
    with pytest.raises((TypeError, ValueError)):
        jax.hessian(total(network.apply))(params)
    assert np.isfinite(jax.tree.leaves(jax.hessian(total(network.plain))(params))[0]).all()


def test_ties_in_a_pooling_window_count_once() -> None:
    """A constant image makes every place in a window equal: the slope goes to one of them."""
    network = CNN(image=(8, 8, 1), channels=2, outputs=3)
    params, x = particles(network, 5, jnp.float32), jnp.ones((4, 8, 8, 1))
    fast = value_and_slopes(network.apply, params, x)
    assert_close(fast, value_and_slopes(network.plain, params, x), 1e-5)


def test_dead_relus_have_no_slope() -> None:
    network = CNN(image=(4, 4, 1), channels=2, outputs=3)
    params = particles(network, 3, jnp.float32)
    params["bias"] = jnp.full_like(params["bias"], -100.0)
    (_, _), slopes = value_and_slopes(network.apply, params, inputs(network, 5, jnp.float32))
    assert not np.asarray(slopes["kernel"]).any() and not np.asarray(slopes["bias"]).any()
    assert np.asarray(slopes["b"]).any()


@pytest.mark.parametrize("noise", [0.3, "learned", "predicted"])
def test_networks_inside_a_regression(noise: Any) -> None:
    network = MLP(inputs=2, hidden=(4,), outputs=2 if noise == "predicted" else 1)
    x = np.random.default_rng(0).normal(size=(30, 2))
    prior = isles.Gaussian(like=network.shapes())
    fast, plain = (isles.regression(f, prior, x, x[:, 0], noise_std=noise) for f in (network.apply, network.plain))
    positions = jax.vmap(fast.prior.draw)(jax.random.split(jax.random.key(0), 5))
    evaluate = lambda problem: jax.vmap(lambda p: problem.evaluate(p, gradient=True))(positions)
    assert_close(evaluate(fast), evaluate(plain), 1e-5)


@pytest.mark.parametrize("rows", [20, 22], ids=["whole chunks", "rows left over"])
@pytest.mark.parametrize("chunk_rows", [5, 22], ids=["chunks", "one chunk"])
@pytest.mark.parametrize("kind", ["classes", "two classes", "numbers"])
def test_data_made_ready_once_change_nothing(kind: str, chunk_rows: int, rows: int) -> None:
    network = CNN(image=(5, 6, 2), channels=2, outputs=3 if kind == "classes" else 1)
    x, prior = inputs(network, rows, jnp.float32), isles.Gaussian(like=network.shapes())

    def problem(apply: Any) -> isles.Problem:
        if kind == "numbers":
            whole = isles.regression(apply, prior, x, x[:, 0, 0, 0], noise_std=0.5)
        else:
            whole = isles.classification(apply, prior, x, np.arange(rows) % (3 if kind == "classes" else 2))
        return whole.with_chunk_rows(chunk_rows)

    def evaluate(problem: isles.Problem) -> Any:
        positions = jax.vmap(problem.prior.draw)(jax.random.split(jax.random.key(0), 3))
        states = jax.vmap(lambda position: problem.evaluate(position, gradient=True))(positions)
        return states.log_likelihood, states.gradient

    prepared = problem(network.apply).prepared()
    assert prepared.ready is not None
    assert_close(evaluate(prepared), evaluate(problem(network.plain)), 1e-5)
    others = [prepared.of_rows(jnp.arange(3)), prepared.with_chunk_rows(7), prepared.on(isles.mesh())]
    assert [other.ready for other in others] == [None] * 3
    assert_close(evaluate(problem(network).prepared()), evaluate(prepared), 1e-6)


def test_data_are_not_made_ready_where_nothing_is_to_be_made_or_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Scaled(CNN):
        def apply(self, params: Any, x: Any) -> jax.Array:
            return super().apply(params, x / 255)

    def made(apply: Any) -> Any:
        return isles.classification(apply, prior, x, np.arange(10) % 2).prepared().ready

    network = CNN(image=(5, 6, 2), channels=2, outputs=2)
    x, prior = inputs(network, 10, jnp.float32), isles.Gaussian(like=network.shapes())
    assert made(network.apply) is not None and made(network) is not None
    others = (
        network.plain,
        Scaled(image=(5, 6, 2), channels=2, outputs=2).apply,
        lambda p, x: network.apply(p, x),
    )
    assert [made(other) for other in others] == [None] * 3
    monkeypatch.setattr("isles.preparing.PREPARED_BYTES", 1000)
    assert made(network.apply) is None


def test_sizes_of_the_papers_networks() -> None:
    size = lambda network: isles.Gaussian(like=network.shapes()).layout.size
    assert size(CNN()) == 7_890
    assert size(MLP(768, (128,), 2)) == 98_690
    assert size(MLP(2048, (128,), 10)) == 263_562


def test_initial_parameters_fit_and_are_scaled() -> None:
    for network in NETWORKS.values():
        params = network.init(jax.random.key(0))
        shapes = {name: leaf.shape for name, leaf in network.shapes().items()}
        assert {name: leaf.shape for name, leaf in params.items()} == shapes
    weights = MLP(500, (400,), 2).init(jax.random.key(0))["w1"]
    assert abs(float(weights.std()) / np.sqrt(2 / 500) - 1) < 0.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(0, (3,), 1), "inputs=0"),
        (lambda: MLP(2, (3, -1), 1), "hidden=-1"),
        (lambda: MLP(2, (3,), 1, activation="gelu"), "activation='gelu'"),
        (lambda: CNN(kernel=4), "kernel=4 must be odd"),
        (lambda: CNN(image=(1, 28, 1)), "not smaller than pool"),
        (
            lambda: MLP(2, (3,), 1).apply(MLP(2, (3,), 1).init(jax.random.key(0)), jnp.ones((4, 3))),
            "takes 2 inputs",
        ),
        (lambda: CNN().apply(CNN().init(jax.random.key(0)), jnp.ones((4, 9, 9))), r"images of shape \(rows"),
    ],
)
def test_bad_settings(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()
