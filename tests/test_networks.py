"""Networks end to end: SMC against long HMC as truth, and runs that are too short, which must say so."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles

GRID = np.array([[-2.0], [-0.5], [0.0], [0.7], [3.0]], np.float32)


@pytest.fixture(scope="module")
def small_network() -> tuple[isles.Problem, isles.models.MLP]:
    """Three hidden units, forty labels: symmetric modes, wide tails, and yet quick to explore."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.5, 1.5, (40, 1)).astype(np.float32)
    y = (rng.uniform(size=40) < 1 / (1 + np.exp(-3 * np.sin(2 * x[:, 0])))).astype(int)
    network = isles.models.MLP(1, (3,), 2, activation="tanh")
    prior = isles.Gaussian(like=network.shapes(), std=1.0)
    return isles.classification(network.apply, prior, x, y), network


def test_smc_and_long_hmc_predict_the_same(small_network: tuple[isles.Problem, isles.models.MLP]) -> None:
    problem, network = small_network
    kernel = isles.HMC(leapfrogs=8)
    probabilities = lambda params: jax.nn.softmax(network.apply(params, jnp.asarray(GRID)))[:, 1]
    entropy = lambda params: jnp.sum(
        jax.scipy.special.entr(jax.nn.softmax(network.apply(params, jnp.asarray(GRID)))), -1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isles.IslesWarning)  # single draws of short islands are noisy
        truth = isles.sample(
            problem, isles.MCMC(kernel, chains=32, burn_in=1000, draws=40, thin=25), islands=8, seed=1
        )
        smc = isles.sample(problem, isles.SMC(kernel, particles=256, mutations=10), islands=24, seed=2)
    assert truth.diagnostics()["R-hat"] < 1.02
    for function in (probabilities, entropy):
        one, two = truth.expectation(function), smc.expectation(function)
        error = np.hypot(one.standard_error, two.standard_error)
        assert (error < 0.01).all()
        np.testing.assert_array_less(np.abs(one.value - two.value), 4 * error)
    # what `predict` says is that same mean, and its epistemic part that same entropy's gap
    prediction = smc.predict(GRID)
    np.testing.assert_allclose(prediction.probabilities[:, 1], smc.expectation(probabilities).value, atol=1e-5)
    np.testing.assert_allclose(prediction.aleatoric, smc.expectation(entropy).value, atol=1e-5)


@pytest.fixture(scope="module")
def digits() -> isles.Problem:
    data = isles.data.load("digits", train=200)
    network = isles.models.MLP(64, (10,), 10)
    prior = isles.Gaussian(like=network.shapes(), std=0.5)
    return isles.classification(network.apply, prior, data.x_train.reshape(200, -1), data.y_train)


@pytest.mark.parametrize("islands", [1, 2])
def test_too_few_mutations_are_a_warning_that_says_what_to_raise(digits: isles.Problem, islands: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", isles.IslesWarning)
        posterior = isles.sample(digits, isles.SMC(isles.HMC(leapfrogs=1), 32, 1), islands=islands)
    short = [str(warning.message) for warning in caught if "too short" in str(warning.message)]
    assert len(short) == 1 and "raise mutations=1, or the kernel's trajectory or leapfrogs" in short[0]
    assert "too short" in str(posterior.diagnostics())


def test_enough_mutations_are_no_warning(digits: isles.Problem) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", isles.IslesWarning)
        posterior = isles.sample(digits, isles.SMC(isles.HMC(leapfrogs=10), 32, 12), islands=2)
    rise = posterior.trace["rise"]
    assert abs(np.nanmean(rise[len(rise) // 2 :])) < 0.2
    assert posterior.diagnostics()["correlation with stage's start"] < 0.5


def test_particles_that_never_move_are_a_warning() -> None:
    """The log-likelihood cannot rise if nothing moves; then copies give it away."""
    problem = isles.Problem(isles.Gaussian(like=np.zeros(3)), lambda theta: -50 * jnp.sum((theta - 1) ** 2))
    with pytest.warns(isles.IslesWarning, match="too short: .* stay copies"):
        isles.sample(problem, isles.SMC(isles.MH(step_size=1e-5), 64, 1))


def test_short_chains_are_a_warning_that_says_what_to_raise(digits: isles.Problem) -> None:
    kernel = isles.HMC(leapfrogs=10)
    with pytest.warns(isles.IslesWarning, match=r"too short: the mean log-likelihood rose .* raise burn_in=80"):
        isles.sample(digits, isles.MCMC(kernel, chains=32, burn_in=80), islands=2)


def test_long_chains_are_no_warning(digits: isles.Problem) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", isles.IslesWarning)
        isles.sample(digits, isles.MCMC(isles.HMC(leapfrogs=10), chains=32, burn_in=400), islands=2)
