"""Small networks with their priors and likelihoods, over data padded to a few usual sizes.

Rows that do not count and features that are zero let many fits share one compiled program. Neither changes the
posterior of the parameters that are kept.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isles import checks
from isles.layout import Params
from isles.likelihoods import (
    Bernoulli,
    Categorical,
    GaussianNoise,
    Likelihood,
    Masked,
    with_noise_parameter,
)
from isles.models import ACTIVATIONS, MLP
from isles.posterior import Posterior
from isles.priors import Gaussian
from isles.problem import Problem

Floats = np.ndarray[Any, Any]

USUAL_ROWS, USUAL_FEATURES = 128, 4  # sizes of data are multiples of these
NOISE_MASS = 0.01  # of a learned noise, times what its prior alone would give


@dataclasses.dataclass(frozen=True)
class Model:
    """A network with its prior and likelihood; everything but the data."""

    network: MLP
    stds: dict[str, Any]  # prior standard deviations of each array of parameters, to be broadcast
    noise: str | None = None  # of a regression; None for classes
    targets: tuple[int, ...] = ()  # shape of one row of y

    @property
    def prior(self) -> Gaussian:
        """Independent Gaussians with mean 0."""
        prior = Gaussian(self.network.shapes(), std=self.stds)
        return with_noise_parameter(prior) if self.noise == "learned" else prior

    @property
    def likelihood(self) -> Likelihood:
        """Of classes or of values with noise."""
        inputs = (self.network.inputs,)
        if self.noise is not None:
            return GaussianNoise(self.network, self.noise, inputs, self.targets)
        if self.network.outputs == 1:
            return Bernoulli(self.network, inputs)
        return Categorical(self.network, inputs, self.network.outputs)

    def masses(self) -> Params:
        """For HMC: 1/variance of every parameter a priori; a learned noise is lighter.

        Found by trial: with the mass of its prior, islands missed where noise is small, and their evidence was
        nats off quadrature; with this one it is not. A likely reason is that weights which move faster than the
        noise resist its fall.
        """
        prior = self.prior
        masses: Any = prior.layout.unravel_numpy(1 / prior.variances())
        if self.noise == "learned":
            masses["log_noise_std"] = NOISE_MASS * masses["log_noise_std"]
        return masses

    def widened(self) -> Model:
        """With inputs of a usual number; the prior of each weight stays what it is."""
        inputs = usual(self.network.inputs, USUAL_FEATURES)
        return dataclasses.replace(self, network=dataclasses.replace(self.network, inputs=inputs))


def build(
    network: MLP,
    prior_std: float,
    noise: str | None = None,
    targets: tuple[int, ...] = (),
    noise_prior_std: float = 1.0,
    bias_prior_std: float | None = None,
) -> Model:
    """A model whose units' inputs are about `prior_std` in size a priori, whatever the widths of the layers.

    The log of a predicted noise is about N(0, noise_prior_std²), as that of a learned one is N(0, 1):
    with the other outputs' scale, which grows with depth, most prior draws would have a noise of nothing or of
    thousands.
    """
    scale = checks.positive("prior_std", prior_std)
    bias = scale if bias_prior_std is None else checks.positive("bias_prior_std", bias_prior_std)
    spread = checks.positive("noise_prior_std", noise_prior_std)
    stds: dict[str, Any] = {}
    for name, struct in network.shapes().items():
        stds[name] = scale / math.sqrt(struct.shape[1]) if len(struct.shape) == 2 else bias
    if noise == "predicted":
        share = spread / math.sqrt(bias**2 + scale**2 * _unit_square(network, scale, bias))
        shares = np.where(np.arange(network.outputs) < network.outputs // 2, 1.0, share)
        stds[f"w{network.layers}"] *= shares[:, None]
        stds[f"b{network.layers}"] *= shares
    return Model(network, stds, noise, targets)


def _unit_square(network: MLP, prior_std: float, bias_prior_std: float) -> float:
    """The mean square of the last hidden units a priori, where that of the inputs is 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)  # integrates over a standard Gaussian
    activation, _ = ACTIVATIONS[network.activation]
    square = 1.0
    for _ in network.hidden:
        size = math.sqrt(bias_prior_std**2 + prior_std**2 * square)
        units = np.asarray(activation(jnp.asarray(size * nodes)), np.float64)
        square = float(weights @ units**2 / weights.sum())
    return square


def usual(size: int, step: int) -> int:
    """The next multiple of `step`, or of an eighth to a quarter of `size` where that is more, as few sizes.

    >>> [usual(size, 128) for size in (1, 105, 150, 569, 100_000)]
    [128, 128, 256, 640, 114688]
    """
    step = max(step, 1 << max(size.bit_length() - 3, 0))
    return -(-size // step) * step


def pad(model: Model, x: Floats, y: Floats) -> Problem:
    """The problem of a `widened` model, over data padded with features of zeros and rows that do not count."""
    rows, features = x.shape
    more = usual(rows, USUAL_ROWS) - rows
    # copies of a row that is there: they can overflow only where it does
    repeat = lambda array: np.concatenate([array, np.repeat(array[:1], more, axis=0)])
    x = np.pad(repeat(x), ((0, 0), (0, model.network.inputs - features)))
    return Problem(model.prior, Masked(model.likelihood), (x, repeat(y), np.arange(rows + more) < rows))


def unpad(found: Posterior, model: Model) -> Posterior:
    """The posterior of `model` from that of `model.widened()`: weights of added features are left out.

    Those never met the likelihood. They are independent of all others, and the evidence is the same without them.
    """
    kept: Any = {name: np.ones(struct.shape) for name, struct in model.widened().network.shapes().items()}
    kept["w1"][:, model.network.inputs :] = 0
    if model.noise == "learned":
        kept = {"network": kept, "log_noise_std": 1.0}
    assert found.positions is not None
    positions = found.positions[..., found.layout.broadcast("kept", kept) > 0]
    prior = model.prior
    return dataclasses.replace(
        found,
        layout=prior.layout,
        positions=positions,
        log_prior=np.asarray(jax.vmap(jax.vmap(prior.log_density))(jnp.asarray(positions))),
        likelihood=model.likelihood,
        plan=None,  # it is one of the wider network
    )
