"""The reference networks against plain NumPy in float64, and priors scaled layer by layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import isles
from isles import models
from isles.predictions import Mixture

NETWORKS = {
    "mnist": (models.mnist_cnn(), (28, 28), 10, 7_890),
    "imdb": (models.imdb_head(), (768,), 2, 98_690),
    "cifar10": (models.cifar10_head(), (2048,), 10, 263_562),
    "logistic": (models.logistic(14), (14,), 2, 15),
    "softmax": (models.logistic(5, classes=3), (5,), 3, 18),
}


def relu_layers(params: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits of a multilayer perceptron, and the inputs of each layer."""
    layers = len(params) // 2
    inputs = [x]
    for layer in range(1, layers):
        inputs.append(np.maximum(inputs[-1] @ params[f"w{layer}"].T + params[f"b{layer}"], 0))
    return inputs[-1] @ params[f"w{layers}"].T + params[f"b{layers}"], inputs


def relu_slopes(
    params: dict[str, np.ndarray], inputs: list[np.ndarray], slope: np.ndarray
) -> dict[str, np.ndarray]:
    slopes = {}
    for layer in range(len(inputs), 0, -1):
        slopes |= {f"w{layer}": slope.T @ inputs[layer - 1], f"b{layer}": slope.sum(axis=0)}
        slope = (slope @ params[f"w{layer}"]) * (inputs[layer - 1] > 0)
    return slopes


def convolve(params: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, Any]:
    """Logits of the convolutional network, window by window, and what its slopes need."""
    rows = len(x)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    patches = np.stack([padded[:, i : i + 28, j : j + 28] for i in range(3) for j in range(3)], axis=-1)
    maps = np.einsum("rhwt,ct->rchw", patches, params["kernel"].reshape(4, 9)) + params["bias"][:, None, None]
    windows = (
        np.maximum(maps, 0).reshape(rows, 4, 14, 2, 14, 2).transpose(0, 1, 2, 4, 3, 5).reshape(rows, 4, 14, 14, 4)
    )
    features = windows.max(axis=-1).reshape(rows, -1)
    return features @ params["w"].T + params["b"], (patches, maps, windows, features)


def convolve_slopes(params: dict[str, np.ndarray], kept: Any, slope: np.ndarray) -> dict[str, np.ndarray]:
    patches, maps, windows, features = kept
    rows = len(features)
    below = (slope @ params["w"]).reshape(rows, 4, 14, 14, 1)
    winner = np.eye(4)[windows.argmax(axis=-1)] * below
    winner = winner.reshape(rows, 4, 14, 14, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(maps.shape) * (maps > 0)
    kernel = np.einsum("rchw,rhwt->ct", winner, patches).reshape(4, 3, 3, 1)
    return {"kernel": kernel, "bias": winner.sum((0, 2, 3)), "w": slope.T @ features, "b": slope.sum(axis=0)}


@pytest.mark.parametrize("name", NETWORKS)
def test_likelihood_gradient_and_prediction_are_those_of_numpy(name: str) -> None:
    network, row, classes, size = NETWORKS[name]
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(9, *row)), np.arange(9) % classes
    with jax.enable_x64(True):
        prior = isles.Gaussian(like=network.shapes(jnp.float64), std=models.kaiming(network))
        assert prior.layout.size == size
        problem = isles.classification(network.apply, prior, x, y, chunk_rows=4)
        positions = np.asarray(jax.vmap(prior.draw)(jax.random.split(jax.random.key(1), 2)))
        found = jax.jit(jax.vmap(lambda position: problem.evaluate(position, gradient=True)))(positions)
        found = jax.tree.map(np.asarray, found)
        mixture = Mixture(prior.layout, problem.log_likelihood, positions, np.full(2, 0.5), x, chunk_rows=4)
        predicted = mixture.per_draw((1, 2)).probabilities[0]
    for number, position in enumerate(positions):
        params = prior.layout.unravel_numpy(position)
        forward, backward = (convolve, convolve_slopes) if name == "mnist" else (relu_layers, relu_slopes)
        logits, kept = forward(params, x)
        both = np.concatenate([np.zeros_like(logits), logits], axis=1) if logits.shape[1] == 1 else logits
        log_p = special.log_softmax(both, axis=1)
        slope = (np.eye(classes)[y] - np.exp(log_p))[:, -logits.shape[1] :]
        slopes = backward(params, kept, slope)
        gradient = np.concatenate([slopes[leaf].ravel() for leaf in sorted(slopes)])
        np.testing.assert_allclose(found.log_likelihood[number], log_p[np.arange(9), y].sum(), rtol=1e-10)
        np.testing.assert_allclose(found.gradient[number], gradient, rtol=0, atol=1e-10 * np.abs(gradient).max())
        np.testing.assert_allclose(predicted[number], np.exp(log_p), rtol=1e-10)


def test_kaiming_scales_by_the_inputs_of_a_layer() -> None:
    he = models.kaiming(models.mnist_cnn())
    assert he == pytest.approx(
        {"kernel": np.sqrt(2 / 9), "bias": np.sqrt(2 / 9), "w": np.sqrt(2 / 784), "b": np.sqrt(2 / 784)}
    )
    torch = models.kaiming(models.imdb_head(), "torch")
    one, two = 1 / np.sqrt(3 * 768), 1 / np.sqrt(3 * 128)
    assert torch == pytest.approx({"w1": one, "b1": one, "w2": two, "b2": two})
    uniform = np.random.default_rng(0).uniform(-1, 1, size=100_000) / np.sqrt(768)  # what PyTorch draws
    assert torch["w1"] == pytest.approx(uniform.std(), rel=0.01)


def test_scales_go_into_a_prior() -> None:
    network = models.cifar10_head()
    prior = isles.Gaussian(like=network.shapes(), std=models.stds(network, weights=0.01, biases=0.001))
    scale = prior.layout.unravel(prior.factor)
    assert {name: sorted(set(np.asarray(leaf).ravel().tolist())) for name, leaf in scale.items()} == {
        name: [pytest.approx(0.01 if name[0] == "w" else 0.001)] for name in ("w1", "b1", "w2", "b2")
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.kaiming(models.mnist_cnn(), "xavier"), "convention='xavier' must be one of 'he', 'torch'"),
        (lambda: models.kaiming({"w": np.zeros(3)}), "must be one of isles.models"),
        (lambda: models.stds(models.mnist_cnn(), weights=0.0, biases=1.0), r"weights=0\.0 must be positive"),
        (lambda: models.logistic(4, classes=1), "classes=1 must be at least 2"),
        (lambda: models.logistic(0), "inputs=0 must be at least 1"),
    ],
)
def test_bad_settings(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
