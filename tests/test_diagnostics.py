"""IACT, ESS, R-hat and nested R-hat, on chains whose answer is known and against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

from isles.diagnostics import ShortChainsError, effective_sample_size, iact, nested_rhat, nested_rhat_floor, rhat

Floats = np.ndarray[Any, Any]


def ar1(rho: float, chains: int, draws: int, seed: int = 0) -> Floats:
    """Stationary AR(1) chains of variance 1: IACT (1 + rho)/(1 - rho)."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(chains, draws)) * np.sqrt(1 - rho**2)
    noise[:, 0] = rng.normal(size=chains)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)


class TestIact:
    @pytest.mark.parametrize("rho", [-0.6, -0.3, 0.0, 0.5, 0.9, 0.95])
    @pytest.mark.parametrize("offset", [0.0, 1e4])
    def test_ar1_chains_have_the_known_time(self, rho: float, offset: float) -> None:
        chains = ar1(rho, 16, 20_000) + offset
        assert iact(chains)[0] == pytest.approx((1 + rho) / (1 - rho), rel=0.05)

    def test_antithetic_chains_have_a_time_below_one_and_more_ess_than_draws(self) -> None:
        chains = ar1(-0.5, 8, 10_000)
        assert iact(chains)[0] < 0.4
        assert effective_sample_size(chains)[0] > 2 * chains.size

    def test_alternating_draws_give_a_positive_time(self) -> None:
        assert 0 < iact(np.tile([[-1.0, 1.0]], (2, 500)))[0] < 0.01

    def test_coordinates_are_taken_one_by_one(self) -> None:
        chains = np.stack([ar1(0.0, 4, 5000, seed=1), 1e3 * ar1(0.8, 4, 5000, seed=2)], axis=-1)
        np.testing.assert_allclose(iact(chains), [iact(chains[..., 0])[0], iact(chains[..., 1])[0]], rtol=1e-10)

    @pytest.mark.parametrize("seed", range(5))
    def test_it_is_geyers_initial_monotone_sequence_of_direct_sums(self, seed: int) -> None:
        chains = ar1(0.95, 3, 301, seed=seed)
        centred = chains - chains.mean()
        lags = range(301)
        covariance = np.array([(centred[:, s:] * centred[:, : 301 - s]).sum() for s in lags])
        pairs = (covariance / covariance[0])[:300].reshape(-1, 2).sum(axis=1)
        total, smallest = 0.0, np.inf
        for pair in pairs:
            if pair <= 0:
                break
            smallest = min(smallest, pair)
            total += smallest
        assert iact(chains, strict=False)[0] == pytest.approx(2 * total - 1, rel=1e-10)

    def test_chains_that_disagree_have_a_long_time(self) -> None:
        chains = ar1(0.0, 4, 1000) + np.array([[0.0], [0.0], [0.0], [10.0]])
        assert iact(chains, strict=False)[0] > 200

    def test_short_chains_are_refused_with_the_value(self) -> None:
        chains = ar1(0.9, 4, 500)
        with pytest.raises(ShortChainsError, match="chains of 500 draws are shorter than 50 autocor") as caught:
            iact(chains)
        np.testing.assert_array_equal(caught.value.iact, iact(chains, strict=False))
        assert 10 < caught.value.iact[0] < 40

    def test_one_slow_coordinate_is_enough_to_refuse(self) -> None:
        chains = np.stack([ar1(0.0, 4, 500), ar1(0.95, 4, 500)], axis=-1)
        with pytest.raises(ShortChainsError) as caught:
            iact(chains)
        assert caught.value.iact.shape == (2,)

    @pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e8])
    def test_a_coordinate_that_never_moves_has_one_effective_draw_a_chain(self, value: float) -> None:
        chains = np.full((3, 200), value)
        assert iact(chains, strict=False)[0] == pytest.approx(200, rel=1e-6)
        assert effective_sample_size(chains)[0] == pytest.approx(3, rel=1e-6)

    @pytest.mark.parametrize("rho", [0.0, 0.6])
    def test_ess_predicts_the_variance_of_the_mean(self, rho: float) -> None:
        runs = [ar1(rho, 4, 1000, seed=seed) for seed in range(400)]
        variance = np.var([run.mean() for run in runs], ddof=1)
        predicted = np.mean([1 / effective_sample_size(run)[0] for run in runs])
        assert variance == pytest.approx(predicted, rel=4 * np.sqrt(2 / 400))

    def test_too_few_draws_are_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 4 draws a chain, got 3"):
            iact(np.zeros((2, 3)))


