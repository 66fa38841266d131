"""Variational inference, Laplace, dropout and stochastic gradient chains against what is known of them exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

import isles
import targets
from isles.baselines import Thinned, deep_ensemble, laplace, map_estimate, mc_dropout, mean_field, sghmc, sgld

DRAWS = 20_000


def assert_draws(posterior: isles.Posterior, mean: Any, covariance: Any) -> None:
    """Draws of N(mean, covariance), as far as so many independent ones can tell, in whitened coordinates."""
    assert posterior.positions is not None
    theta = posterior.positions.reshape(-1, posterior.layout.size).astype(np.float64)
    u = (theta - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    error = 1 / np.sqrt(len(u))
    assert np.abs(u.mean(axis=0)).max() < 4 * error + 0.005
    assert np.abs(u.T @ u / len(u) - np.eye(len(covariance))).max() < 5 * np.sqrt(2) * error + 0.005


# --- mean-field variational inference -------------------------------------------------------------------------


def test_mean_field_on_a_correlated_gaussian() -> None:
    case = targets.conjugate(dimension=3, rows=5, noise_std=0.7, seed=6)
    precision = np.linalg.inv(case.covariance)
    best = np.diag(1 / np.diag(precision))
    assert (np.diag(case.covariance) > 1.2 * np.diag(best)).all(), "the target is correlated enough to tell"
    found = mean_field(case.problem, DRAWS, epochs=4000, learning_rate=0.05, samples=32)
    standardised = (found.mean() - case.mean) / np.sqrt(np.diag(best))
    assert np.abs(standardised).max() < 4 / np.sqrt(DRAWS) + 0.005
    np.testing.assert_allclose(found.std() ** 2, np.diag(best), rtol=0.05)
    logs = [np.linalg.slogdet(matrix)[1] for matrix in (best, case.covariance)]
    divergence = 0.5 * (np.trace(precision @ best) - 3 - logs[0] + logs[1])
    assert found.diagnostics()["ELBO"] == pytest.approx(case.log_evidence - divergence, abs=0.03)
    assert divergence > 0.3 and found.log_evidence is None, "a bound is no estimate"
    assert found.epochs == (4001, 4000 * 32 + DRAWS)


# --- Laplace ----------------------------------------------------------------------------------------------------


def line(dense: bool) -> tuple[isles.Problem, Any, Any]:
    """y = a·x + b + noise as a problem, and its posterior's mean and precision, in the order (b, a)."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20, 2)) @ [[1.0, 0.8], [0.0, 0.6]]
    y = x @ [1.0, -1.0] + 0.5 + 0.4 * rng.normal(size=20)
    covariance = (
        np.array([[1.0, 0.5, 0.2], [0.5, 2.0, 0.0], [0.2, 0.0, 1.5]]) if dense else np.diag([1.0, 4.0, 4.0])
    )
    like = {"a": np.zeros(2), "b": 0.0}
    order = [1, 2, 0]  # of (a, b), as parameters are flattened
    prior = isles.Gaussian(like, std={"a": 2.0, "b": 1.0})
    if dense:
        prior = isles.Gaussian(like, covariance=covariance[np.ix_(order, order)])
    design = np.column_stack([np.ones(20), x])
    precision = np.linalg.inv(covariance) + design.T @ design / 0.16
    mean = np.linalg.solve(precision, design.T @ y / 0.16)
    problem = isles.regression(lambda p, x: x @ p["a"] + p["b"], prior, x, y, noise_std=0.4)
    return problem, mean[order], precision[np.ix_(order, order)]


@pytest.mark.parametrize("dense", [False, True], ids=["independent", "correlated prior"])
def test_laplace_of_a_linear_gaussian_model(dense: bool) -> None:
    problem, mean, precision = line(dense)
    fit = {"epochs": 1500, "learning_rate": 0.05}
    diagonal = laplace(problem, DRAWS, **fit)
    assert_draws(diagonal, mean, np.diag(1 / np.diag(precision)))
    full = laplace(problem, DRAWS, last_layer=["a", "b"], **fit)
    assert_draws(full, mean, np.linalg.inv(precision))
    assert diagonal.epochs == full.epochs == (1501 + 2 + 1, 1501 + 2 + DRAWS)
    assert diagonal.kind == "Laplace, diagonal" and full.kind == "Laplace, last layer"


