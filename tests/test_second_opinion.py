"""BlackJAX as a second opinion on a logistic regression: same posterior mean, same evidence."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.smc import extend_params, resampling

import isles

RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(150), RNG.normal(size=(150, 4))]).astype(np.float32)
Y = (RNG.uniform(size=150) < 1 / (1 + np.exp(-X @ [0.5, 1.5, -1.0, 0.0, 0.7]))).astype(np.int32)
PRIOR = isles.Gaussian(like=np.zeros(5), std=3.0)
PROBLEM = isles.classification(lambda theta, x: x @ theta, PRIOR, X, Y)


def log_prior(theta: Any) -> Any:
    return jnp.sum(-0.5 * (theta / 3) ** 2 - jnp.log(3 * jnp.sqrt(2 * jnp.pi)))


def log_likelihood(theta: Any) -> Any:
    logits = X @ theta
    return jnp.sum(Y * logits - jnp.logaddexp(0.0, logits))


@pytest.fixture(scope="module")
def ours() -> isles.Posterior:
    return isles.sample(PROBLEM, isles.SMC(isles.HMC(leapfrogs=5), 512, 8), islands=32, seed=1)


def assert_agreement(one: Any, other: Any, scale: Any) -> None:
    """|difference| < 4 combined standard errors, each below 5 % of the posterior's standard deviation."""
    (a, error_a), (b, error_b) = one, other
    assert (error_a < 0.05 * scale).all() and (error_b < 0.05 * scale).all()
    assert (np.abs(a - b) < 4 * np.sqrt(error_a**2 + error_b**2)).all(), (a, b)


def test_tempered_smc_agrees(ours: isles.Posterior) -> None:
    algorithm = blackjax.adaptive_tempered_smc(
        log_prior,
        log_likelihood,
        blackjax.hmc.build_kernel(),
        blackjax.hmc.init,
        extend_params(
            {"step_size": jnp.array(0.1), "inverse_mass_matrix": jnp.eye(5), "num_integration_steps": jnp.array(8)}
        ),
        resampling.systematic,
        target_ess=0.5,
        num_mcmc_steps=8,
    )

    @jax.jit
    def run(key: Any) -> Any:
        key_prior, key_run = jax.random.split(key)
        start = algorithm.init(3 * jax.random.normal(key_prior, (512, 5)))

        def step(carry: Any) -> Any:
            state, number, log_z = carry
            state, info = algorithm.step(jax.random.fold_in(key_run, number), state)
            return state, number + 1, log_z + info.log_likelihood_increment

        state, _, log_z = jax.lax.while_loop(lambda c: c[0].tempering_param < 1, step, (start, 0, 0.0))
        mean = state.weights @ state.particles
        return mean, state.weights @ (state.particles - mean) ** 2, log_z

    means, variances, log_zs = map(np.asarray, jax.lax.map(run, jax.random.split(jax.random.key(0), 32)))
    scale = np.sqrt(variances.mean(axis=0))
    theirs = means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(32)
    assert_agreement(ours.expectation(lambda theta: theta), theirs, scale)
    np.testing.assert_allclose(ours.std(), scale, rtol=0.05)
    error = np.hypot(log_zs.std() / np.sqrt(32), ours.log_evidence_standard_error)
    assert error < 0.06
    assert abs(log_zs.mean() - ours.log_evidence) < 4 * error + log_zs.var() / 2


def test_hmc_agrees(ours: isles.Posterior) -> None:
    sampler = isles.MCMC(isles.HMC(leapfrogs=5), chains=32, burn_in=200, draws=50, thin=2)
    chains = isles.sample(PROBLEM, sampler, islands=16, seed=2)
    kernel = blackjax.hmc(
        lambda theta: log_prior(theta) + log_likelihood(theta),
        step_size=0.12,
        inverse_mass_matrix=jnp.ones(5),
        num_integration_steps=6,
    )

    @jax.jit
    def run(key: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            state, _ = kernel.step(key, state)
            return state, state.position

        state = kernel.init(jax.random.normal(key, (5,)) * 0.5)
        _, positions = jax.lax.scan(step, state, jax.random.split(jax.random.fold_in(key, 1), 1500))
        return positions[300:].mean(axis=0)

    means = np.asarray(jax.vmap(run)(jax.random.split(jax.random.key(1), 32)))
    theirs = means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(32)
    scale = ours.std()
    assert_agreement(chains.expectation(lambda theta: theta), theirs, scale)
    assert_agreement(ours.expectation(lambda theta: theta), theirs, scale)
