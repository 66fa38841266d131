"""Optimised baselines against closed forms and scikit-learn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import isles
import targets
from isles.baselines import deep_ensemble, map_estimate

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3))


@pytest.mark.parametrize("dense", [False, True], ids=["independent", "correlated prior"])
def test_map_of_a_conjugate_regression_is_its_mean(dense: bool) -> None:
    with jax.enable_x64(True):
        case = targets.conjugate(dimension=4, rows=12, noise_std=0.7, seed=2, dense=dense)
        fit = map_estimate(case.problem, epochs=3000, learning_rate=0.05, seed=1)
        standardised = (fit.draws[0, 0] - case.mean) / np.sqrt(np.diag(case.covariance))
    assert np.abs(standardised).max() < 1e-5
    assert fit.kind == "MAP estimate" and fit.log_evidence is None and fit.log_weights.shape == (1, 1)
    assert fit.epochs == (3001, 3001)
    assert repr(fit) == "Posterior(1 islands x 1 draws of 4 parameters, MAP estimate)"
    assert fit.diagnostics()["these are"] == "MAP estimate"


def test_maximum_likelihood_is_least_squares() -> None:
    with jax.enable_x64(True):
        case = targets.conjugate(dimension=4, rows=12, noise_std=0.7, seed=2)
        fit = map_estimate(case.problem, epochs=3000, learning_rate=0.05, prior=False)
    np.testing.assert_allclose(fit.draws[0, 0], np.linalg.lstsq(case.x, case.y)[0], atol=1e-5)
    assert fit.kind == "maximum likelihood"


@pytest.mark.parametrize("classes", [2, 3])
def test_map_of_logistic_regression_is_scikit_learns(classes: int) -> None:
    y = (X @ RNG.normal(size=(3, classes)) + RNG.gumbel(size=(80, classes))).argmax(axis=1)
    std = 0.8
    with jax.enable_x64(True):
        like = np.zeros(3 if classes == 2 else (3, classes))
        problem = isles.classification(lambda w, x: x @ w, isles.Gaussian(like, std=std), X, y)
        fit = map_estimate(problem, epochs=2000, learning_rate=0.05)
        probabilities = fit.predict(X).probabilities
    other = LogisticRegression(C=std**2, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(fit.draws[0, 0].T, other.coef_.squeeze(), atol=1e-5)
    np.testing.assert_allclose(probabilities, other.predict_proba(X), atol=1e-5)


def two_modes() -> isles.Problem:
    """Modes near −1 and, higher, near 1."""
    likelihood = lambda t: jnp.logaddexp(2.0 - 50 * (t - 1) ** 2, -50 * (t + 1) ** 2)
    return isles.Problem(isles.Gaussian(like=0.0), likelihood)


def test_many_starts_find_the_higher_mode_and_members_both() -> None:
    members = deep_ensemble(two_modes(), 12, epochs=200, learning_rate=0.05)
    ends = members.draws[0]
    assert set(np.round(ends).tolist()) == {-1.0, 1.0}, "each member ends where it began"
    np.testing.assert_allclose(np.abs(ends), 100 / 101, atol=1e-3)
    best = map_estimate(two_modes(), epochs=200, learning_rate=0.05, starts=12)
    assert best.draws[0, 0] in ends[ends > 0] and best.epochs == (201, 12 * 201)
    assert members.kind == "deep ensemble" and "members=12" in members.sampler
    np.testing.assert_array_equal(members.weights, np.full((1, 12), 1 / 12))
    assert members.expectation(lambda t: t).standard_error is None, "members are no islands"


def test_seeds_decide_the_starts_and_nothing_else() -> None:
    one, two, other = (deep_ensemble(two_modes(), 4, epochs=20, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.positions, two.positions)
    assert (one.positions != other.positions).all()
    more = deep_ensemble(two_modes(), 6, epochs=20, seed=3)
    np.testing.assert_allclose(more.positions[:, :4], one.positions, rtol=1e-5)


def test_an_ensemble_of_networks_predicts_evaluates_and_is_saved(tmp_path: Path) -> None:
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    network = isles.models.MLP(3, (16,), 2, activation="tanh")
    problem = isles.classification(network, isles.Gaussian(network.shapes(), std=1.5), X, y)
    ensemble = deep_ensemble(problem, 5, epochs=300, learning_rate=0.05)
    prediction = ensemble.predict(X)
    scores = isles.metrics.evaluate(prediction, y, ood=ensemble.predict(6 * RNG.normal(size=(50, 3))))
    assert scores["accuracy"] > 0.95 and prediction.epistemic.max() > 0.01
    plain = deep_ensemble(problem, 5, epochs=300, learning_rate=0.05, prior=False)
    assert plain.log_likelihood.min() > ensemble.log_likelihood.max(), "nothing holds it back"
    assert plain.kind == "deep ensemble, maximum likelihood"
    ensemble.save(tmp_path / "ensemble")
    loaded = isles.load(tmp_path / "ensemble")
    assert loaded.kind == "deep ensemble"
    np.testing.assert_array_equal(loaded.predict(X).probabilities, prediction.probabilities)
    with pytest.raises(ValueError, match="estimates no evidence"):
        ensemble.with_weights("evidence")


def test_fits_without_a_likelihood_are_reported() -> None:
    prior = isles.Gaussian(like=0.0)
    half = isles.Problem(prior, lambda t: jnp.where(t > 0, -((t - 1) ** 2), -jnp.inf))
    with pytest.warns(isles.IslesWarning, match="of 8 fits have no usable likelihood"):
        members = deep_ensemble(half, 8, epochs=50, learning_rate=0.05)
    assert members.weights.sum() == pytest.approx(1) and (members.draws[members.weights > 0] > 0).all()
    with pytest.raises(isles.DeadIslandsError, match="none of 3 fits has a usable likelihood"):
        deep_ensemble(isles.Problem(prior, lambda t: t * jnp.nan), 3, epochs=5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 0}, "members=0 must be at least 1"),
        ({"epochs": 0}, "epochs=0 must be at least 1"),
        ({"learning_rate": -1.0}, r"learning_rate=-1\.0 must be positive"),
        ({"seed": -1}, "seed=-1"),
        ({"problem": 3}, "problem=3 must be an isles.Problem"),
    ],
)
def test_bad_settings(settings: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        deep_ensemble(**({"problem": two_modes()} | settings))


def test_without_optax_the_error_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match=r"pip install 'isles\[baselines\]'"):
        map_estimate(two_modes())
