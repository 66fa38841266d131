"""SMC against closed forms: moments, evidence, modes; what freezing and adapting promise."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import isles
import targets
import truth
from isles import weights
from isles.keys import root
from isles.samplers import tempered
from isles.samplers.block import Output

KERNELS = {
    "hmc": (isles.HMC(leapfrogs=5), 8),
    "hmc, trajectory": (isles.HMC(trajectory=1.0), 8),
    "hmc, population mass": (isles.HMC(leapfrogs=4, mass="population"), 8),
    "mala": (isles.MALA(), 30),
    "pcn": (isles.PCN(), 60),
    "mh": (isles.MH(), 60),
}


@pytest.mark.parametrize("name", KERNELS)
def test_moments_and_evidence_of_the_gaussian(name: str, gaussian: targets.Conjugate) -> None:
    kernel, mutations = KERNELS[name]
    sampler = isles.SMC(kernel, particles=1024, mutations=mutations)
    posterior = isles.sample(gaussian.problem, sampler, islands=64, seed=1)
    truth.assert_moments(posterior, gaussian.mean, gaussian.covariance)
    truth.assert_log_evidence(posterior, gaussian.log_evidence)


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # short, and it says so
def test_precise_observations() -> None:
    """4 observations with σ = 0.01 of 8 parameters: half the directions 300 times narrower than the rest."""
    case = targets.conjugate(dimension=8, rows=4, noise_std=0.01)
    sampler = isles.SMC(isles.HMC(leapfrogs=10), particles=1024, mutations=10)
    posterior = isles.sample(case.problem, sampler, islands=64, seed=2)
    truth.assert_moments(posterior, case.mean, case.covariance)
    truth.assert_log_evidence(posterior, case.log_evidence)


def test_mixture_finds_both_modes_and_their_weights() -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=10), particles=1024, mutations=8)
    posterior = isles.sample(targets.mixture(), sampler, islands=64, seed=3)
    truth.assert_log_evidence(posterior, 0.0)
    share = posterior.expectation(lambda theta: (jnp.sum(theta) > 0).astype(jnp.float32))
    truth.assert_estimate(share.value, share.standard_error, 0.2, bound=0.01)
    mean = posterior.expectation(jnp.mean)
    truth.assert_estimate(mean.value, mean.standard_error, -0.6, bound=0.02)


@pytest.mark.parametrize("resampling", weights.RESAMPLING)
def test_every_resampling_gives_the_same_answer(resampling: str, small: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=5), particles=256, mutations=4, resampling=resampling)
    posterior = isles.sample(small.problem, sampler, islands=128, seed=4)
    truth.assert_moments(posterior, small.mean, small.covariance)
    truth.assert_log_evidence(posterior, small.log_evidence)


def test_fixed_schedule(small: targets.Conjugate) -> None:
    schedule = [0.0, 0.02, 0.1, 0.3, 1.0]
    sampler = isles.SMC(isles.HMC(leapfrogs=5), particles=256, mutations=4, schedule=schedule)
    posterior = isles.sample(small.problem, sampler, islands=128, seed=5)
    np.testing.assert_allclose(posterior.trace["tempering"][:, 0], schedule[1:], rtol=1e-6)
    truth.assert_log_evidence(posterior, small.log_evidence)


def test_adaptive_tempering_keeps_its_promise(small: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=3), particles=200, mutations=2, ess_fraction=0.7)
    trace = isles.sample(small.problem, sampler, islands=16, seed=0).trace
    ess = trace["ess"]
    final = trace["tempering"] == 1
    middle = np.isfinite(ess) & ~final
    assert middle.sum() > 16
    np.testing.assert_allclose(ess[middle], 140, rtol=1e-3)
    assert (ess[final] >= 140 * (1 - 1e-3)).all()
    assert (np.diff(trace["tempering"], axis=0)[np.isfinite(trace["tempering"][1:])] > 0).all()


def test_decorrelate_stops_when_particles_have_forgotten(small: targets.Conjugate) -> None:
    rule = isles.Decorrelate(0.05, max=60)
    sampler = isles.SMC(isles.HMC(leapfrogs=3), particles=512, mutations=rule)
    posterior = isles.sample(small.problem, sampler, islands=64, seed=6)
    trace = posterior.trace
    ran = np.isfinite(trace["mutations"])
    early = ran & (trace["mutations"] < 60)
    assert early.sum() > 100
    assert (trace["correlation"][early] <= 0.05).all()
    assert len(np.unique(trace["mutations"][ran])) > 3, "every island decides for itself"
    truth.assert_moments(posterior, small.mean, small.covariance)
    truth.assert_log_evidence(posterior, small.log_evidence)


@pytest.mark.parametrize("rule", [isles.Decorrelate(max=10), isles.WhileFalling(max=10)])
def test_adaptive_mutations_warn_about_few_particles(rule: Any, small: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=3), particles=32, mutations=rule)
    with pytest.warns(isles.IslesWarning, match=rf"{type(rule).__name__} sees .* at least 100"):
        isles.sample(small.problem, sampler, islands=1)


# --- frozen samplers: exactly unbiased ---------------------------------------------------------------------


def pilot(case: targets.Conjugate, sampler: isles.SMC) -> isles.Posterior:
    return isles.sample(case.problem, dataclasses.replace(sampler, particles=256), seed=9)


@pytest.mark.parametrize(
    "sampler",
    [
        isles.SMC(isles.HMC(leapfrogs=5), particles=16, mutations=3),
        isles.SMC(isles.HMC(leapfrogs=5, mass="population"), particles=16, mutations=3),
        isles.SMC(isles.SmMALA(), particles=16, mutations=5),
        isles.SMC(isles.PCN(), particles=16, mutations=20),
        isles.SMC(isles.HMC(leapfrogs=5), particles=16, mutations=isles.Decorrelate(0.1, max=10)),
    ],
    ids=["hmc", "hmc with mass", "smmala", "pcn with D", "decorrelate"],
)
def test_frozen_evidence_is_unbiased(sampler: isles.SMC, small: targets.Conjugate) -> None:
    """E[Z] and E[Z · π(φ)] over 4096 islands, for φ = θ and φ = ‖u‖²."""
    frozen = sampler.frozen(pilot(small, sampler))
    posterior = isles.sample(small.problem, frozen, islands=4096, seed=7)
    assert posterior.evidence_kind == "unbiased"
    assert len(np.unique(posterior.trace["step_size"][0])) == 1
    ratios = np.exp(posterior.island_log_evidence - small.log_evidence)
    factor = np.linalg.inv(np.linalg.cholesky(small.covariance))
    white = (posterior.positions - small.mean) @ factor.T  # (P, N, d)
    columns = [np.ones(4096), *(1 + white.mean(axis=1).T), (white**2).mean(axis=(1, 2))]
    for column in columns:  # each has expectation 1 under the posterior
        products = ratios * column
        truth.assert_estimate(products.mean(), products.std() / 64, 1.0, bound=0.02)


def test_a_posterior_says_which_kind_its_evidence_is(small: targets.Conjugate) -> None:
    adaptive = isles.SMC(isles.HMC(leapfrogs=3), particles=64, mutations=4)
    fixed = isles.SMC(isles.HMC(leapfrogs=3, step_size=0.3), 64, 2, schedule=[0.02, 0.1, 0.3, 1.0])
    run = lambda sampler: isles.sample(small.problem, sampler, islands=4)
    assert run(adaptive).evidence_kind == "consistent"
    assert run(fixed).evidence_kind == "unbiased"
    assert (
        isles.sample(small.problem, isles.MCMC(isles.HMC(leapfrogs=3), burn_in=40, chains=4)).evidence_kind is None
    )


def test_freezing_needs_a_tempering_path(small: targets.Conjugate) -> None:
    chain = isles.sample(small.problem, isles.MCMC(isles.HMC(leapfrogs=3), burn_in=40, chains=4))
    with pytest.raises(ValueError, match="only a finished run of SMC or AIS"):
        isles.SMC().frozen(chain)


def test_freezing_on_another_problem_is_refused(small: targets.Conjugate, gaussian: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.PCN(), particles=16, mutations=2)
    frozen = sampler.frozen(pilot(small, sampler))
    with pytest.raises(ValueError, match="frozen on a problem of 4 parameters, this one has 16"):
        isles.sample(gaussian.problem, frozen)
    with pytest.raises(ValueError, match="pilot run with PCN, its kernel is HMC"):
        isles.sample(small.problem, dataclasses.replace(frozen, kernel=isles.HMC()))


def test_a_frozen_run_shares_no_random_number_with_its_pilot(small: targets.Conjugate) -> None:
    """With one seed for both, unbiasedness would be conditional on the draws that chose the schedule."""
    sampler = isles.SMC(isles.HMC(leapfrogs=5), 64, 3)
    first = isles.sample(small.problem, sampler, seed=0)
    again = isles.sample(small.problem, sampler.frozen(first), seed=0)
    start = lambda sampler: np.asarray(
        sampler.begin(small.problem, root(0), np.arange(1), Output({}, "all")).states.position
    )
    assert not np.isin(start(sampler), start(sampler.frozen(first))).any()
    assert repr(sampler.frozen(first)) != repr(sampler)
    assert again.log_evidence != first.log_evidence


def test_adaptive_runs_are_biased_like_one_over_n(small: targets.Conjugate) -> None:
    """What `evidence_kind` and the docs say: consistent in N, not in P; the standard error does not hold it."""
    biases = {}
    for particles in (8, 32):
        posterior = isles.sample(small.problem, isles.SMC(isles.HMC(leapfrogs=5), particles, 3), islands=4096)
        ratios = np.exp(posterior.island_log_evidence - small.log_evidence)
        biases[particles] = ratios.mean() - 1, ratios.std() / 64
    assert biases[8][0] < -3 * biases[8][1]
    assert abs(biases[32][0]) < 4 * biases[32][1] and biases[32][1] < 0.01


def test_a_block_can_be_advanced_twice(small: targets.Conjugate) -> None:
    """Advancing leaves the block it was given as it was, as retries and checkpoints need."""
    for sampler in (isles.SMC(isles.PCN(), 8, 2), isles.AIS(isles.HMC(), 8), isles.MCMC(isles.MH(), 8, 9)):
        block = sampler.begin(small.problem, root(0), np.arange(2), Output({}, "all"))
        first, second = sampler.advance(small.problem, block), sampler.advance(small.problem, block)
        states = lambda block: getattr(block, "group", block).states
        assert np.asarray(states(first).position).tobytes() == np.asarray(states(second).position).tobytes()


# --- faults that the tests above must catch ----------------------------------------------------------------


def test_dropping_the_one_over_n_is_caught(small: targets.Conjugate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "reweigh", lambda given: (weights.normalise(given), weights.log_sum_exp(given)))
    posterior = isles.sample(small.problem, isles.SMC(isles.HMC(leapfrogs=5), 256, 4), islands=128, seed=4)
    truth.assert_moments(posterior, small.mean, small.covariance)
    with pytest.raises(AssertionError):
        truth.assert_log_evidence(posterior, small.log_evidence)


@pytest.mark.defect("TFP: the same seed for resampling and mutation in every stage")
@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # short, and it says so
def test_reusing_the_seed_across_stages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten stages of one random-walk step on a nearly flat likelihood, so that only the noise can go wrong."""
    case = targets.conjugate(dimension=4, rows=4, noise_std=20.0)
    schedule = np.linspace(0.1, 1, 10)
    sampler = isles.SMC(isles.MH(step_size=1.0, scale="identity"), 64, 1, schedule=schedule)
    truth.assert_moments(isles.sample(case.problem, sampler, islands=256), case.mean, case.covariance)
    right = tempered.rows

    def always_stage_0(root: Any, purpose: Any, stage: Any, *rest: Any) -> Any:
        return right(root, purpose, 0, *rest)

    monkeypatch.setattr(tempered, "rows", always_stage_0)
    wrong = isles.sample(case.problem, sampler, islands=256)
    with pytest.raises(AssertionError):
        truth.assert_moments(wrong, case.mean, case.covariance)
