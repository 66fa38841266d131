"""scikit-learn estimators: a small network's posterior behind `fit` and `predict`. No numerics live here.

Data are padded to a few usual sizes, rows that do not count and features that are zero, so that many fits share
one compiled program. Neither changes the posterior of the parameters that are kept.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isles import checks
from isles.kernels import HMC
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
from isles.run import Engine, sample
from isles.samplers.block import Sampler
from isles.samplers.smc import SMC

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError(
        "isles.IslesClassifier and isles.IslesRegressor need scikit-learn 1.6 or newer; "
        "pip install 'isles[sklearn]'"
    ) from None

Floats = np.ndarray[Any, Any]

USUAL_ROWS, USUAL_FEATURES = 128, 4  # sizes of data are multiples of these
NOISE_MASS = 0.01  # of a learned noise, times what its prior alone would give
PREDICTED_ROWS = 128  # at a time, always: what a row is told does not depend on the others


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


def build(network: MLP, prior_std: float, noise: str | None = None, targets: tuple[int, ...] = ()) -> Model:
    """A model whose units' inputs are about `prior_std` in size a priori, whatever the widths of the layers.

    The log of a noise that the network predicts is about N(0, 1), as that of a learned one is: with the other
    outputs' scale, which grows with depth, most prior draws would have a noise of nothing or of thousands.
    """
    scale = checks.positive("prior_std", prior_std)
    stds: dict[str, Any] = {}
    for name, struct in network.shapes().items():
        stds[name] = scale / math.sqrt(struct.shape[1]) if len(struct.shape) == 2 else scale
    if noise == "predicted":
        share = 1 / (scale * math.sqrt(1 + _unit_square(network, scale)))
        shares = np.where(np.arange(network.outputs) < network.outputs // 2, 1.0, share)
        stds[f"w{network.layers}"] *= shares[:, None]
        stds[f"b{network.layers}"] *= shares
    return Model(network, stds, noise, targets)


def _unit_square(network: MLP, prior_std: float) -> float:
    """The mean square of the last hidden units a priori, where that of the inputs is 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)  # integrates over a standard Gaussian
    activation, _ = ACTIVATIONS[network.activation]
    square = 1.0
    for _ in network.hidden:
        units = np.asarray(activation(jnp.asarray(prior_std * math.sqrt(1 + square) * nodes)), np.float64)
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


class _Network(BaseEstimator):  # type: ignore[misc]
    """Settings and sampling that both estimators share."""

    def __init__(
        self,
        hidden: Any = (16,),
        *,
        activation: str = "relu",
        prior_std: float = 2.0,
        particles: int = 64,
        mutations: int = 10,
        leapfrogs: int = 20,
        islands: int = 4,
        sampler: Sampler | None = None,
        engine: str | Engine | None = None,
        workers: int | None = None,
        standardise: bool = True,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.prior_std = prior_std
        self.particles = particles
        self.mutations = mutations
        self.leapfrogs = leapfrogs
        self.islands = islands
        self.sampler = sampler
        self.engine = engine
        self.workers = workers
        self.standardise = standardise
        self.random_state = random_state
        self.verbose = verbose

    def _sample(
        self, x: Floats, y: Floats, outputs: int, noise: str | None = None, targets: tuple[int, ...] = ()
    ) -> None:
        """Sample the posterior of a network, given inputs that are checked and not yet scaled."""
        self.x_mean_, self.x_scale_ = _scales(x, self.standardise)
        model = build(MLP(x.shape[1], self.hidden, outputs, self.activation), self.prior_std, noise, targets)
        wide, sampler = model.widened(), self.sampler
        if sampler is None:
            kernel = HMC(leapfrogs=self.leapfrogs, target_acceptance=0.9, mass=wide.masses())
            sampler = SMC(kernel, self.particles, self.mutations)
        found = sample(
            pad(wide, self._scaled(x), y),
            sampler,
            islands=self.islands,
            seed=int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)),
            engine=self.engine,
            workers=self.workers,
            progress=bool(self.verbose),
        )
        self.posterior_ = unpad(found, model)

    def _predict(self, X: Any) -> tuple[Any, int]:
        """The predictive distribution at rows X and more that fill them up, and the number of rows."""
        check_is_fitted(self)
        x = self._scaled(validate_data(self, X, dtype=np.float64, reset=False))
        filled = np.concatenate([x, np.repeat(x[:1], -len(x) % PREDICTED_ROWS, axis=0)])
        return self.posterior_.predict(filled, chunk_rows=PREDICTED_ROWS), len(x)

    def _scaled(self, x: Floats) -> Floats:
        return ((x - self.x_mean_) / self.x_scale_).astype(np.float32)


