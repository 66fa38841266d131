"""Simplified manifold MALA: the Fisher information against closed forms, its cost, and what it samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, softmax

import isles
import targets
import truth
from isles import likelihoods
from isles.kernels import base
from isles.samplers import mutation

RNG = np.random.default_rng(0)
X = RNG.normal(size=(37, 3))
LABELS = RNG.integers(0, 3, size=37)


def fisher(problem: isles.Problem, position: Any) -> Any:
    known = likelihoods.known(problem)
    assert known is not None
    return jax.jit(lambda at: likelihoods.fisher(known, problem, at))(jnp.asarray(position, problem.dtype))


@pytest.mark.parametrize("chunk_rows", [37, 10, 1])
def test_fisher_information_of_a_logistic_regression(chunk_rows: int) -> None:
    prior = isles.Gaussian(like=np.zeros(3))
    problem = isles.classification(lambda w, x: x @ w, prior, X, LABELS == 1, chunk_rows=chunk_rows)
    w = np.array([0.5, -1.0, 2.0])
    p = expit(X @ w)
    np.testing.assert_allclose(fisher(problem, w), X.T @ np.diag(p * (1 - p)) @ X, rtol=1e-4, atol=1e-5)


def test_fisher_information_of_a_softmax_regression() -> None:
    prior = isles.Gaussian(like=np.zeros((3, 3)))
    problem = isles.classification(lambda w, x: x @ w, prior, X, LABELS, chunk_rows=16)
    w = RNG.normal(size=(3, 3))
    p = softmax(X @ w, axis=1)
    rows = [np.kron(np.outer(x, x), np.diag(q) - np.outer(q, q)) for x, q in zip(X, p, strict=True)]
    np.testing.assert_allclose(fisher(problem, w.ravel()), sum(rows), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("noise", [0.5, "learned", "predicted"])
def test_fisher_information_of_regressions(noise: Any) -> None:
    """XᵀX/σ² for the weights of the mean, 2 a row for those of log σ, and nothing between."""
    y = X @ np.ones(3)
    if noise == "predicted":
        prior, network = isles.Gaussian(like=np.zeros((3, 2))), lambda w, x: x @ w
        problem = isles.regression(network, prior, X, y[:, None], noise_std=noise)
        w = RNG.normal(size=(3, 2)) * 0.3
        expected = np.zeros((3, 2, 3, 2))
        expected[:, 0, :, 0] = X.T @ np.diag(np.exp(-2 * X @ w[:, 1])) @ X
        expected[:, 1, :, 1] = 2 * X.T @ X
        np.testing.assert_allclose(fisher(problem, w.ravel()), expected.reshape(6, 6), rtol=1e-3, atol=1e-4)
        return
    problem = isles.regression(targets.linear, isles.Gaussian(like=np.zeros(3)), X, y, noise_std=noise)
    if noise == "learned":  # parameters in the order of their names: log_noise_std, then the network's
        expected = np.zeros((4, 4))
        expected[0, 0], expected[1:, 1:] = 2 * len(X), X.T @ X / 0.7**2
        np.testing.assert_allclose(fisher(problem, [np.log(0.7), 1.0, 2.0, 3.0]), expected, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_allclose(fisher(problem, [1.0, 2.0, 3.0]), X.T @ X / 0.25, rtol=1e-4)


def test_fisher_information_of_a_network_is_the_covariance_of_its_scores() -> None:
    """E over labels of the outer product of score vectors, each by differentiating one row's likelihood."""
    network = isles.models.MLP(3, (4,), 3, activation="tanh")
    prior = isles.Gaussian(like=network.shapes())
    problem = isles.classification(network.apply, prior, X[:8], np.array([0, 1, 2, 0, 1, 2, 0, 1]))
    vector = prior.draw(jax.random.key(1))
    known = likelihoods.known(problem)
    assert known is not None
    total = np.zeros((problem.dimension, problem.dimension))
    for x in jnp.asarray(X[:8], jnp.float32):
        log_p = lambda v, label, x=x: known(problem.layout.unravel(v), (x[None], jnp.asarray([label])))
        for label in range(3):
            score = np.asarray(jax.grad(log_p)(vector, label), np.float64)
            total += np.exp(float(log_p(vector, label))) * np.outer(score, score)
    np.testing.assert_allclose(fisher(problem, vector), total, rtol=1e-3, atol=1e-4)


def test_smc_and_mcmc_find_the_gaussian(small: targets.Conjugate) -> None:
    """In the exact metric a Gaussian of any shape is round."""
    posterior = isles.sample(small.problem, isles.SMC(isles.SmMALA(), 256, mutations=8), islands=64, seed=1)
    truth.assert_moments(posterior, small.mean, small.covariance, bound=0.03)
    truth.assert_log_evidence(posterior, small.log_evidence)
    case = targets.conjugate(dimension=3, rows=4, dense=True)
    sampler = isles.MCMC(isles.SmMALA(), chains=64, burn_in=60, draws=100)
    posterior = isles.sample(case.problem, sampler, islands=32, seed=2)
    truth.assert_moments(posterior, case.mean, case.covariance)


