"""scikit-learn estimators: a small network's posterior behind `fit` and `predict`. No numerics live here."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np

from isles import checks
from isles.kernels import HMC
from isles.models import MLP
from isles.padding import build, pad, unpad
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

PREDICTED_ROWS = 128  # at a time, always: what a row is told does not depend on the others


class _Network(BaseEstimator):  # type: ignore[misc]
    """Settings and sampling that both estimators share; the defaults are those of classes.

    They were chosen inside training folds of four small data sets. A prior half as wide holds probabilities back
    from 0 and 1; with these, chains that start at optima, and come from the other side, predict the same.
    """

    def __init__(
        self,
        hidden: Any = (16,),
        *,
        activation: str = "relu",
        prior_std: float = 4.0,
        bias_prior_std: float | None = None,
        particles: int = 32,
        mutations: int = 5,
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
        self.bias_prior_std = bias_prior_std
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

    def _sample(self, x: Floats, y: Floats, outputs: int, **noise: Any) -> None:
        """Sample the posterior of a network, given inputs that are checked and not yet scaled."""
        self.x_mean_, self.x_scale_ = _scales(x, self.standardise)
        network = MLP(x.shape[1], self.hidden, outputs, self.activation)
        model = build(network, self.prior_std, bias_prior_std=self.bias_prior_std, **noise)
        wide, sampler = model.widened(), self.sampler
        if sampler is not None:
            self._check_sampler()
        else:
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

    def _check_sampler(self) -> None:
        """Raise if settings of the usual sampler were given beside one of the user's."""
        usual = inspect.signature(type(self)).parameters
        for name in ("particles", "mutations", "leapfrogs"):
            if (value := getattr(self, name)) != usual[name].default:
                raise ValueError(
                    f"{name}={value!r} is a setting of the usual sampler, and sampler= is given; set it on that"
                )

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
        prior_std: standard deviation of weights a priori, times √(inputs of the layer).
            `posterior_.log_evidence` says which value the data favour.
        bias_prior_std: standard deviation of biases a priori; that of `prior_std` by default.
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
        noise_prior_std: instead of that 1, for `"predicted"`: above it, noises of rows may differ more.
        activation: `"relu"`, `"tanh"` or `"sigmoid"`.
        prior_std: standard deviation of weights a priori, times √(inputs of the layer).
            `posterior_.log_evidence` says which value the data favour.
        bias_prior_std: standard deviation of biases a priori; that of `prior_std` by default.
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
        noise_prior_std: float = 1.0,
        activation: str = "relu",
        prior_std: float = 2.0,
        bias_prior_std: float | None = None,
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
            hidden, activation=activation, prior_std=prior_std, bias_prior_std=bias_prior_std, particles=particles,
            mutations=mutations, leapfrogs=leapfrogs, islands=islands, sampler=sampler, engine=engine,
            workers=workers, standardise=standardise, random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.noise = noise
        self.noise_prior_std = noise_prior_std

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> IslesRegressor:
        """Sample the posterior given rows X (n, features) and their targets y, (n,) or (n, outputs)."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2, multi_output=True, y_numeric=True)
        if y.dtype.kind not in "biuf":
            raise TypeError(f"y has dtype {y.dtype}, and targets must be numbers; for labels take IslesClassifier")
        noise = checks.choice("noise", self.noise, ["learned", "predicted"])
        self.y_mean_, self.y_scale_ = _scales(y, self.standardise)
        scaled = ((y - self.y_mean_) / self.y_scale_).astype(np.float32)
        outputs = math.prod(y.shape[1:])
        outputs *= 1 if noise == "learned" else 2
        self._sample(X, scaled, outputs, noise=noise, targets=y.shape[1:], noise_prior_std=self.noise_prior_std)
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
    if not isinstance(standardise, bool | np.bool_):
        raise TypeError(f"standardise={standardise!r} must be True or False")
    if not standardise:
        return 0.0, 1.0
    mean, std = values.mean(axis=0), values.std(axis=0)
    # what rounding leaves of a constant is no spread
    return mean, np.where(std > 10 * np.finfo(np.float64).eps * np.abs(mean), std, 1.0)