class IslesClassifier(ClassifierMixin, _Network):  # type: ignore[misc]
    """A Bayesian neural network for classes: probabilities averaged over draws from its posterior.

    Features are standardised unless `standardise=False`. The defaults take about half a minute for a few hundred
    rows on two cores; warnings say when they were not enough.

    Args:
        hidden: widths of the hidden layers; `()` for a linear model.
        activation: `"relu"`, `"tanh"` or `"sigmoid"`.
        prior_std: standard deviation of biases a priori; that of weights is prior_std / √(inputs of the layer).
            `posterior_.log_evidence` says which value the data favour.
        particles: N, of each island.
        mutations: HMC steps of every particle in a stage.
        leapfrogs: of an HMC step.
        islands: P, independent repetitions, combined by their evidence.
        sampler: such as `isles.MCMC(...)`, instead of SMC with the three settings above, which then do not count.
        engine: where islands run, as for `isles.sample`: in this process, or `"local"` for worker processes.
        workers: processes of `engine="local"`.
        standardise: scale features to mean 0 and standard deviation 1 before all else. Predictions
            are in the units of the data; draws in `posterior_` are in those of the scaled data. Without it,
            scale them yourself: the prior expects values of about 1.
        random_state: an int gives the same result every time.
        verbose: show how the run goes.

    Attributes:
        posterior_: the `isles.Posterior`, with `diagnostics()`, `log_evidence` and draws.
        classes_: the labels, sorted.
        n_features_in_: number of features.
        feature_names_in_: their names, if X was a frame with names.

    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]] * 5), ["low", "low", "high", "high"] * 5
    >>> model = IslesClassifier(hidden=(), particles=32, random_state=0).fit(X, y)
    >>> model.predict([[-1.0], [4.0]]).tolist()
    ['low', 'high']
    """

    def fit(self, X: Any, y: Any) -> IslesClassifier:
        """Sample the posterior given rows X (n, features) and their labels y (n,), numbers or strings."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        count = len(self.classes_)
        if count < 2:
            raise ValueError(f"y holds one class only, {self.classes_[0]!r}; a classifier needs at least two")
        self._sample(X, labels.astype(np.int32), outputs=1 if count == 2 else count)
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities (n, classes), in the order of `classes_`."""
        classes, rows = self._predict(X)
        return classes.probabilities[:rows]

    def predict_log_proba(self, X: Any) -> Floats:
        """Their logarithms."""
        classes, rows = self._predict(X)
        return classes.log_probabilities[:rows]

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The most probable class of each row."""
        classes, rows = self._predict(X)
        return self.classes_[classes.labels[:rows]]

    def predict_entropy(self, X: Any) -> tuple[Floats, Floats]:
        """The entropy of each row's prediction in nats, and its epistemic part, which more data could remove.

        The first is large also where labels are noisy, the second only where the data say little.
        """
        classes, rows = self._predict(X)
        return classes.entropy[:rows], classes.epistemic[:rows]


class IslesRegressor(RegressorMixin, _Network):  # type: ignore[misc]
    """A Bayesian neural network for values: a mean and a standard deviation for each row.

    Features and targets are standardised unless `standardise=False`. The defaults take about half a minute for a
    few hundred rows on two cores; warnings say when they were not enough.

    Args:
        hidden: widths of the hidden layers; `()` for a linear model.
        noise: `"learned"`, one standard deviation for all rows; or `"predicted"`, a second output of the network.
            In both, its log is about N(0, 1) a priori, in units of the scaled targets.
        activation: `"relu"`, `"tanh"` or `"sigmoid"`.
        prior_std: standard deviation of biases a priori; that of weights is prior_std / √(inputs of the layer).
            `posterior_.log_evidence` says which value the data favour.
        particles: N, of each island.
        mutations: HMC steps of every particle in a stage.
        leapfrogs: of an HMC step.
        islands: P, independent repetitions, combined by their evidence.
        sampler: such as `isles.MCMC(...)`, instead of SMC with the three settings above, which then do not count.
        engine: where islands run, as for `isles.sample`: in this process, or `"local"` for worker processes.
        workers: processes of `engine="local"`.
        standardise: scale features and targets to mean 0 and standard deviation 1 before all else. Predictions
            are in the units of the data; draws in `posterior_` are in those of the scaled data. Without it,
            scale both yourself: the prior expects values of about 1.
        random_state: an int gives the same result every time.
        verbose: show how the run goes.

    Attributes:
        posterior_: the `isles.Posterior`, with `diagnostics()`, `log_evidence` and draws.
        n_features_in_: number of features.
        feature_names_in_: their names, if X was a frame with names.
    """

    def __init__(
        self,
        hidden: Any = (16,),
        *,
        noise: str = "learned",
        activation: str = "relu",
        prior_std: float = 2.0,
        particles: int = 64,
        mutations: int = 10,
        leapfrogs: int = 20,
        islands: int = 4,
        sampler: Sampler | None = None,
        engine: str | Engine | None = None,
        workers: int | None = None,
        standardise: bool = True,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            hidden, activation=activation, prior_std=prior_std, particles=particles, mutations=mutations,
            leapfrogs=leapfrogs, islands=islands, sampler=sampler, engine=engine, workers=workers,
            standardise=standardise, random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.noise = noise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> IslesRegressor:
        """Sample the posterior given rows X (n, features) and their targets y, (n,) or (n, outputs)."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2, multi_output=True, y_numeric=True)
        noise = checks.choice("noise", self.noise, ["learned", "predicted"])
        self.y_mean_, self.y_scale_ = _scales(y, self.standardise)
        scaled = ((y - self.y_mean_) / self.y_scale_).astype(np.float32)
        outputs = math.prod(y.shape[1:])
        self._sample(X, scaled, outputs if noise == "learned" else 2 * outputs, noise, y.shape[1:])
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of each row's target; with `return_std` also its standard deviation.

        The standard deviation is that of a new observation: it holds the noise and what is not known of the mean.
        """
        values, rows = self._predict(X)
        mean = self.y_mean_ + self.y_scale_ * values.mean[:rows]
        return (mean, self.y_scale_ * values.std[:rows]) if return_std else mean


def _scales(values: Floats, standardise: bool) -> tuple[Any, Any]:
    """Mean and standard deviation of each column, 1 where a column is constant; 0 and 1 if not to be scaled."""
    if not standardise:
        return 0.0, 1.0
    mean, std = values.mean(axis=0), values.std(axis=0)
    # what rounding leaves of a constant is no spread
    return mean, np.where(std > 10 * np.finfo(np.float64).eps * np.abs(mean), std, 1.0)