@pytest.mark.parametrize("function", [iact, rhat, effective_sample_size])
@pytest.mark.parametrize("shape", [(10,), (2, 3, 10, 1)])
def test_arrays_of_other_rank_are_refused(function: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be \(chains, draws\) or \(chains, draws, d\)"):
        function(np.zeros(shape))


def split_rhat(chains: Floats) -> float:
    """BDA3's formula with n the length of a half: var⁺ = (n−1)/n W + B/n."""
    half = chains.shape[1] // 2
    parts = [part for chain in chains for part in (chain[:half], chain[len(chain) - half :])]
    W = np.mean([np.sum((part - part.mean()) ** 2) / (half - 1) for part in parts])
    means = np.array([part.mean() for part in parts])
    B = half * np.sum((means - means.mean()) ** 2) / (len(parts) - 1)
    return float(np.sqrt(((half - 1) / half * W + B / half) / W))


class TestRhat:
    @pytest.mark.parametrize("draws", [4, 5, 100, 101])
    def test_it_is_the_direct_formula(self, draws: int) -> None:
        chains = ar1(0.8, 5, draws) + np.arange(5)[:, None]
        assert rhat(chains)[0] == pytest.approx(split_rhat(chains), rel=1e-12)

    def test_independent_draws_give_one(self) -> None:
        assert abs(rhat(ar1(0.0, 8, 4000))[0] - 1) < 2e-3

    def test_shifted_chains_give_a_large_value(self) -> None:
        assert rhat(ar1(0.0, 4, 500) + 3 * np.arange(4)[:, None])[0] > 3

    def test_a_drift_common_to_all_chains_is_seen(self) -> None:
        assert rhat(ar1(0.0, 4, 500) + np.linspace(0, 8, 500))[0] > 1.5

    def test_coordinates_are_taken_one_by_one(self) -> None:
        chains = np.random.default_rng(0).normal(size=(3, 50, 4)) * [1.0, 1e-6, 1e6, 5.0]
        np.testing.assert_allclose(rhat(chains), [split_rhat(chains[..., i]) for i in range(4)], rtol=1e-10)

    def test_constant_coordinates_agree_or_disagree_entirely(self) -> None:
        assert rhat(np.ones((3, 10)))[0] == 1
        assert rhat(np.ones((3, 10)) * np.arange(3)[:, None])[0] == np.inf

    def test_too_few_draws_are_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 4 draws a chain, got 3; use nested_rhat"):
            rhat(np.zeros((5, 3)))


def looped_nested_rhat(superchains: Floats) -> float:
    """Margossian et al. (2024), equations for one coordinate, in plain loops."""
    means, inside = [], []
    for superchain in superchains:
        chain_means = [sum(chain) / len(chain) for chain in superchain]
        mean = sum(chain_means) / len(chain_means)
        between = sum((m - mean) ** 2 for m in chain_means) / max(len(chain_means) - 1, 1)
        within = 0.0
        for chain, m in zip(superchain, chain_means, strict=True):
            if len(chain) > 1:
                within += sum((x - m) ** 2 for x in chain) / (len(chain) - 1) / len(superchain)
        means.append(mean)
        inside.append(between + within)
    grand = sum(means) / len(means)
    B = sum((m - grand) ** 2 for m in means) / (len(means) - 1)
    return float(np.sqrt(1 + B / (sum(inside) / len(inside))))


class TestNestedRhat:
    @pytest.mark.defect("arviz-stats #354: NaN for fewer than 4 draws a chain")
    @pytest.mark.parametrize("shape", [(2, 2, 1), (4, 8, 1), (3, 5, 2), (6, 1, 7), (4, 3, 50)])
    def test_it_is_the_looped_formula(self, shape: tuple[int, ...]) -> None:
        superchains = np.random.default_rng(1).normal(2.0, 3.0, size=shape)
        expected = looped_nested_rhat(superchains)
        assert np.isfinite(expected)
        assert nested_rhat(superchains)[0] == pytest.approx(expected, rel=1e-12)

    def test_coordinates_are_taken_one_by_one(self) -> None:
        superchains = np.random.default_rng(2).normal(size=(4, 6, 3, 5)) * 10.0 ** np.arange(-2, 3)
        expected = [looped_nested_rhat(superchains[..., i]) for i in range(5)]
        np.testing.assert_allclose(nested_rhat(superchains), expected, rtol=1e-12)

    @pytest.mark.parametrize("chains", [2, 8, 64])
    def test_converged_chains_of_one_draw_reach_the_floor(self, chains: int) -> None:
        value = nested_rhat(np.random.default_rng(3).normal(size=(20_000, chains, 1)))[0]
        assert value**2 == pytest.approx(1 + 1 / chains, rel=4 * np.sqrt(2 / 20_000))
        assert nested_rhat_floor(chains) == pytest.approx(np.sqrt(1 + 1 / chains))

    def test_superchains_that_stay_where_they_began_give_a_large_value(self) -> None:
        starts = 10 * np.arange(4.0)[:, None, None]
        assert nested_rhat(starts + np.random.default_rng(4).normal(size=(4, 16, 10)))[0] > 5

    @pytest.mark.parametrize("value", [0.0, 3.0])
    def test_a_coordinate_that_never_moves_gives_one_as_rhat_does(self, value: float) -> None:
        assert nested_rhat(np.full((3, 4, 5), value))[0] == 1

    def test_superchains_stuck_at_different_points_give_infinity(self) -> None:
        assert nested_rhat(np.ones((3, 4, 5)) * np.arange(3)[:, None, None])[0] == np.inf

    @pytest.mark.parametrize("function", [iact, rhat, nested_rhat])
    def test_float32_draws_far_from_zero_lose_nothing(self, function: Any) -> None:
        draws = np.random.default_rng(5).normal(1e4, 1.0, size=(4, 25, 1000, 3)).astype(np.float32)
        draws = draws if function is nested_rhat else draws[0]
        np.testing.assert_allclose(function(draws), function(draws.astype(np.float64)), rtol=1e-10)

    @pytest.mark.parametrize("shape", [(1, 4, 4), (4, 1, 1)])
    def test_one_superchain_or_one_draw_each_is_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="needs 2 superchains of 2 draws"):
            nested_rhat(np.zeros(shape))


def test_nan_is_never_called_converged() -> None:
    chains = np.random.default_rng(0).normal(size=(4, 100, 2))
    chains[1, 3, 0] = np.nan
    found = rhat(chains)
    assert np.isnan(found[0]) and found[1] == pytest.approx(1, abs=0.05)
