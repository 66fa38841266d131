"""MCMC and AIS against closed forms, and what they promise about steps, memory and adaptation."""

from __future__ import annotations

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
import targets
import truth
from isles.samplers import mcmc, pace

KERNELS = {
    "hmc": (isles.HMC(leapfrogs=5), 300, 20),
    "hmc, population mass": (isles.HMC(leapfrogs=4, mass="population"), 300, 20),
    "mala": (isles.MALA(), 500, 50),
    "pcn": (isles.PCN(), 1500, 150),
    "mh": (isles.MH(), 1500, 150),
}


@pytest.mark.parametrize("name", KERNELS)
def test_parallel_chains_on_the_gaussian(name: str, gaussian: targets.Conjugate) -> None:
    kernel, burn_in, thin = KERNELS[name]
    sampler = isles.MCMC(kernel, chains=64, burn_in=burn_in, draws=4, thin=thin)
    posterior = isles.sample(gaussian.problem, sampler, islands=64, seed=1)
    truth.assert_moments(posterior, gaussian.mean, gaussian.covariance)
    assert posterior.log_evidence is None


def test_serial_chain(small: targets.Conjugate) -> None:
    """One long chain an island, and its own error from the autocorrelation time."""
    sampler = isles.MCMC(isles.HMC(leapfrogs=5), chains=1, burn_in=500, draws=4000)
    posterior = isles.sample(small.problem, sampler, islands=16, seed=2)
    truth.assert_moments(posterior, small.mean, small.covariance)
    chains = posterior.chains
    assert chains.shape == (16, 1, 4000, 4)
    time = isles.diagnostics.iact(chains[:, 0])
    error = np.sqrt(np.diag(small.covariance) * time / (16 * 4000))
    assert (np.abs(chains.mean(axis=(0, 1, 2)) - small.mean) < 4 * error).all()
    islands_error = posterior.expectation(lambda theta: theta).standard_error
    np.testing.assert_allclose(islands_error, error, rtol=0.8)


def test_draw_k_is_the_state_after_burn_in_and_thinned_steps(small: targets.Conjugate) -> None:
    kernel = isles.HMC(leapfrogs=3, step_size=0.2)
    run = lambda **settings: isles.sample(small.problem, isles.MCMC(kernel, chains=2, **settings), seed=3)
    every = run(burn_in=0, draws=20)
    thinned = run(burn_in=5, draws=4, thin=3)
    np.testing.assert_array_equal(thinned.chains, every.chains[:, :, 5:15:3])
    assert thinned.epochs.parallel == 1 + 3 * (5 + 3 * 3)
    with pytest.warns(isles.IslesWarning, match=r"burn_in=0 and draws=1 make no step.*raise burn_in"):
        first = run(burn_in=0, draws=1)
    assert first.epochs == isles.Epochs(1, 2)


def test_adaptation_ends_in_burn_in(small: targets.Conjugate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcmc, "PIECES", 10)
    sampler = isles.MCMC(isles.PCN(), chains=8, burn_in=100, draws=60)
    steps, sizes = (isles.sample(small.problem, sampler).trace[name][:, 0] for name in ("step", "step_size"))
    assert len(np.unique(sizes[steps >= 80])) == 1
    assert len(np.unique(sizes[steps <= 80])) == 8


