"""Masses from the Fisher information, and burn-in that rises through temperings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import isles
import truth
from isles import likelihoods
from isles.engines.local import Here
from isles.kernels import metric
from isles.samplers import burn_in
from kills import assert_same_bits

NOISE = 0.05
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(40, 3)) @ np.array([[1, 1, 1], [0, 0.1, 0], [0, 0, 0.02]])).astype(np.float32)
Y = X @ np.array([1.0, -1.0, 0.5]) + NOISE * RNG.normal(size=40)
PRECISION = X.astype(np.float64).T @ X / NOISE**2 + np.eye(3)  # of the posterior: stiff along no axis
FISHER = isles.HMC(leapfrogs=4, mass="fisher")


def linear(x: Any = X, y: Any = Y) -> isles.Problem:
    return isles.regression(lambda w, x: x @ w, isles.Gaussian(like=np.zeros(3)), x, y, noise_std=NOISE)


def test_the_metric_of_a_linear_model_is_its_posterior_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    look = burn_in._look

    def keep(*of: Any) -> Any:
        seen.append(np.asarray(found := look(*of)).copy())  # the run overwrites its own
        return found

    monkeypatch.setattr(burn_in, "_look", keep)
    sampler = isles.MCMC(FISHER, chains=16, burn_in=40, draws=20, thin=3)
    posterior = isles.sample(linear(), sampler, islands=32, seed=1)
    covariance = np.linalg.inv(PRECISION)
    truth.assert_moments(posterior, covariance @ (X.T @ Y) / NOISE**2, covariance)
    inverse, factor = np.asarray(seen[-1], np.float64)[0, :, 0]
    np.testing.assert_allclose(factor @ factor.T, PRECISION, rtol=1e-3)
    np.testing.assert_allclose(inverse @ PRECISION, np.eye(3), atol=0.02)
    assert len(seen) == 16, "a look before every twentieth of burn-in, in its first 80 %"
    assert posterior.epochs.parallel == 1 + 16 + (40 + 19 * 3) * 4
    assert np.median(posterior.trace["step_size"][-1]) > 0.3, "in the metric, the posterior is round"


def test_many_parameters_have_a_metric_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 3, 3 and 1, filled up: those of the dense metric, and chains that are right."""
    monkeypatch.setattr(metric, "MOST", 3)
    x = RNG.normal(size=(30, 7)) * np.geomspace(0.3, 3, 7)
    y = x @ np.linspace(-1, 1, 7) + RNG.normal(size=30)
    problem = isles.regression(lambda w, x: x @ w, isles.Gaussian(like=np.zeros(7)), x, y, noise_std=1.0)
    precision = x.T @ x + np.eye(7)
    scales = jnp.asarray(FISHER.tuning(problem).variances)
    assert scales.shape == (2, 3, 3, 3)
    vector = RNG.normal(size=7)
    np.testing.assert_allclose(metric.product(scales[0], jnp.asarray(vector, jnp.float32)), vector, rtol=1e-6)
    one = jnp.float32(1)
    inverse, factor = metric.fitted(problem, jnp.ones((2, 7)), one, scales, jnp.ones(7), one)
    dense = np.zeros((9, 9))
    dense[:7, :7] = precision
    dense[7:, 7:] = np.eye(2)
    for block in range(3):
        part = slice(3 * block, 3 * block + 3)
        found = np.asarray(factor[block], np.float64)
        np.testing.assert_allclose(found @ found.T, dense[part, part], rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(inverse[block], np.linalg.inv(dense[part, part]), rtol=1e-2, atol=1e-4)
    wanted = np.linalg.inv(dense[3:6, 3:6]) @ vector[3:6]
    np.testing.assert_allclose(metric.product(inverse, jnp.asarray(vector, jnp.float32))[3:6], wanted, rtol=1e-3)
    sampler = isles.MCMC(isles.HMC(leapfrogs=6, mass="fisher"), chains=16, burn_in=60, draws=60, thin=5)
    posterior = isles.sample(problem, sampler, islands=32, seed=1)
    covariance = np.linalg.inv(precision)
    truth.assert_moments(posterior, covariance @ (x.T @ y), covariance)


def test_rows_that_do_not_count_add_nothing_to_the_metric() -> None:
    plain = linear()
    fill = lambda array: np.concatenate([array, 7 * array[:5]])
    masked = isles.Problem(
        plain.prior, likelihoods.Masked(plain.log_likelihood), (fill(X), fill(Y), np.arange(45) < 40)
    )
    both = [likelihoods.fisher(likelihoods.inner(p), p, jnp.ones(3)) for p in (plain, masked)]
    np.testing.assert_allclose(both[1], both[0], rtol=1e-5)


def test_burn_in_begins_at_its_tempering_and_ends_at_the_posterior() -> None:
    sampler = isles.MCMC(burn_in=100, anneal=0.01)
    found = [burn_in.tempering(sampler, done) for done in (0, 25, 50, 75, 100)]
    np.testing.assert_allclose(found, [0.01, 0.1, 1, 1, 1])
    assert burn_in.tempering(isles.MCMC(burn_in=0, anneal=0.01), 0) == 0.01
    narrow = isles.Problem(isles.Gaussian(0.0), lambda t: -0.5 * jnp.square(t / 0.01))
    kernel = isles.MH(step_size=0.5)
    late = isles.sample(narrow, isles.MCMC(kernel, 1000, burn_in=2, anneal=1e-9), seed=1)
    assert np.mean(np.abs(late.positions) > 0.1) > 0.8, "steps at tempering 0 stay spread as the prior is"


@pytest.mark.usefixtures("compiled")
@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_interruptions_change_no_bit(tmp_path: Path) -> None:
    way = isles.Optimised(epochs=10)
    sampler = isles.MCMC(FISHER, chains=2, burn_in=20, draws=3, start=way, anneal=0.1)
    settings: dict[str, Any] = {"islands": 2, "seed": 2, "engine": Here(), "checkpoint_seconds": 1e-9}
    whole = isles.sample(linear(), sampler, **settings, folder=tmp_path / "whole")
    assert whole.epochs.parallel == 1 + 10 + 1 + 1 + 64 + 16 + 22 * 4
    with pytest.raises(isles.PartialRunError):
        isles.sample(
            linear(), sampler, **settings, folder=tmp_path / "cut", max_epochs=4 * 130, finish_started=False
        )
    assert_same_bits(whole, isles.resume(tmp_path / "cut", linear()))


def test_what_it_cannot_do() -> None:
    own = isles.Problem(isles.Gaussian(np.zeros(2)), lambda t: -jnp.sum(t**2))
    with pytest.raises(ValueError, match=r"mass='fisher' needs the Fisher information"):
        isles.sample(own, isles.MCMC(FISHER))
    with pytest.raises(ValueError, match=r"learned in the burn-in of isles.MCMC"):
        isles.sample(linear(), isles.SMC(FISHER))
    for anneal in 0.0, 1.5:
        with pytest.raises(ValueError, match="anneal"):
            isles.MCMC(anneal=anneal)