def test_laplace_of_the_last_layer_is_the_conjugate_answer_for_its_features() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(30, 2)).astype(np.float32)
    y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=30)
    network = isles.models.MLP(2, (5,), 1, activation="tanh")
    problem = isles.regression(network, isles.Gaussian(network.shapes(), std=1.5), x, y, noise_std=0.3)
    found = laplace(problem, DRAWS, last_layer=True, epochs=16_000, learning_rate=0.05)  # Adam needs them
    params = {name: values[0] for name, values in found.draws.items()}
    assert (params["w1"] == params["w1"][0]).all() and (params["b1"] == params["b1"][0]).all()
    features = np.column_stack([np.tanh(x @ params["w1"][0].T + params["b1"][0]), np.ones(30)])
    covariance = np.linalg.inv(features.T @ features / 0.09 + np.eye(6) / 1.5**2)
    assert covariance.diagonal().min() > 1e-4
    last = np.column_stack([params["w2"][:, 0], params["b2"]]).astype(np.float64)
    whitened = (last - covariance @ features.T @ y / 0.09) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    assert np.abs(whitened.mean(axis=0)).max() < 0.05
    assert np.abs(np.cov(whitened.T) - np.eye(6)).max() < 0.05


@pytest.mark.parametrize("classes", [2, 3])
def test_laplace_of_logistic_regression(classes: int) -> None:
    """There the generalised Gauss-Newton is the Hessian: Σ x xᵀ ⊗ (diag(p) − ppᵀ) and the prior's precision."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 2))
    y = rng.integers(0, classes, 60)
    like = np.zeros(2 if classes == 2 else (2, classes))
    problem = isles.classification(lambda w, x: x @ w, isles.Gaussian(like, std=2.0), x, y)
    found = laplace(problem, DRAWS, epochs=1000, learning_rate=0.05)
    fit = np.asarray(map_estimate(problem, epochs=1000, learning_rate=0.05).draws[0, 0], np.float64)
    logits = x @ fit if classes > 2 else np.column_stack([np.zeros(60), x @ fit])
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    diagonal = np.einsum("ni,nk->ik", x**2, p * (1 - p))
    diagonal = (diagonal if classes > 2 else diagonal[:, 1]).ravel() + 0.25
    assert_draws(found, fit.ravel(), np.diag(1 / diagonal))


def test_laplace_knows_the_curvature_of_a_learned_noise() -> None:
    """The Fisher information of log std is 2 a datum."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(40, 1))
    y = 2 * x[:, 0] + 0.5 * rng.normal(size=40)
    prior = isles.Gaussian(np.zeros(1), std=3.0)
    problem = isles.regression(lambda w, x: x @ w, prior, x, y, noise_std="learned")
    draws = laplace(problem, DRAWS, epochs=1000, learning_rate=0.05).draws
    assert np.var(draws["log_noise_std"]) == pytest.approx(1 / (2 * 40 + 1), rel=0.05)
    noise = np.exp(np.mean(draws["log_noise_std"], dtype=np.float64))
    expected = 1 / ((x**2).sum() / noise**2 + 1 / 9)
    assert np.var(draws["network"]) == pytest.approx(expected, rel=0.05)


# --- SGLD and SGHMC ---------------------------------------------------------------------------------------------

ROWS = np.random.default_rng(9).normal(0.5, 1.0, size=20)
PRECISION = len(ROWS) + 1.0


def location() -> isles.Problem:
    """The mean of rows with unit noise: the noise of minibatches is the same everywhere."""
    return isles.regression(lambda w, x: x * w, isles.Gaussian(0.0), np.ones(20), ROWS, noise_std=1.0)


@pytest.mark.parametrize("batch_rows", [None, 5])
def test_sgld_has_the_variance_that_its_step_size_gives_it(batch_rows: int | None) -> None:
    step = 0.5 / PRECISION
    epochs = 300 if batch_rows is None else 75
    found = sgld(
        location(), 2000, epochs=epochs, step_size=step, first_step_size=2 * step, batch_rows=batch_rows, draws=10
    )
    noise = 0.0 if batch_rows is None else 20**2 / batch_rows * ROWS.var()
    variance = (1 + step * noise / 4) / (PRECISION - step * PRECISION**2 / 4)
    assert variance * PRECISION > 1.1, "the error of the step size is seen"
    assert np.mean(found.draws) == pytest.approx(ROWS.sum() / PRECISION, abs=4 * np.sqrt(variance / 10_000))
    assert np.var(found.draws) == pytest.approx(variance, rel=0.05)
    assert found.epochs == (epochs + 10, 2000 * (epochs + 10)) and found.draw_steps == 15
    assert found.chains.shape == (2000, 1, 10) and found.diagnostics()["R-hat"] < 1.05


