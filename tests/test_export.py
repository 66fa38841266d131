"""Export to ArviZ: its summaries against closed forms, its leave-one-out scores against exact ones."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy import stats

import isles
import targets

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ announces its own next version
    import arviz as az

CASE = targets.conjugate(dimension=4, rows=30, seed=1)


@pytest.fixture(scope="module")
def smc() -> isles.Posterior:
    return isles.sample(CASE.problem, isles.SMC(isles.HMC(leapfrogs=5), particles=500, mutations=10), islands=4)


def exact_leave_one_out() -> np.ndarray[Any, Any]:
    """log p(y_i | all others) of a linear model, each from a fit without the row."""
    scores = []
    for row in range(len(CASE.y)):
        x, y = np.delete(CASE.x, row, axis=0), np.delete(CASE.y, row)
        covariance = np.linalg.inv(np.linalg.inv(CASE.prior_covariance) + x.T @ x)
        mean, new = covariance @ (x.T @ y), CASE.x[row]
        scores.append(stats.norm.logpdf(CASE.y[row], new @ mean, np.sqrt(1 + new @ covariance @ new)))
    return np.array(scores)


def test_summary_gives_the_moments_of_the_posterior(smc: isles.Posterior) -> None:
    table = az.summary(smc.to_arviz(), round_to=None)
    assert list(table.index) == [f"parameters[{number}]" for number in range(4)]
    spread = np.sqrt(np.diag(CASE.covariance))
    np.testing.assert_allclose(table["mean"], CASE.mean, atol=5 * spread.max() / np.sqrt(2000))
    np.testing.assert_allclose(table["sd"], spread, rtol=0.1)
    np.testing.assert_allclose(table["mean"], smc.mean(), atol=0.05 * spread.min())  # resampling adds little


def test_leave_one_out_is_the_exact_one(smc: isles.Posterior) -> None:
    data = smc.to_arviz(CASE.x, CASE.y)
    found = az.loo(data, pointwise=True)
    exact = exact_leave_one_out()
    np.testing.assert_allclose(found.loo_i, exact, atol=0.1)
    assert abs(found.elpd_loo - exact.sum()) < 0.3
    positions = smc.to_arviz().posterior["parameters"].values
    by_scipy = stats.norm.logpdf(CASE.y, positions @ CASE.x.T, 1.0)
    np.testing.assert_allclose(data.log_likelihood["y"].values, by_scipy, atol=1e-4)


def test_draws_come_as_often_as_their_weights_say(smc: isles.Posterior) -> None:
    data = smc.to_arviz()
    w = smc.weights.ravel()
    islands = data.sample_stats["island"].values.ravel()
    np.testing.assert_allclose(np.bincount(islands, minlength=4) / islands.size, smc.island_weights, atol=1e-3)
    values, counts = np.unique(data.posterior["parameters"].values[..., 0], return_counts=True)
    first = np.asarray(smc.positions[..., 0], np.float64).ravel()
    expected = np.array([w[first == value].sum() * w.size for value in values])
    assert (abs(counts - expected) < 1.001).all()
    stat = data.sample_stats
    np.testing.assert_allclose(stat["lp"], stat["log_prior"] + stat["total_log_likelihood"])
    assert set(np.unique(stat["weight"])) <= set(w)
    assert ((stat["acceptance_rate"] > 0.3) & (stat["acceptance_rate"] < 1)).all()


def test_chains_are_chains() -> None:
    sampler = isles.MCMC(isles.HMC(leapfrogs=5), chains=3, burn_in=100, draws=50)
    posterior = isles.sample(CASE.problem, sampler, islands=2)
    values = posterior.to_arviz().posterior["parameters"].values
    assert values.shape == (6, 50, 4)
    np.testing.assert_array_equal(values, posterior.chain_positions().reshape(6, 50, 4))


def test_classes_and_names() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), np.arange(20) % 3
    network = isles.models.MLP(2, (3,), 3)
    problem = isles.classification(network, isles.Gaussian(network.shapes()), x, y)
    posterior = isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=5), particles=8, mutations=5))
    data = posterior.to_arviz(x, y)
    assert data.posterior["w1"].shape == (1, 8, 3, 2)
    np.testing.assert_allclose(
        data.log_likelihood["y"].sum("y_dim_0"), data.sample_stats["total_log_likelihood"], rtol=1e-4
    )
    with pytest.raises(ValueError, match=r"give both"):
        posterior.to_arviz(x)
    with pytest.raises(ValueError, match=r"labels"):
        posterior.to_arviz(x, y + 5)
