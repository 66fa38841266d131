"""Networks as frozen `init`/`apply` pairs, fast when many particles run at once, and scales of priors for them."""

from isles.models.networks import ACTIVATIONS, CNN, MLP, Network, side_by_side
from isles.models.reference import cifar10_head, imdb_head, kaiming, logistic, mnist_cnn, stds

__all__ = [
    "ACTIVATIONS",
    "CNN",
    "MLP",
    "Network",
    "cifar10_head",
    "imdb_head",
    "kaiming",
    "logistic",
    "mnist_cnn",
    "side_by_side",
    "stds",
]
