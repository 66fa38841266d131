"""Networks as frozen `init`/`apply` pairs, fast when many particles run at once, and scales of priors for them."""

from isles.models.networks import ACTIVATIONS, CNN, MLP
from isles.models.reference import cifar10_head, imdb_head, kaiming, logistic, mnist_cnn, stds
from isles.models.stacking import Network, side_by_side

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
