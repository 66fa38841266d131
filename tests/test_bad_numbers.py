"""NaN, infinities, extreme scales: a correct result, a warning or a clear error, never a silent wrong answer."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import isles
import truth

PRIOR = isles.Gaussian(like=np.zeros(2))
KERNELS = {
    "hmc": (isles.HMC(leapfrogs=5), 8),
    "mala": (isles.MALA(), 20),
    "mh": (isles.MH(), 30),
    "pcn": (isles.PCN(), 30),
}
DEFECTS = pytest.mark.defect("dynesty, pocoMC: regions of zero likelihood biased the evidence")


def half_space(outside: float) -> Any:
    """Likelihood exp(0.5 θ₁) where θ₀ > −0.5, `outside` elsewhere; Z = Φ(0.5) exp(1/8)."""

    def log_likelihood(theta: Any) -> Any:
        return jnp.where(theta[0] > -0.5, 0.5 * theta[1], outside)

    return isles.Problem(PRIOR, log_likelihood)


@DEFECTS
@pytest.mark.parametrize("outside", [-np.inf, np.nan, np.inf], ids=["zero", "NaN", "+inf"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_region_without_likelihood_is_excluded(name: str, outside: float, recwarn: Any) -> None:
    kernel, mutations = KERNELS[name]
    problem = half_space(outside)
    posterior = isles.sample(problem, isles.SMC(kernel, 256, mutations), islands=128, seed=1)
    truth.assert_log_evidence(posterior, float(np.log(stats.norm.cdf(0.5)) + 1 / 8))
    assert posterior.positions[..., 0].min() > -0.5
    value, error = posterior.expectation(lambda theta: theta)
    expected = [stats.norm.pdf(0.5) / stats.norm.cdf(0.5), 0.5]
    truth.assert_estimate(value, error, expected, bound=0.02)
    assert posterior.dead.sum() == pytest.approx(128 * 256 * stats.norm.sf(0.5), rel=0.05)
    reported = any("NaN, +inf or a non-finite gradient" in str(warning.message) for warning in recwarn)
    assert reported == (outside != -np.inf), "zero likelihood is legitimate, the others are reported"
    assert (posterior.nonfinite.sum() > 0) == reported
    assert posterior.diagnostics()["non-finite evaluations"] == posterior.nonfinite.sum()


@pytest.mark.defect("BlackJAX 1.7, PyMC #7292: one NaN makes all weights NaN, the population collapses silently")
def test_one_nan_particle_does_not_spoil_the_rest() -> None:
    """A single prior draw is NaN; every other particle lives on."""
    clean = isles.Problem(PRIOR, lambda theta: -jnp.sum((theta - 1) ** 2))
    sampler = isles.SMC(isles.MH(), particles=64, mutations=20)
    start = sampler.begin(clean, isles.keys.root(0), np.arange(1), isles.samplers.block.Output({}, "all"))
    victim = np.asarray(start.states.position)[7]
    spoiled = isles.Problem(
        PRIOR, lambda theta: jnp.where(theta[0] == victim[0], jnp.nan, -jnp.sum((theta - 1) ** 2))
    )
    with pytest.warns(isles.IslesWarning, match="1 of"):
        posterior = isles.sample(spoiled, sampler)
    assert posterior.dead.tolist() == [1]
    assert posterior.nonfinite.tolist() == [1]
    assert len(np.unique(posterior.positions[0, :, 0])) > 40
    assert np.isfinite(posterior.log_evidence)


def test_a_nan_gradient_is_rejected() -> None:
    """√|θ₀| has an infinite slope at 0 and log-likelihood uses it where the slope is NaN for θ₀ < −1."""

    @jax.custom_jvp
    def flat_with_bad_slope(x: Any) -> Any:
        return jnp.zeros_like(x)

    flat_with_bad_slope.defjvps(lambda tangent, ans, x: jnp.where(x < -1, jnp.nan, 0.0) * tangent)
    problem = isles.Problem(PRIOR, lambda theta: flat_with_bad_slope(theta[0]) + 0.0)
    with pytest.warns(isles.IslesWarning, match="non-finite gradient"):
        posterior = isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=3), 64, 5), islands=64)
    assert posterior.positions[..., 0].min() > -1
    assert posterior.log_evidence == pytest.approx(np.log(stats.norm.sf(-1)), abs=0.05)


@pytest.mark.parametrize("sampler", [isles.SMC(), isles.MCMC(), isles.AIS()], ids=lambda s: type(s).__name__)
def test_an_apply_that_always_fails_is_an_error_before_sampling(sampler: Any) -> None:
    problem = isles.regression(
        lambda theta, x: x @ theta * jnp.nan, PRIOR, np.ones((5, 2)), np.ones(5), noise_std=1.0
    )
    with pytest.raises(isles.DeadIslandsError, match=r"stage 0.*gave NaN, \+inf.*NaN in the data.*prior\.sample"):
        isles.sample(problem, sampler)


def test_likelihood_zero_everywhere_is_an_error() -> None:
    problem = isles.Problem(PRIOR, lambda theta: jnp.where(theta[0] > 100, 0.0, -jnp.inf))
    with pytest.raises(isles.DeadIslandsError, match="prior density of zero; widen the likelihood"):
        isles.sample(problem, isles.SMC(), islands=2)


def test_dead_islands_count_with_evidence_zero() -> None:
    """Support of prior probability Φ(−2): most islands of 4 particles miss it, the mean Z is still right."""
    problem = isles.Problem(PRIOR, lambda theta: jnp.where(theta[0] > 2, 0.0, -jnp.inf))
    sampler = isles.SMC(isles.MH(step_size=0.5), particles=4, mutations=3, schedule=[1.0])
    with pytest.warns(isles.IslesWarning) as caught:
        posterior = isles.sample(problem, sampler, islands=4096)
    assert any("count with evidence 0" in str(warning.message) for warning in caught)
    dead = np.isneginf(posterior.island_log_evidence)
    assert 0.8 < dead.mean() < 1
    assert (posterior.island_weights[dead] == 0).all()
    truth.assert_log_evidence(posterior, float(stats.norm.logsf(2)), bound=0.06)
    value, error = posterior.expectation(lambda theta: theta[0])
    truth.assert_estimate(value, error, stats.norm.pdf(2) / stats.norm.sf(2), bound=0.05)


@pytest.mark.parametrize("sampler", [isles.SMC(isles.MH(), 4, 3), isles.MCMC(isles.MH(), chains=2, burn_in=5)])
def test_dead_islands_survive_in_blocks_of_any_size(sampler: Any) -> None:
    problem = isles.Problem(PRIOR, lambda theta: jnp.where(theta[0] > 0.5, 0.0, -jnp.inf))
    for size in (16, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", isles.IslesWarning)
            posterior = isles.sample(problem, sampler, islands=16, seed=0, islands_per_block=size)
        assert len(posterior.island_weights) == 16
        assert 0 < (posterior.island_weights == 0).sum() < 16
        assert np.isfinite(posterior.expectation(lambda theta: theta).value).all()
        assert {values.shape[1] for values in posterior.trace.values()} == {16}
    if isinstance(sampler, isles.SMC):
        assert sampler.frozen(posterior).plan is not None


def test_all_islands_dead_is_an_error_in_blocks_of_any_size() -> None:
    problem = isles.Problem(PRIOR, lambda theta: jnp.sum(theta) * jnp.nan)
    for sampler in (isles.SMC(), isles.MCMC()):
        with pytest.raises(isles.DeadIslandsError, match="island 0"):
            isles.sample(problem, sampler, islands=3, islands_per_block=1)


def test_dead_particles_of_ais_do_not_look_like_disagreement() -> None:
    problem = isles.Problem(PRIOR, lambda theta: jnp.where(theta[0] > 0, 0.0, -jnp.inf))
    posterior = isles.sample(problem, isles.AIS(isles.MH(), 64), islands=8)
    assert posterior.dead.min() > 0
    assert posterior.diagnostics()["R-hat between islands"] < 1.1


def test_chains_outside_the_support_have_no_weight() -> None:
    """Random walks too timid to find the support from where they start."""
    problem = isles.Problem(PRIOR, lambda theta: jnp.where(theta[0] > 0, 0.0, -jnp.inf))
    with pytest.warns(isles.IslesWarning, match="these draws have weight 0"):
        posterior = isles.sample(problem, isles.MCMC(isles.MH(step_size=1e-3), chains=64, burn_in=10))
    inside = posterior.positions[..., 0] > 0
    assert 0 < inside.mean() < 1
    np.testing.assert_array_equal(posterior.weights > 0, inside)


SCALE = 1e9


def sharp(theta: Any) -> Any:
    return -0.5 * SCALE * (jnp.sum((theta - 0.5) ** 2) + 1)  # residuals that no θ removes


@pytest.mark.defect("PyMC, TFP: tempering steps below 1e-6 cannot be resolved")
def test_a_likelihood_scaled_by_a_thousand_million_in_float64() -> None:
    with jax.enable_x64(True):
        problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), sharp)
        assert problem.dtype == np.float64
        posterior = isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=5), 512, 5), islands=128, seed=1)
    assert posterior.trace["tempering"][0].max() < 1e-6
    variance = 1 / (1 + SCALE)
    exact = np.log(variance) - 0.5 * 2 * 0.25 * SCALE * variance - 0.5 * SCALE
    truth.assert_log_evidence(posterior, float(exact))
    with jax.enable_x64(True):
        truth.assert_moments(posterior, np.full(2, 0.5 * SCALE * variance), variance * np.eye(2))
    assert posterior.expectation(lambda theta: theta).value == pytest.approx(0.5, abs=1e-5), "in float32 too"


def test_the_same_in_float32_warns() -> None:
    problem = isles.Problem(PRIOR, sharp)
    with pytest.warns(isles.IslesWarning) as caught:
        isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=5), 64, 5), islands=2)
    assert any("run in float64" in str(warning.message) for warning in caught)


@pytest.mark.defect("BlackJAX: a bad fixed step size ends with one unique particle and no warning")
def test_a_hopeless_step_size_is_reported() -> None:
    problem = isles.Problem(PRIOR, lambda theta: -50.0 * jnp.sum((theta - 0.5) ** 2))
    with pytest.warns(isles.IslesWarning, match="particles hardly move"):
        isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=3, step_size=30.0), 64, 3))


@pytest.mark.defect("Pigeons #92: errors in the model silently became zero likelihood")
def test_errors_of_the_users_function_come_through() -> None:
    def broken(theta: Any) -> Any:
        raise RuntimeError("the user's own mistake")

    with pytest.raises(RuntimeError, match="the user's own mistake"):
        isles.Problem(PRIOR, broken)


@pytest.mark.defect("TFP: state cast to float32 whatever the user runs in")
def test_float64_stays_float64() -> None:
    with jax.enable_x64(True):
        problem = isles.Problem(isles.Gaussian(like=np.zeros(3)), lambda theta: -jnp.sum(theta**2))
        posterior = isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=3), 32, 3))
        assert posterior.positions.dtype == np.float64
        assert posterior.draws.dtype == np.float64


class HalfDefined:
    """Draws of N(0, I), with a density that is NaN where a coordinate is negative: an error of its author's."""

    def sample(self, key: Any) -> Any:
        return jax.random.normal(key, (2,))

    def log_prob(self, theta: Any) -> Any:
        return jnp.sum(jax.scipy.stats.norm.logpdf(theta) + 0 * jnp.log(theta))