def test_sghmc_has_the_variance_of_its_discrete_dynamics() -> None:
    step, friction = 0.5 / PRECISION, 0.2
    found = sghmc(location(), 2000, epochs=400, step_size=step, friction=friction, draws=8)
    pull = 0.5 * step * PRECISION
    dynamics = np.array([[1 - pull, 1 - friction], [-pull, 1 - friction]])
    variance = solve_discrete_lyapunov(dynamics, friction * step * np.ones((2, 2)))[0, 0]
    assert np.mean(found.draws) == pytest.approx(ROWS.sum() / PRECISION, abs=4 * np.sqrt(variance / 8000))
    assert np.var(found.draws) == pytest.approx(variance, rel=0.05)
    assert variance * PRECISION > 1.05 and found.kind == "SGHMC"


def test_sgld_may_start_at_optima_and_says_when_it_diverges() -> None:
    way = isles.Optimised(epochs=150, learning_rate=0.1)
    found = sgld(location(), 3, epochs=4, step_size=1e-9, draws=1, start=way)
    np.testing.assert_allclose(found.draws, ROWS.sum() / PRECISION, atol=0.05)
    assert found.epochs == (4 + 1 + 150, 3 * 155)
    with pytest.raises(isles.DeadIslandsError, match=r"none of 6 draws .*lower step_size=3\.0"):
        sgld(location(), 3, epochs=400, step_size=3.0, draws=2)


# --- MC dropout -------------------------------------------------------------------------------------------------

RATE = 0.25


def drop_inputs(w: Any, x: Any, key: Any) -> Any:
    return (x * jax.random.bernoulli(key, 1 - RATE, x.shape) / (1 - RATE)) @ w


def test_dropout_of_a_linear_network() -> None:
    """Trained: a ridge of p/(1−p) Σ x² more. Predicted: variances p/(1−p) Σ (w x)²."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(30, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=30)
    problem = isles.regression(targets.linear, isles.Gaussian(np.zeros(3)), x, y, noise_std=0.3)
    found = mc_dropout(problem, drop_inputs, DRAWS, epochs=2000, learning_rate=0.05)
    w, ratio = found.draws["network"][0, 0].astype(np.float64), RATE / (1 - RATE)
    ridge = np.eye(3) + (x.T @ x + ratio * np.diag((x**2).sum(axis=0))) / 0.09
    np.testing.assert_allclose(w, np.linalg.solve(ridge, x.T @ y / 0.09), atol=0.05)
    prediction = found.predict(x[:5])
    variance = ratio * ((w * x[:5]) ** 2).sum(axis=1)
    np.testing.assert_allclose(prediction.epistemic, variance, rtol=0.06)
    np.testing.assert_allclose(prediction.mean, x[:5] @ w, atol=0.05)
    apart = found.predict(x[:5], chunk_rows=2)
    np.testing.assert_allclose(apart.mean, prediction.mean, rtol=1e-5)
    assert found.epochs == (2001, 2000 + DRAWS)
    means = found.predict(np.repeat(x[:1], 2, axis=0), per_draw=True).means[0]
    np.testing.assert_array_equal(means[:, 0], means[:, 1])


def equinox_network(x: Any) -> tuple[Any, Any, Any]:
    keys = jax.random.split(jax.random.key(0))
    layers = [eqx.nn.Linear(3, 8, key=keys[0]), eqx.nn.Dropout(0.5), eqx.nn.Linear(8, 2, key=keys[1])]
    module = eqx.nn.Sequential(layers)
    apply, params = isles.from_equinox(eqx.nn.inference_mode(module))
    rows = lambda x, key: jax.random.split(key, len(x))
    return apply, params, lambda p, x, key: jax.vmap(eqx.combine(p, module))(x, key=rows(x, key))


def test_dropout_of_an_equinox_network(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    apply, params, dropped = equinox_network(x)
    problem = isles.classification(apply, isles.Gaussian(params), x, (x[:, 0] > 0).astype(int))
    found = mc_dropout(problem, dropped, 20, epochs=200, learning_rate=0.05, batch_rows=20)
    prediction = found.predict(x)
    assert isles.metrics.accuracy(prediction, x[:, 0] > 0) > 0.9 and prediction.epistemic.min() > 1e-4
    found.save(tmp_path / "dropout")
    like = {"network": params, "mask": 0.0}
    loaded = isles.load(tmp_path / "dropout", apply=Thinned(dropped), like=like)
    np.testing.assert_array_equal(loaded.predict(x).probabilities, prediction.probabilities)


# --- all of them ------------------------------------------------------------------------------------------------


class Counted:
    """A likelihood that counts the rows it has seen."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, theta: Any, rows: Any) -> Any:
        jax.debug.callback(lambda _: self.see(len(rows)), theta)  # with an operand: once for every particle
        return -0.5 * jnp.sum((rows - theta) ** 2)

    def see(self, count: int) -> None:
        self.rows += count


