"""The scikit-learn estimators: scikit-learn's own checks and models, and padding that changes nothing."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.datasets import load_diabetes, load_iris
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import isles
from isles import padding
from isles.models import MLP

# few particles and short trajectories: the checks are about behaviour, and there are a hundred fits of them
QUICK = {"hidden": (8,), "particles": 16, "mutations": 4, "leapfrogs": 8, "islands": 1, "random_state": 0}
RNG = np.random.default_rng(0)
quick = pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # so few particles deserve warnings

# divergent trajectories, one step in a thousand: rejected, and said
diverging = pytest.mark.filterwarnings("ignore:.*likelihood evaluations gave NaN:isles.IslesWarning")


@quick
@parametrize_with_checks([isles.IslesClassifier(**QUICK), isles.IslesRegressor(**QUICK)])
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@quick
@pytest.mark.parametrize(
    ("outputs", "noise", "targets"),
    [(1, None, ()), (3, None, ()), (1, "learned", ()), (2, "learned", (2,)), (2, "predicted", ())],
)
def test_padding_leaves_the_posterior_as_it_is(outputs: int, noise: Any, targets: tuple[int, ...]) -> None:
    x = RNG.normal(size=(21, 3)).astype(np.float32)
    network = MLP(3, (5,), outputs)
    model = padding.build(network, 2.0, noise, targets)
    prior = isles.Gaussian(network.shapes(), std=dict(model.stds))
    if noise is None:
        y = np.arange(21, dtype=np.int32) % max(outputs, 2)
        plain = isles.classification(network, prior, x, y)
    else:
        y = RNG.normal(size=(21, *targets)).astype(np.float32)
        plain = isles.regression(network, prior, x, y, noise_std=noise)
    padded = padding.pad(model.widened(), x, y)
    assert (plain.rows, padded.rows, padded.dimension - plain.dimension) == (21, 128, 5)

    draws = jax.vmap(padded.prior.draw)(jax.random.split(jax.random.key(0), 6))
    wide = jax.vmap(lambda position: padded.evaluate(position, gradient=True))(draws)
    layout = padded.layout
    # by name, not by the code under test: the last of four columns of w1 belongs to no feature
    column = jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.broadcast_to(np.arange(4) == 3, leaf.shape) if path[-1].key == "w1" else False,
        layout.struct(),
    )
    extra = layout.broadcast("extra", column) > 0
    narrow = jax.vmap(lambda position: plain.evaluate(position, gradient=True))(draws[:, ~extra])
    np.testing.assert_allclose(wide.log_likelihood, narrow.log_likelihood, rtol=1e-5)
    np.testing.assert_allclose(wide.gradient[:, ~extra], narrow.gradient, rtol=2e-3, atol=1e-3)
    np.testing.assert_array_equal(wide.gradient[:, extra], 0)  # so that these weights keep their prior
    std = dict(model.stds)["w1"]
    normal = -0.5 * (draws[:, extra] / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(wide.log_prior, narrow.log_prior + normal.sum(axis=1), rtol=1e-5)

    sampler = isles.SMC(isles.HMC(leapfrogs=8), particles=16, mutations=4)
    found = isles.sample(padded, sampler)
    kept = padding.unpad(found, model)
    states = jax.vmap(lambda position: plain.evaluate(position, gradient=False))(kept.positions[0])
    np.testing.assert_allclose(kept.log_likelihood[0], states.log_likelihood, rtol=1e-4)
    np.testing.assert_allclose(kept.log_prior[0], states.log_prior, rtol=1e-4)
    assert kept.layout == plain.layout


@diverging
def test_a_linear_model_is_that_of_scikit_learn() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = isles.IslesRegressor(hidden=(), islands=8, random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    scaled = StandardScaler().fit_transform(X)
    noise = np.mean(np.exp(model.posterior_.draws["log_noise_std"]))  # in units of y.std(); hardly uncertain
    ridge = Ridge(alpha=noise**2 / (2.0**2 / 10)).fit(scaled, y)  # the same prior: weights of variance 2²/10
    covariance = noise**2 * np.linalg.inv(scaled.T @ scaled + ridge.alpha * np.eye(10))
    wanted_std = y.std() * np.sqrt(
        noise**2 * (1 + 1 / len(y)) + np.einsum("ni,ij,nj->n", scaled, covariance, scaled)
    )
    assert np.abs(mean - ridge.predict(scaled)).max() < 0.05 * wanted_std.min()
    np.testing.assert_allclose(std, wanted_std, rtol=0.04)
    assert model.posterior_.draws["network"]["w1"].shape == (8, 64, 1, 10)
    assert model.posterior_.diagnostics()["R-hat between islands"] < 1.02


@quick
def test_the_evidence_of_a_linear_model_with_learned_noise() -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 5))
    y = X @ rng.normal(size=5) / np.sqrt(5) + 0.05 * rng.normal(size=60)
    found = isles.IslesRegressor(hidden=(), islands=16, random_state=0).fit(X, y).posterior_

    # given the noise, targets are Gaussian with a known covariance; over log noise ~ N(0, 1) by quadrature
    design = np.column_stack([StandardScaler().fit_transform(X) / np.sqrt(5), np.ones(60)])
    signal, vectors = np.linalg.eigh(4.0 * design @ design.T)
    squares = (vectors.T @ StandardScaler().fit_transform(y[:, None])) ** 2
    grid = np.linspace(-7, 3, 4001)
    variances = np.maximum(signal, 0)[:, None] + np.exp(2 * grid)
    log_density = -0.5 * np.sum(np.log(2 * np.pi * variances) + squares / variances, axis=0) + norm.logpdf(grid)
    log_evidence = logsumexp(log_density) + np.log(grid[1] - grid[0])
    mass = np.exp(log_density - logsumexp(log_density))
    mean = mass @ grid

    # with a noise as slow as the weights, off by 4.6
    assert abs(found.log_evidence - log_evidence) < 0.7
    log_noise = found.draws["log_noise_std"]
    assert abs(np.sum(found.weights * log_noise) - mean) < 0.25 * np.sqrt(mass @ (grid - mean) ** 2)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
@pytest.mark.parametrize(("hidden", "prior_std"), [((), 2.0), ((16,), 2.0), ((16, 16, 16, 16), 2.0), ((16,), 0.5)])
def test_a_predicted_noise_has_the_prior_of_a_learned_one(activation: str, hidden: Any, prior_std: float) -> None:
    network = MLP(8, hidden, 4, activation)
    model = padding.build(network, prior_std, "predicted", (2,))
    draws = jax.vmap(model.prior.sample)(jax.random.split(jax.random.key(0), 2000))
    x = RNG.normal(size=(1, 8)).astype(np.float32)
    x /= np.sqrt(np.mean(x**2))  # of the size that the prior expects
    outputs = jax.vmap(lambda params: network.plain(params, x)[0])(draws)
    np.testing.assert_allclose(np.mean(outputs[:, 2:] ** 2), 1.0, rtol=0.15)
    assert np.mean(outputs[:, :2] ** 2) > 0.9 * prior_std**2


def test_priors_of_biases_and_of_a_predicted_noise_are_as_asked() -> None:
    network = MLP(8, (16, 16), 2)
    model = padding.build(network, 2.0, "predicted", (), noise_prior_std=3.0, bias_prior_std=0.5)
    draws = jax.vmap(model.prior.sample)(jax.random.split(jax.random.key(0), 4000))
    outputs = jax.vmap(lambda params: network.plain(params, np.ones((1, 8), np.float32))[0])(draws)
    np.testing.assert_allclose(np.mean(outputs[:, 1] ** 2), 9.0, rtol=0.15)
    np.testing.assert_allclose([draws["b1"].std(), draws["w2"].std()], [0.5, 0.5], rtol=0.02)
    for name in "noise_prior_std", "bias_prior_std":
        with pytest.raises(ValueError, match=name):
            padding.build(network, 2.0, "predicted", (), **{name: 0.0})


@quick
def test_pipelines_searches_and_cross_validation() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    X = X.copy()
    X[::50, 0] = np.nan
    model = make_pipeline(SimpleImputer(), isles.IslesClassifier(**QUICK))
    search = GridSearchCV(model, {"islesclassifier__prior_std": [0.1, 3.0]}, cv=3).fit(X, names)
    assert search.best_params_ == {"islesclassifier__prior_std": 3.0}
    proba = cross_val_predict(search.best_estimator_, X, names, method="predict_proba", cv=3)
    rival = cross_val_predict(make_pipeline(SimpleImputer(), LogisticRegression(max_iter=500)), X, names, cv=3)
    accuracy = np.mean(np.unique(names)[proba.argmax(axis=1)] == names)
    assert accuracy > np.mean(rival == names) - 0.05
    fitted = search.best_estimator_
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert fitted.score(X[:50], ["unseen"] * 50) == 0


@quick
def test_uncertainty_grows_away_from_the_data() -> None:
    X = RNG.normal(size=(60, 2))
    labels = (X[:, 0] > 0).astype(int)
    classifier = isles.IslesClassifier(**QUICK).fit(X, labels)
    total, epistemic = classifier.predict_entropy(np.array([[-1.5, 0.0], [0.0, 30.0]]))
    assert (total >= epistemic).all() and (epistemic >= 0).all() and epistemic[1] > epistemic[0]
    probabilities = classifier.predict_proba(X)
    np.testing.assert_allclose(
        classifier.predict_entropy(X)[0], -(probabilities * np.log(probabilities)).sum(axis=1), rtol=1e-6
    )
    regressor = isles.IslesRegressor(noise="predicted", **QUICK).fit(X, 100 + 5 * X[:, 0])
    mean, std = regressor.predict(np.array([[0.0, 0.0], [0.0, 30.0]]), return_std=True)
    assert abs(mean[0] - 100) < 5 and std[1] > 3 * std[0]


@quick
def test_frames_keep_their_names() -> None:
    frame = pd.DataFrame(RNG.normal(size=(40, 2)), columns=["age", "dose"])
    model = isles.IslesClassifier(**QUICK).fit(frame, np.where(frame["dose"] > 0, "ill", "well"))
    assert list(model.feature_names_in_) == ["age", "dose"] and list(model.classes_) == ["ill", "well"]
    assert model.score(frame, np.where(frame["dose"] > 0, "ill", "well")) > 0.8
    with pytest.raises(ValueError, match=r"feature names should match"):
        model.predict(frame.rename(columns={"dose": "weight"}))


def test_bad_input_is_refused_before_sampling() -> None:
    X, y = RNG.normal(size=(10, 2)), np.arange(10) % 2
    fit = isles.IslesClassifier(**QUICK).fit
    with pytest.raises(ValueError, match=r"one class only, .*1.*needs at least two"):
        fit(X, np.ones(10, int))
    with pytest.raises(ValueError, match=r"contains NaN"):
        fit(np.where(X > 1, np.nan, X) * np.array([np.nan, 1]), y)
    with pytest.raises(ValueError, match=r"Unknown label type: continuous"):
        fit(X, y + 0.5 * RNG.normal(size=10))
    with pytest.raises(ValueError, match=r"mutations=7 is a setting of the usual sampler, and sampler= is given"):
        isles.IslesRegressor(mutations=7, sampler=isles.SMC()).fit(X, y)
    with pytest.raises(TypeError, match="standardise='no' must be True or False"):
        isles.IslesClassifier(standardise="no").fit(X, y)
    with pytest.raises(TypeError, match=r"y has dtype <U1, and targets must be numbers"):
        isles.IslesRegressor().fit(X, np.array(["a"] * 10))
    with pytest.raises(ValueError, match=r"prior_std=-1\.0 must be positive"):
        isles.IslesClassifier(prior_std=-1.0).fit(X, y)
    with pytest.raises(ValueError, match=r"noise='lerned' .* did you mean 'learned'"):
        isles.IslesRegressor(noise="lerned").fit(X, y)