@pytest.mark.parametrize("name", ["hmc", "mala", "mh"])
def test_draws_without_a_prior_density_are_counted_and_win_no_weight(name: str, recwarn: Any) -> None:
    """Three of four quadrants are lost: Z = E[exp(θ₀/2); θ > 0] = Φ(1/2) exp(1/8) / 2."""
    kernel, mutations = KERNELS[name]
    problem = isles.Problem(HalfDefined(), lambda theta: 0.5 * theta[0])
    posterior = isles.sample(problem, isles.SMC(kernel, 256, mutations), islands=128, seed=3)
    assert (posterior.draws > 0).all() and np.isfinite(posterior.log_prior).all()
    assert posterior.dead.sum() == pytest.approx(0.75 * 128 * 256, rel=0.05)
    assert posterior.nonfinite.sum() >= posterior.dead.sum()
    assert any("gave NaN" in str(one.message) and "log and / of zero" in str(one.message) for one in recwarn)
    truth.assert_log_evidence(posterior, float(np.log(stats.norm.cdf(0.5) / 2) + 1 / 8))
    value, error = posterior.expectation(lambda theta: theta)
    expected = [0.5 + stats.norm.pdf(0.5) / stats.norm.cdf(0.5), np.sqrt(2 / np.pi)]
    truth.assert_estimate(value, error, expected, bound=0.02)
