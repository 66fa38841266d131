"""Networks that the literature compares on, and prior standard deviations layer by layer.

`stds` and `kaiming` give one number for each array of parameters: `isles.Gaussian(like=network.shapes(),
std=kaiming(network))`.
"""

from __future__ import annotations

import math
from typing import Any

from isles import checks
from isles.models.networks import CNN, MLP


def logistic(features: int, classes: int = 2) -> MLP:
    """Logistic regression with an intercept: one logit for two classes, else a softmax over all of them.

    >>> logistic(14).shapes()["w1"].shape
    (1, 14)
    """
    classes = checks.count("classes", classes, minimum=2)
    return MLP(inputs=features, hidden=(), outputs=1 if classes == 2 else classes)


def mnist_cnn() -> CNN:
    """A convolution with 4 channels of 3×3 kernels, ReLU, 2×2 max-pooling, a linear layer: 7,890 parameters."""
    return CNN(image=(28, 28, 1), channels=4, outputs=10, kernel=3, pool=2)


def imdb_head() -> MLP:
    """128 hidden units on 768 sentence features, 2 classes: 98,690 parameters.

    Its prior in the literature is `stds(imdb_head(), weights=0.1, biases=0.01)`.
    """
    return MLP(inputs=768, hidden=(128,), outputs=2)


def cifar10_head() -> MLP:
    """128 hidden units on 2048 image features, 10 classes: 263,562 parameters.

    Its prior in the literature is `stds(cifar10_head(), weights=0.01, biases=0.001)`.
    """
    return MLP(inputs=2048, hidden=(128,), outputs=10)


def stds(network: MLP | CNN, *, weights: float, biases: float) -> dict[str, float]:
    """One standard deviation for all weights and one for all biases.

    >>> stds(MLP(4, (), 3), weights=0.1, biases=0.01)
    {'w1': 0.1, 'b1': 0.01}
    """
    scales = checks.positive("weights", weights), checks.positive("biases", biases)
    return {name: scales[len(shape) == 1] for name, shape in _shapes(network).items()}


def kaiming(network: MLP | CNN, convention: str = "he") -> dict[str, float]:
    """Standard deviations that keep signals at their size, for the weights and biases of each layer alike.

    Args:
        network: one of `isles.models`.
        convention: `"he"` for √(2/n), n the inputs of a unit of the layer; `"torch"` for √(1/(3n)), the standard
            deviation of PyTorch's initial parameters.

    >>> kaiming(MLP(8, (), 3))
    {'w1': 0.5, 'b1': 0.5}
    """
    checks.choice("convention", convention, ["he", "torch"])
    gain = 2.0 if convention == "he" else 1 / 3
    scales = {}
    inputs = 0
    for name, shape in _shapes(network).items():
        if len(shape) > 1:  # the biases of a layer follow its weights
            inputs = math.prod(shape[1:])
        scales[name] = math.sqrt(gain / inputs)
    return scales


def _shapes(network: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(network, MLP | CNN):
        raise TypeError(
            f"network={network!r} must be one of isles.models, such as isles.models.MLP(...); for your own, write "
            f"the pytree of standard deviations out"
        )
    return {name: leaf.shape for name, leaf in network.shapes().items()}