def test_where_a_group_is_cut_changes_no_bit(small: targets.Conjugate, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = isles.MCMC(isles.HMC(trajectory=0.7), chains=4, burn_in=50, draws=30, thin=2)
    whole = isles.sample(small.problem, sampler, islands=3, seed=4)
    monkeypatch.setattr(mcmc, "PIECES", 7)
    monkeypatch.setattr(mcmc, "BUFFER_BYTES", 4000)
    cut = isles.sample(small.problem, sampler, islands=3, seed=4)
    assert len(cut.trace["step"]) != len(whole.trace["step"])
    assert cut.positions.tobytes() == whole.positions.tobytes()
    assert cut.epochs == whole.epochs


def test_long_chains_in_bounded_memory(small: targets.Conjugate) -> None:
    kernel = isles.HMC(leapfrogs=3)
    sampler = isles.MCMC(kernel, chains=2, burn_in=50, draws=2500)
    collect = {"theta": lambda theta: theta, "norm": lambda theta: {"square": jnp.sum(theta**2)}}
    everything = isles.sample(small.problem, sampler, islands=4, seed=5)
    for keep, kept in [("all", 2500), ("thinned", 834), ("none", None)]:
        posterior = isles.sample(small.problem, sampler, islands=4, seed=5, collect=collect, keep=keep)
        direct = everything.expectation(lambda theta: theta)
        np.testing.assert_allclose(posterior.collected["theta"].value, direct.value, rtol=1e-6)
        np.testing.assert_allclose(posterior.collected["theta"].standard_error, direct.standard_error, rtol=1e-4)
        assert posterior.collected["norm"].value["square"].shape == ()
        if kept:
            np.testing.assert_array_equal(posterior.chains, everything.chains[:, :, :: -(-2500 // kept)])
        else:
            with pytest.raises(ValueError, match="kept no draws"):
                _ = posterior.draws


# --- step sizes of chains ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hmc", "hmc, population mass", "pcn"])
def test_chains_that_are_tuned_alone_on_the_gaussian(name: str, gaussian: targets.Conjugate) -> None:
    kernel, burn_in, thin = KERNELS[name]
    sampler = isles.MCMC(kernel, 64, 4 * burn_in, draws=4, thin=4 * thin, tune="alone")  # one chain learns slowly
    posterior = isles.sample(gaussian.problem, sampler, islands=64, seed=1)
    truth.assert_moments(posterior, gaussian.mean, gaussian.covariance)


@pytest.mark.parametrize("tune", ["alone", "together"])
def test_a_chain_that_is_tuned_alone_knows_nothing_of_others(tune: str, small: targets.Conjugate) -> None:
    run = lambda chains: isles.sample(
        small.problem, isles.MCMC(isles.HMC(leapfrogs=3), chains, burn_in=40, draws=5, tune=tune), islands=2
    )
    four, eight = run(4), run(8)
    agree = np.allclose(four.chains, eight.chains[:, :4], rtol=1e-4, atol=1e-5)
    assert agree == (tune == "alone")
    assert four.epochs.parallel == 1 + 3 * (40 + 4) and four.epochs.total == 8 * four.epochs.parallel
    assert four.trace["step_size"].shape[1] == 2


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_a_step_size_that_was_fixed_too_early_is_named() -> None:
    problem = isles.Problem(isles.Gaussian(like=np.zeros(10)), lambda theta: -0.5 * jnp.sum((theta / 0.2) ** 2))
    run = lambda burn_in, **settings: isles.sample(
        problem, isles.MCMC(isles.HMC(leapfrogs=1, **settings), chains=8, burn_in=burn_in, draws=100), islands=2
    )
    with pytest.warns(isles.IslesWarning, match=r"acceptance 0\.\d+ once .* to be 0\.65: .*: raise burn_in=20$"):
        short = run(20)
    late = short.trace["step"][:, 0] > 16
    steps = np.diff(short.trace["step"][:, 0], prepend=0)[late]
    mean = (short.trace["acceptance"][late].mean(axis=1) * steps)[steps > 0].sum() / steps.sum()
    assert any(f"mean acceptance {mean:.2f} once" in message for message in short.warnings)
    for silent in (run(400), run(20, step_size=0.3), run(20, target_acceptance=0.2)):
        assert "once burn-in" not in " ".join(silent.warnings)


class TwoWidths:
    """Modes at −8 and 8, of equal weight, in which the other coordinate has standard deviations 0.02 and 2."""

    modes = (-8.0, 0.02), (8.0, 2.0)

    def sample(self, key: jax.Array) -> jax.Array:
        which, noise = jax.random.bernoulli(key), jax.random.normal(jax.random.fold_in(key, 1), (2,))
        (left, narrow), (right, wide) = self.modes
        return jnp.where(which, jnp.array([left, 0.0]), jnp.array([right, 0.0])) + noise * jnp.where(
            which, jnp.array([1.0, narrow]), jnp.array([1.0, wide])
        )

    def log_prob(self, theta: jax.Array) -> jax.Array:
        log_density = lambda at, std: -0.5 * (theta[0] - at) ** 2 - 0.5 * (theta[1] / std) ** 2 - jnp.log(std)
        return jnp.logaddexp(*(log_density(*mode) for mode in self.modes))


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_chains_tuned_alone_fit_the_mode_that_each_is_in() -> None:
    problem = isles.Problem(TwoWidths(), lambda theta: 0.0 * theta[0])
    run = lambda tune: isles.sample(
        problem, isles.MCMC(isles.HMC(leapfrogs=3), 64, 2000, draws=200, thin=10, tune=tune), islands=4, seed=2
    )
    with pytest.warns(isles.IslesWarning, match=r"hardly moved .*: take tune='alone', raise"):
        run("together")
    posterior = run("alone")
    assert "hardly moved" not in " ".join(posterior.warnings)
    narrow = posterior.chains[..., 0].mean(axis=2) < 0
    assert 0.3 < narrow.mean() < 0.7
    for inside, (_, std) in zip((narrow, ~narrow), TwoWidths.modes, strict=True):
        squares = (posterior.chains[inside][..., 1] ** 2).mean(axis=1)  # one a chain
        error = squares.std(ddof=1) / np.sqrt(len(squares))
        truth.assert_estimate(squares.mean(), error, std**2, bound=0.05 * std**2)


def test_what_learns_from_all_chains_is_not_tuned_alone(small: targets.Conjugate) -> None:
    sampler = isles.MCMC(isles.Stretch(), chains=16, burn_in=5, tune="alone")
    with pytest.raises(ValueError, match=r"learns from all chains of an island.*set tune='together'"):
        isles.sample(small.problem, sampler)
    with pytest.raises(ValueError, match="tune='each' must be one of 'together', 'alone'"):
        isles.MCMC(tune="each")


def test_shared_start_and_nested_rhat(gaussian: targets.Conjugate) -> None:
    """Chains that share a start remember it when they are short, and nested R-hat says so."""
    kernel = isles.HMC(leapfrogs=5)
    with (
        pytest.warns(isles.IslesWarning, match="chains remember their starts"),
        pytest.warns(match="make no step"),
    ):
        start = isles.sample(gaussian.problem, isles.MCMC(kernel, 8, 0, shared_start=True), islands=4)
    assert (start.positions == start.positions[:, :1]).all()
    assert len(np.unique(start.positions[:, 0, 0])) == 4
    long = isles.sample(gaussian.problem, isles.MCMC(kernel, 64, 200, shared_start=True), islands=16)
    table = long.diagnostics()
    assert table["nested R-hat"] == pytest.approx(table["nested R-hat, floor"], abs=0.02)
    with pytest.warns(isles.IslesWarning) as caught:
        isles.sample(gaussian.problem, isles.MCMC(kernel, 64, 5, shared_start=True), islands=16)
    assert any("chains remember their starts" in str(warning.message) for warning in caught)


def test_hmc_from_the_prior_may_miss_modes() -> None:
    """The paper's warning: chains that start in the basin of a mode stay there, whatever its weight."""
    sampler = isles.MCMC(isles.HMC(leapfrogs=10), chains=64, burn_in=100)
    posterior = isles.sample(targets.mixture(), sampler, islands=16, seed=0)
    share = posterior.expectation(lambda theta: (jnp.sum(theta) > 0).astype(jnp.float32))
    assert share.value - 0.2 > 4 * share.standard_error


# --- annealed importance sampling --------------------------------------------------------------------------


def test_ais_on_the_gaussian(gaussian: targets.Conjugate) -> None:
    schedule = [0.0, *np.geomspace(1e-3, 1, 200)[:-1], 1.0]
    sampler = isles.AIS(isles.HMC(leapfrogs=3), particles=512, schedule=schedule, mutations=5)
    posterior = isles.sample(gaussian.problem, sampler, islands=64, seed=3)
    truth.assert_moments(posterior, gaussian.mean, gaussian.covariance, bound=0.03)  # its weights are uneven
    truth.assert_log_evidence(posterior, gaussian.log_evidence)


def test_ais_with_neals_schedule(small: targets.Conjugate) -> None:
    sampler = isles.AIS(isles.MH(), particles=512, mutations=5)
    posterior = isles.sample(small.problem, sampler, islands=64, seed=4)
    truth.assert_moments(posterior, small.mean, small.covariance)
    truth.assert_log_evidence(posterior, small.log_evidence)
    assert len(posterior.trace["ess"]) == 40
    assert posterior.epochs.parallel == 1 + 40 * 5
    assert (posterior.trace["cumulative_ess"] <= posterior.trace["ess"][0] + 1e-6)[0].all()


def test_ais_weights_are_over_all_particles_of_all_islands(small: targets.Conjugate) -> None:
    posterior = isles.sample(small.problem, isles.AIS(isles.HMC(leapfrogs=3), 16, mutations=2), islands=8, seed=5)
    flat = np.exp(posterior.log_weights - posterior.log_weights.max())
    np.testing.assert_allclose(posterior.weights, flat / flat.sum(), rtol=1e-10)


def test_frozen_ais_is_unbiased(small: targets.Conjugate) -> None:
    sampler = isles.AIS(isles.HMC(leapfrogs=3), particles=16, mutations=1)
    frozen = sampler.frozen(isles.sample(small.problem, isles.AIS(sampler.kernel, 256), seed=6))
    posterior = isles.sample(small.problem, frozen, islands=2048, seed=7)
    assert posterior.evidence_kind == "unbiased"
    truth.assert_log_evidence(posterior, small.log_evidence, bound=0.02)


def test_step_size_adapts_to_its_target(gaussian: targets.Conjugate) -> None:
    for target in (0.5, 0.8):
        kernel = isles.HMC(leapfrogs=5, target_acceptance=target)
        sampler = isles.MCMC(kernel, chains=32, burn_in=300, draws=50)
        trace = isles.sample(gaussian.problem, sampler, seed=8).trace
        frozen = trace["acceptance"][trace["step"][:, 0] > 300, 0]
        assert frozen.mean() == pytest.approx(target, abs=0.05)


def test_pcn_learns_which_directions_the_data_inform() -> None:
    """D tends to the posterior variances over the prior's, in burn-in, pooled over chains."""
    prior = isles.Gaussian(like=np.zeros(2), std=[1.0, 5.0])
    problem = isles.Problem(prior, lambda theta: -0.5 * (theta[0] / 0.1) ** 2)
    sampler = isles.MCMC(isles.PCN(), chains=64, burn_in=2000)
    block = sampler.begin(problem, jax.random.key(0), np.arange(1), isles.samplers.block.Output({}, "all"))
    while block.burnt_in < 2000:
        block = sampler.advance(problem, block)
    variances = np.asarray(block.group.tuning.variances[0])
    assert variances[0] == pytest.approx(0.01 / 1.01, rel=0.3)
    assert variances[1] == pytest.approx(1.0, rel=0.3)


def test_stuck_chains_are_reported() -> None:
    """A funnel's neck needs smaller steps than its mouth: some chains never move again, the mean looks fine"""
    problem = isles.Problem(
        isles.Gaussian(like=np.zeros(9), std=[3.0, *[1.0] * 8]),
        lambda theta: -0.5 * jnp.sum((theta[1:] * jnp.exp(-3 * theta[0])) ** 2) - 24 * theta[0],
    )
    sampler = isles.MCMC(isles.HMC(leapfrogs=10), chains=64, burn_in=300, draws=20)
    with pytest.warns(isles.IslesWarning) as caught:
        isles.sample(problem, sampler, islands=2)
    assert any("chains hardly moved" in str(warning.message) for warning in caught)


def test_pieces_add_up_and_change_no_bit(small: targets.Conjugate, monkeypatch: pytest.MonkeyPatch) -> None:
    program = pace.pace_of(0)
    assert sum(pace.pieces(1000, program)) == 1000
    assert list(pace.pieces(1000, pace.pace_of(0))) == [512, 488]  # goes on at the pace it found
    assert list(pace.pieces(0, program)) == []
    assert list(pace.pieces(3, pace.pace_of(1))) == [1, 2]  # another program
    sampler = isles.SMC(isles.HMC(trajectory=0.7), 32, isles.Decorrelate(0.3, max=20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isles.IslesWarning)
        whole = isles.sample(small.problem, sampler, islands=3, seed=4)
        monkeypatch.setattr(pace, "pieces", lambda total, program: iter([1] * total))
        cut = isles.sample(small.problem, sampler, islands=3, seed=4)
    assert cut.positions.tobytes() == whole.positions.tobytes()
    assert cut.epochs == whole.epochs


def test_one_leapfrog_starts_at_its_best_step_on_the_prior() -> None:
    """With no likelihood at all, the step that adaptation starts from is accepted as the theory of MALA says."""
    problem = isles.Problem(isles.Gaussian(like=np.zeros(2000), std=0.3), lambda _: jnp.zeros(()))
    for kernel in (isles.HMC(leapfrogs=1), isles.HMC(trajectory=0.01), isles.MALA()):
        fixed = dataclasses.replace(kernel, step_size=float(kernel.tuning(problem).step_size))
        posterior = isles.sample(problem, isles.MCMC(fixed, chains=64, burn_in=1, draws=20), seed=1)
        assert np.nanmean(posterior.trace["acceptance"]) == pytest.approx(0.574, abs=0.05)