def test_a_prior_of_ones_own_gives_its_variances() -> None:
    class Wide:
        def sample(self, key: Any) -> Any:
            return 3 * jax.random.normal(key, (2,))

        def log_prob(self, theta: Any) -> Any:
            return jnp.sum(jax.scipy.stats.norm.logpdf(theta, scale=3.0))

    x = RNG.normal(size=(6, 2))
    problem = isles.regression(targets.linear, Wide(), x, x @ np.ones(2), noise_std=1.0)
    covariance = np.linalg.inv(x.T @ x + np.eye(2) / 9)
    sampler = isles.SMC(isles.SmMALA(), 512, mutations=6)
    posterior = isles.sample(problem, sampler, islands=64, seed=3)
    truth.assert_moments(posterior, covariance @ x.T @ x @ np.ones(2), covariance)


def test_the_metric_is_paid_for() -> None:
    """One epoch for likelihood and gradient, and one for each number of a row that F is made of."""
    prior = isles.Gaussian(like=np.zeros((3, 3)))
    problem = isles.classification(lambda w, x: x @ w, prior, X, LABELS)
    posterior = isles.sample(problem, isles.SMC(isles.SmMALA(), 64, mutations=5))
    stages = np.isfinite(posterior.trace["tempering"][:, 0]).sum()
    assert posterior.epochs.parallel == 4 * (1 + 5 * stages)
    own = isles.MCMC(isles.SmMALA(fisher=lambda w, batch: jnp.eye(9) * len(batch[1])), chains=2, burn_in=30)
    assert isles.sample(problem, own).epochs.parallel == 2 * 31


def test_nothing_is_compiled_anew_when_numbers_change() -> None:
    problem = isles.regression(targets.linear, isles.Gaussian(like=np.zeros(3)), X, X @ np.ones(3), noise_std=0.3)
    isles.sample(problem, isles.SMC(isles.SmMALA(), 32, 4), islands=2)
    compiled = mutation.mutate_piece._cache_size()
    isles.sample(problem, isles.SMC(isles.SmMALA(target_acceptance=0.7), 32, 6, ess_fraction=0.7), islands=2)
    assert mutation.mutate_piece._cache_size() == compiled


def test_a_step_is_the_textbook_proposal_with_its_textbook_ratio() -> None:
    """One step on a dense prior, against densities of scipy in float64."""
    case, step_size, tempering = targets.conjugate(dimension=3, rows=4, dense=True), 0.8, 0.6
    kernel = isles.SmMALA()
    with jax.enable_x64(True):
        problem = targets.conjugate(dimension=3, rows=4, dense=True).problem
        tuning = kernel.tuning(problem)._replace(step_size=jnp.float64(step_size))
        start, key = np.array([0.3, -0.2, 0.8]), jax.random.key(5)
        state = kernel.init(problem, jnp.asarray(start))
        spy = Spy()
        _, info = spy.step(problem, key, state, jnp.float64(tempering), tuning)
        noise = np.asarray(jax.random.normal(jax.random.split(key)[0], (3,), jnp.float64))
    mean, covariance = case.tempered(tempering)  # G is the precision of the tempered posterior, everywhere
    centre = lambda at: at + step_size**2 / 2 * (mean - at)
    factor = np.linalg.cholesky(np.linalg.inv(covariance))
    end = centre(start) + step_size * np.linalg.solve(factor.T, noise)
    np.testing.assert_allclose(spy.seen[0], end, rtol=1e-9)
    log_q = lambda to, at: stats.multivariate_normal(centre(at), step_size**2 * covariance).logpdf(to)
    log_target = stats.multivariate_normal(mean, covariance).logpdf
    log_ratio = log_target(end) + log_q(start, end) - log_target(start) - log_q(end, start)
    assert float(info.acceptance) == pytest.approx(min(1.0, np.exp(log_ratio)), rel=1e-8)


@dataclass(frozen=True)
class Spy(isles.SmMALA):
    """Writes down the points that it proposes."""

    seen: list[Any] = field(default_factory=list)

    def init(self, problem: isles.Problem, position: Any) -> Any:
        self.seen.append(np.asarray(position))
        return super().init(problem, position)


def test_a_metric_that_is_not_finite_falls_back_on_the_prior() -> None:
    problem = targets.skewed()
    kernel = isles.SmMALA(fisher=lambda theta: jnp.full((1, 1), jnp.nan))
    state = kernel.init(problem, jnp.zeros(1))
    moved, info = kernel.step(problem, jax.random.key(0), state, jnp.float32(1), kernel.tuning(problem))
    assert np.isfinite(moved.position).all() and 0 < float(info.acceptance) <= 1
    assert base.Tuning(*kernel.tuning(problem)).variances == pytest.approx(1.44)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"function of your own; pass isles\.SmMALA\(fisher=function\)"):
        isles.sample(targets.skewed(), isles.SMC(isles.SmMALA()))
    with pytest.raises(ValueError, match=r"fisher returns shape \(1,\); 1 parameters need \(1, 1\)"):
        isles.sample(targets.skewed(), isles.SMC(isles.SmMALA(fisher=lambda theta: theta)))
    with pytest.raises(TypeError, match="must be a function"):
        isles.SmMALA(fisher=np.eye(2))  # type: ignore[arg-type]
