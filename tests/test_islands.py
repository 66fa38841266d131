"""Islands: weights by evidence, what they repair, how errors fall with P, and bits that do not change."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import isles
import targets
import truth
from isles.keys import root
from isles.samplers.block import Output


@pytest.fixture(scope="module")
def few_particles(small: targets.Conjugate) -> dict[int, isles.Posterior]:
    """Frozen runs of 8192 islands with so few particles that one island alone is visibly biased."""
    kernel = isles.HMC(leapfrogs=5)
    pilot = isles.sample(small.problem, isles.SMC(kernel, 256, 3), seed=9)
    runs = {}
    for particles in (4, 8, 16):
        sampler = isles.SMC(kernel, particles, 3).frozen(pilot)
        runs[particles] = isles.sample(small.problem, sampler, islands=8192, seed=1)
    return runs


def spread(case: targets.Conjugate, posterior: isles.Posterior) -> np.ndarray[Any, Any]:
    """Island means of ‖u‖²/d − 1, whose posterior expectation is 0."""
    factor = np.linalg.inv(np.linalg.cholesky(case.covariance))
    white = (posterior.positions.astype(np.float64) - case.mean) @ factor.T
    return np.asarray((white**2).mean(axis=(1, 2)) - 1)


def weighted(omega: Any, values: Any) -> tuple[float, float]:
    value = float((omega * values).sum())
    return value, float(np.sqrt((omega**2 * (values - value) ** 2).sum()))


def test_evidence_weights_remove_the_bias_of_equal_ones(
    small: targets.Conjugate, few_particles: dict[int, isles.Posterior]
) -> None:
    """Equal weights are biased like 1/N; Z-weights are not biased at all."""
    biases = {}
    for particles, posterior in few_particles.items():
        values = spread(small, posterior)
        truth.assert_estimate(*weighted(posterior.island_weights, values), 0.0, bound=0.01)
        biases[particles] = weighted(posterior.with_weights("equal").island_weights, values)
    for particles in (4, 8):
        value, error = biases[particles]
        assert value > 5 * error, f"no bias seen at N = {particles}: the test is too weak"
    slope = np.log(biases[4][0] / biases[16][0]) / np.log(4)
    assert slope == pytest.approx(1, abs=0.5), f"bias falls like N^-{slope:.2f}"


def test_error_falls_like_one_over_p(small: targets.Conjugate, few_particles: dict[int, isles.Posterior]) -> None:
    """Mean squared error of Z-weighted estimates over P = 1..256, where Var(log Z_p) < 1."""
    posterior = few_particles[16]
    log_evidence = posterior.island_log_evidence
    assert log_evidence.var() < 1
    means = posterior.positions.astype(np.float64).mean(axis=1) - small.mean
    scaled = means / np.sqrt(np.diag(small.covariance))  # (P, d)
    sizes = 2 ** np.arange(9)
    errors = []
    for size in sizes:
        groups = log_evidence.reshape(-1, size)
        omega = np.exp(groups - groups.max(axis=1, keepdims=True))
        omega /= omega.sum(axis=1, keepdims=True)
        estimates = np.einsum("gp,gpd->gd", omega, scaled.reshape(-1, size, small.mean.size))
        errors.append(np.mean(estimates**2))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-1, abs=0.15)


def test_equal_weights_stop_improving(small: targets.Conjugate, few_particles: dict[int, isles.Posterior]) -> None:
    """With 8192 islands the mean squared error of equal weights is all bias, that of Z-weights all noise."""
    values = spread(small, few_particles[4])
    equal, _ = weighted(np.full(8192, 1 / 8192), values)
    by_evidence, error = weighted(few_particles[4].island_weights, values)
    assert equal**2 > 20 * error**2 * 0.5
    assert by_evidence**2 < equal**2 / 4


def test_many_islands_in_one_block(gaussian: targets.Conjugate) -> None:
    """2¹⁴ islands of 4 particles, each with its own temperings, step sizes and number of stages."""
    sampler = isles.SMC(isles.HMC(leapfrogs=5), particles=4, mutations=3)
    with pytest.warns(isles.IslesWarning, match="few islands carry the weight"):
        posterior = isles.sample(gaussian.problem, sampler, islands=2**14, islands_per_block=2**14)
    stages = np.isfinite(posterior.trace["tempering"]).sum(axis=0)
    assert len(np.unique(stages)) > 3
    assert len(np.unique(posterior.trace["tempering"][0])) > 16_000
    last = posterior.trace["tempering"][stages - 1, np.arange(2**14)]
    assert (last == 1).all()
    assert posterior.epochs.total == (1 + 15 * stages).sum() * 4


def test_islands_whose_evidence_differs_by_a_million_nats(small: targets.Conjugate) -> None:
    posterior = isles.sample(small.problem, isles.SMC(isles.HMC(leapfrogs=3), 64, 3), islands=4)
    apart = np.array([0.0, -1e6, np.log(3.0), 1e6]) - 5e8
    shifted = dataclasses.replace(posterior, island_log_evidence=apart)
    np.testing.assert_array_equal(shifted.island_weights, [0, 0, 0, 1])
    assert shifted.log_evidence == 1e6 - 5e8 - np.log(4)
    close = dataclasses.replace(posterior, island_log_evidence=apart[[0, 1, 2, 1]])
    np.testing.assert_allclose(close.island_weights, [0.25, 0, 0.75, 0], atol=1e-7)
    assert np.isfinite(close.expectation(lambda theta: theta).value).all()
    np.testing.assert_allclose(close.weights.sum(), 1)


def test_standard_error_over_islands_is_honest(small: targets.Conjugate) -> None:
    """Over 64 repetitions of 16 islands, estimates spread as their standard errors say."""
    sampler = isles.SMC(isles.HMC(leapfrogs=3), 64, 3)
    posterior = isles.sample(small.problem, sampler, islands=1024, seed=3)
    scores, evidence_scores = [], []
    for first in range(0, 1024, 16):
        part = dataclasses.replace(
            posterior,
            positions=posterior.positions[first : first + 16],
            log_weights=posterior.log_weights[first : first + 16],
            island_log_evidence=posterior.island_log_evidence[first : first + 16],
        )
        value, error = part.expectation(lambda theta: theta)
        scores.append((value - small.mean) / error)
        evidence_scores.append((part.log_evidence - small.log_evidence) / part.log_evidence_standard_error)
    assert np.sqrt(np.mean(np.square(evidence_scores))) == pytest.approx(1, abs=0.3)
    assert np.sqrt(np.mean(np.square(scores))) == pytest.approx(1, abs=0.25)


def test_the_error_of_the_evidence_is_a_bound_where_one_island_carries_the_weight(
    small: targets.Conjugate,
) -> None:
    """The relative values are P, 0, ..., 0 then, whose mean has the standard error 1, however far apart."""
    posterior = isles.sample(small.problem, isles.SMC(isles.HMC(leapfrogs=3), 64, 3), islands=4)
    assert "log evidence, standard error is" not in posterior.diagnostics().rows
    far = dataclasses.replace(posterior, island_log_evidence=np.array([-9.0, -500.0, -700.0, -800.0]))
    assert far.log_evidence_standard_error == pytest.approx(1)
    assert "at least so large" in far.diagnostics()["log evidence, standard error is"]


def test_one_island_has_no_standard_error(small: targets.Conjugate) -> None:
    posterior = isles.sample(small.problem, isles.SMC(isles.HMC(leapfrogs=3), 64, 3))
    assert posterior.expectation(lambda theta: theta).standard_error is None
    assert posterior.island_ess is None
    assert posterior.log_evidence_standard_error is None


# --- bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler",
    [
        isles.SMC(isles.HMC(trajectory=0.7), 32, 3),
        isles.SMC(isles.PCN(), 32, 5, resampling="residual"),
        isles.MCMC(isles.MH(), 8, 50, 4),
        isles.AIS(isles.MALA(), 32, mutations=2),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # short, and it says so
def test_the_same_run_twice_gives_the_same_bits(sampler: Any, small: targets.Conjugate) -> None:
    first, again, other = (isles.sample(small.problem, sampler, islands=3, seed=seed) for seed in (5, 5, 6))
    for name in ("positions", "log_prior", "log_likelihood", "log_weights", "island_log_evidence"):
        one, two = getattr(first, name), getattr(again, name)
        assert (one is None and two is None) or one.tobytes() == two.tobytes(), name
    assert not np.array_equal(first.positions, other.positions)


def test_draws_belong_to_islands_whatever_the_blocks(small: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.HMC(), 8, 1)
    start = lambda islands: sampler.begin(small.problem, root(0), np.asarray(islands), Output({}, "all"))
    together = np.asarray(start([0, 1, 2, 3]).states.position).reshape(4, 8, -1)
    apart = np.asarray(start([2]).states.position)
    np.testing.assert_array_equal(together[2], apart)
    assert len(np.unique(together[..., 0])) == 32


def test_blocks_agree_with_one_program(small: targets.Conjugate) -> None:
    """Rounding may differ between block widths, the answer may not: 60 islands in blocks of 60 and of 7."""
    sampler = isles.SMC(isles.HMC(leapfrogs=3), 128, 4)
    for size in (60, 7):
        posterior = isles.sample(small.problem, sampler, islands=60, seed=2, islands_per_block=size)
        truth.assert_log_evidence(posterior, small.log_evidence)
        assert posterior.trace["tempering"].shape[1] == 60


def test_seeds_use_all_their_bits(small: targets.Conjugate) -> None:
    first = lambda seed: (
        isles.SMC(isles.HMC(), 2, 1)
        .begin(small.problem, root(seed), np.arange(1), Output({}, "all"))
        .states.position
    )
    seeds = [0, 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    assert len({np.asarray(first(seed)).tobytes() for seed in seeds}) == len(seeds)


def test_islands_by_number_are_those_of_a_larger_run(small: targets.Conjugate, tmp_path: Any) -> None:
    """More islands can be added later: an island depends on the seed and its number alone."""
    sampler = isles.SMC(isles.HMC(leapfrogs=8), 16, 8)
    options = {"seed": 3, "islands_per_block": 1, "engine": "serial"}
    whole = isles.sample(small.problem, sampler, islands=5, **options)
    chosen = [3, 1]
    part = isles.sample(small.problem, sampler, islands=chosen, folder=tmp_path / "part", **options)
    np.testing.assert_array_equal(part.positions, whole.positions[chosen])
    np.testing.assert_array_equal(part.island_log_evidence, whole.island_log_evidence[chosen])
    again = isles.merge(tmp_path / "part")
    np.testing.assert_array_equal(again.positions, part.positions)
    with pytest.raises(isles.FolderError, match=r"island_numbers"):
        isles.sample(small.problem, sampler, islands=[3, 2], folder=tmp_path / "part", **options)
    with pytest.raises(isles.FolderError, match=r"island_numbers"):
        isles.sample(small.problem, sampler, islands=2, folder=tmp_path / "part", **options)


@pytest.mark.parametrize("islands", [[], [1, 1], [-1], [1 << 32], "ab"])
def test_bad_island_numbers(small: targets.Conjugate, islands: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"islands="):
        isles.sample(small.problem, isles.SMC(particles=4, mutations=1), islands=islands)