@pytest.mark.parametrize(
    "fit",
    [
        lambda problem: mean_field(problem, 7, epochs=3, batch_rows=2, samples=4),
        lambda problem: sgld(problem, 3, epochs=4, batch_rows=5, draws=2),
    ],
)
def test_every_row_is_counted(fit: Any) -> None:
    likelihood = Counted()
    rng = np.random.default_rng(7)
    found = fit(isles.Problem(isles.Gaussian(np.zeros(2)), likelihood, rng.normal(size=(10, 2))))
    jax.effects_barrier()
    assert likelihood.rows == 10 * found.epochs.total


def test_minibatches_find_the_map_estimate() -> None:
    case = targets.conjugate(dimension=3, rows=30, seed=4)
    fit = map_estimate(case.problem, epochs=500, learning_rate=0.05, batch_rows=5)
    standardised = (fit.draws[0, 0] - case.mean) / np.sqrt(np.diag(case.covariance))
    assert np.abs(standardised).max() < 0.2


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda p: mean_field(p, samples=3), r"samples=3 must be even, since they come in pairs; take 4"),
        (lambda p: mean_field(p, 0), r"draws=0 must be at least 1"),
        (lambda p: mean_field(p, batch_rows=21), r"batch_rows=21 must be at most the 20 rows of data"),
        (lambda p: mean_field(p, first_std=0.0), r"first_std=0.0 must be positive"),
        (lambda p: deep_ensemble(p, batch_rows=2.5), r"batch_rows=2.5 must be a whole number"),
        (lambda p: deep_ensemble(p, epochs=1 << 30, batch_rows=1), r"make 21474836480 steps"),
        (lambda p: laplace(p, last_layer=["w9"]), r"no parameter is called 'w9'"),
        (lambda p: laplace(p, last_layer="w"), r"last_layer='w' must be True, False or a list of names"),
        (lambda p: laplace(p, last_layer=True), r"last_layer=True knows networks of isles.models only"),
        (lambda p: laplace(own_likelihood()), r"Laplace's approximation needs to know what the network predicts"),
        (
            lambda p: mc_dropout(own_likelihood(), drop_inputs),
            r"MC dropout needs to know what the network predicts",
        ),
        (lambda p: mean_field(own_likelihood(), batch_rows=2), r"batch_rows=2 needs data= to draw rows from"),
        (lambda p: mc_dropout(p, targets.linear), r"third argument is a key for dropout"),
        (lambda p: mc_dropout(p, lambda w, x, key: x[:1]), r"both must be the same network"),
        (lambda p: mc_dropout(p, 3), r"apply=3 must be a function of \(params, x, key\)"),
        (lambda p: sgld(p, burn_in=1.0), r"burn_in=1.0 must lie strictly between 0 and 1"),
        (lambda p: sgld(p, epochs=10, draws=6), r"leave 5 steps after burn-in, too few for draws=6"),
        (lambda p: sgld(p, step_size=0), r"step_size=0.0 must be positive"),
        (lambda p: sgld(p, start="optimized"), r"did you mean 'optimised'"),
        (lambda p: sgld(p, start=3), r"start=3 must be 'prior', 'optimised' or isles.Optimised"),
        (lambda p: sghmc(p, friction=1.5), r"friction=1.5 must lie strictly between 0 and 1"),
        (lambda p: sghmc(3), r"problem=3 must be an isles.Problem"),
    ],
)
def test_bad_settings(fit: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        fit(location())


def own_likelihood() -> isles.Problem:
    return isles.Problem(isles.Gaussian(like=0.0), lambda t: -(t**2))
