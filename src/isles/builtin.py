"""Problems that need no code: a data set by its name, a network of `isles.models`, a Gaussian prior.

`isles run digits --model mlp` means the reference `isles.builtin:problem?data=digits&model=mlp`, which is all that
a run folder has to remember.
"""

from __future__ import annotations

import math
from typing import Any

from isles import checks, models
from isles import data as datasets
from isles.likelihoods import classification
from isles.priors import Gaussian
from isles.problem import Problem

MODELS = ("mlp", "cnn", "logistic")


def problem(
    data: str,
    model: str,
    *,
    train: int | None = None,
    hidden: int | tuple[int, ...] | None = None,
    activation: str | None = None,
    channels: int | None = None,
    prior_std: float | None = None,
    bias_std: float | None = None,
    kaiming: str | None = None,
) -> Problem:
    """The classification of a data set by a built-in network.

    Args:
        data: a name of `isles.data.NAMES`.
        model: "mlp", "cnn" (one convolution, as `isles.models.CNN`) or "logistic".
        train: the first so many training rows; by default as `isles.data.load` gives them.
        hidden: of mlp, the units of each hidden layer; 64 by default.
        activation: of mlp; "relu" by default.
        channels: of cnn; 4 by default.
        prior_std: the prior's standard deviation of all parameters.
        bias_std: another one for the biases.
        kaiming: instead, by layer: "he" (the default) or "torch", see `isles.models.kaiming`.
    """
    found = datasets.load(data, train=train)
    options = {"hidden": hidden, "activation": activation, "channels": channels}
    given = {name: value for name, value in options.items() if value is not None}
    network = build(model, found.x_train.shape[1:], len(found.classes or ()), **given)
    if prior_std is None and bias_std is not None:
        raise ValueError(f"bias_std={bias_std} needs prior_std, for the weights; give both")
    if prior_std is not None and kaiming is not None:
        raise ValueError(
            f"prior_std={prior_std} and kaiming={kaiming!r} both say how wide the prior is; leave one out"
        )
    if prior_std is None:
        std = models.kaiming(network, kaiming or "he")
    else:
        std = models.stds(network, weights=prior_std, biases=prior_std if bias_std is None else bias_std)
    prior = Gaussian(like=network.shapes(), std=std)
    return classification(network.apply, prior, found.x_train, found.y_train, classes=len(found.classes or ()))


def build(model: str, row: tuple[int, ...], classes: int, **options: Any) -> models.MLP | models.CNN:
    """A network for inputs of shape `row`."""
    checks.choice("model", model, MODELS)
    takes = {"mlp": {"hidden", "activation"}, "cnn": {"channels"}, "logistic": set()}[model]
    for name in options:
        if name not in takes:
            raise ValueError(f"{name}={options[name]!r} is not a setting of model {model}; leave it out")
    if model == "logistic":
        return models.logistic(math.prod(row), classes)
    if model == "mlp":
        return models.MLP(math.prod(row), options.pop("hidden", (64,)), classes, **options)
    if len(row) != 3:
        raise ValueError(f"model='cnn' needs images, and rows have shape {row}; take mlp or logistic")
    height, width, colours = row
    return models.CNN((height, width, colours), outputs=classes, **options)
