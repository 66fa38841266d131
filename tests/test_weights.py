"""Weights, ESS, the tempering solve, resampling and evidence, against formulas written another way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from isles import weights
from truth import assert_estimate

ALPHA = 0.5


def effective(log_weights: np.ndarray[Any, Any]) -> float:
    """(Σw)²/Σw² of one island in plain arithmetic, from the best weight."""
    w = np.exp(log_weights - log_weights.max())
    return float(w.sum() ** 2 / (w * w).sum())


def live(log_likelihood: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return log_likelihood[np.isfinite(log_likelihood)]


SHAPES = {
    "gaussian": lambda rng, n: rng.normal(size=n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "minus exponential": lambda rng, n: -rng.exponential(size=n),
    "chi-squared": lambda rng, n: -0.5 * rng.chisquare(20, size=n),
    "one far ahead": lambda rng, n: np.where(np.arange(n) == n // 2, 1.0, 1e-3 * rng.normal(size=n)),
}


class TestSums:
    x = np.random.default_rng(0).normal(size=(3, 50)) * [[1.0], [1e3], [1e-3]] + [[0.0], [1e6], [-1e6]]

    def test_log_sum_exp_agrees_with_scipy(self) -> None:
        np.testing.assert_allclose(weights.log_sum_exp(self.x), logsumexp(self.x, axis=1), rtol=1e-14)
        np.testing.assert_allclose(weights.log_sum_exp(self.x, axis=0), logsumexp(self.x, axis=0), rtol=1e-14)
        np.testing.assert_allclose(weights.log_sum_exp(self.x, axis=None), logsumexp(self.x), rtol=1e-14)

    def test_log_sum_exp_of_nothing_alive_is_minus_infinity(self) -> None:
        x = np.array([[-np.inf, -np.inf], [-np.inf, 2.0]])
        assert weights.log_sum_exp(x).tolist() == [-np.inf, 2.0]

    @pytest.mark.defect("MacroEconometricModels.jl #131: the mean over all particles, not over the live ones")
    def test_dead_particles_stay_in_the_mean(self) -> None:
        x = np.log(np.array([[1.0, 2.0, 3.0, 6.0]]))
        x[0, 0] = -np.inf
        assert weights.log_mean_exp(x)[0] == pytest.approx(math.log(11 / 4), rel=1e-14)

    def test_normalised_weights_are_the_softmax(self) -> None:
        np.testing.assert_allclose(weights.normalise(self.x), softmax(self.x, axis=1), rtol=1e-12)
        shares, means = weights.reweigh(self.x)
        assert shares.tobytes() == weights.normalise(self.x).tobytes()
        assert means.tobytes() == weights.log_mean_exp(self.x).tobytes()
        whole = weights.normalise(self.x, axis=None)
        np.testing.assert_allclose(whole, softmax(self.x), rtol=1e-12)

    def test_normalised_weights_of_a_dead_island_are_zero_and_of_its_neighbours_whole(self) -> None:
        w = weights.normalise(np.array([[-np.inf, -np.inf], [-np.inf, -1e300], [5.0, 5.0]]))
        assert w.tolist() == [[0, 0], [0, 1], [0.5, 0.5]]

    def test_log_ess_is_the_square_of_the_sum_over_the_sum_of_squares(self) -> None:
        x = np.random.default_rng(1).normal(size=(4, 30)) * [[0.0], [0.1], [1.0], [10.0]]
        expected = [math.fsum(np.exp(row)) ** 2 / math.fsum(np.exp(2 * row)) for row in x]
        np.testing.assert_allclose(np.exp(weights.log_ess(x)), expected, rtol=1e-12)
        np.testing.assert_allclose(np.exp(weights.log_ess(x + 1e6)), expected, rtol=1e-8)
        np.testing.assert_allclose(weights.ess(np.exp(x[2])), expected[2], rtol=1e-12)

    def test_island_ess_is_that_of_normalised_weights(self) -> None:
        x = np.array([[0.0, -1.0, -np.inf, 3.0], [5.0, 5.0, 5.0, 5.0], [-np.inf] * 4])
        np.testing.assert_allclose(
            weights.island_ess(weights.normalise(x)), np.exp(weights.log_ess(x)), rtol=1e-12
        )
        assert weights.island_ess(weights.normalise(x))[1:].tolist() == [4.0, 0.0]

    def test_log_ess_counts_live_particles_only(self) -> None:
        x = np.array([[-np.inf, 3.0, 3.0], [-np.inf, -np.inf, -np.inf]])
        np.testing.assert_allclose(weights.log_ess(x), [math.log(2), -np.inf], rtol=1e-14)

    def test_increments_of_a_dead_particle_at_step_zero_are_zero(self) -> None:
        given = np.array([[-np.inf, 4.0], [-np.inf, 4.0]])
        assert weights.increments(given, np.array([0.0, 0.5])).tolist() == [[0, 0], [-np.inf, 2]]


class TestNextTempering:
    @pytest.mark.defect("BJ #914: tempering stalls or overshoots where the likelihood is asymmetric")
    @pytest.mark.defect("PM and TFP: an absolute tolerance of 1e-6 cannot resolve spreads above 1e6")
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("alpha", [0.2, 0.5, 0.95])
    def test_effective_size_at_the_solution_is_the_target(self, shape: str, alpha: float) -> None:
        n, scales = 200, 10.0 ** np.arange(-3, 10)
        base = SHAPES[shape](np.random.default_rng(2), n)
        log_likelihood = scales[:, None] * base - 3e4
        solved = weights.next_tempering(log_likelihood, np.zeros(len(scales)), ess_fraction=alpha)
        for row, tempering in zip(log_likelihood, solved, strict=True):
            if tempering < 1:
                assert effective(tempering * row) == pytest.approx(alpha * n, rel=1e-7)
            else:
                assert tempering == 1 and effective(row) >= alpha * n
        assert 0 < (solved < 1).sum() < len(scales)  # both branches were seen

    @pytest.mark.parametrize("current", [1e-6, 0.3, 0.999])
    def test_only_the_increment_counts(self, current: float) -> None:
        log_likelihood = 1e5 * np.random.default_rng(3).normal(size=(1, 100))
        solved = weights.next_tempering(log_likelihood, np.array([current]), ess_fraction=ALPHA)
        increment = (solved[0] - current) * log_likelihood[0]
        assert effective(increment) == pytest.approx(50, rel=1e-6)

    def test_islands_do_not_disturb_each_other(self) -> None:
        rng = np.random.default_rng(4)
        log_likelihood = rng.normal(size=(5, 64)) * [[1e-3], [1.0], [1e2], [1e9], [5.0]]
        current = np.array([0.0, 0.9, 0.2, 0.0, 1.0])
        together = weights.next_tempering(log_likelihood, current, ess_fraction=ALPHA)
        alone = [
            weights.next_tempering(log_likelihood[i : i + 1], current[i : i + 1], ess_fraction=ALPHA)[0]
            for i in range(5)
        ]
        assert together.tolist() == alone

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_an_island_at_one_stays_there(self, dtype: Any) -> None:
        log_likelihood = np.array([[0.0, -1e9, 5.0], [-np.inf, 1e9, 2.0], [-np.inf] * 3])
        solved = weights.next_tempering(log_likelihood, np.ones(3), ess_fraction=ALPHA, dtype=dtype)
        assert solved.tolist() == [1, 1, 1]

    @pytest.mark.parametrize("dead", [1, 60, 98])
    def test_dead_particles_do_not_count_in_the_target(self, dead: int) -> None:
        log_likelihood = 100 * np.random.default_rng(5).normal(size=(1, 100))
        log_likelihood[0, :dead] = -np.inf
        solved = weights.next_tempering(log_likelihood, np.zeros(1), ess_fraction=0.9)
        assert solved[0] < 1
        assert effective(solved[0] * live(log_likelihood[0])) == pytest.approx(0.9 * (100 - dead), rel=1e-7)

    def test_one_live_particle_goes_to_one_at_once(self) -> None:
        log_likelihood = np.array([[-np.inf, -3e5, -np.inf]])
        assert weights.next_tempering(log_likelihood, np.zeros(1), ess_fraction=0.99).tolist() == [1]

    @pytest.mark.parametrize("value", [-1e9, 0.0, 3.0, -np.inf])
    def test_one_particle_takes_one_stage(self, value: float) -> None:
        assert weights.next_tempering(np.array([[value]]), np.zeros(1), ess_fraction=0.99).tolist() == [1]

    def test_equal_likelihoods_take_one_stage(self) -> None:
        assert weights.next_tempering(np.full((1, 9), -2e5), np.array([0.1]), ess_fraction=0.999).tolist() == [1]

    @pytest.mark.parametrize("scale", [1.0, 30.0, 1e3])
    def test_float32_path_is_exactly_representable_monotone_and_ends(self, scale: float) -> None:
        log_likelihood = -scale * np.random.default_rng(6).exponential(size=(2, 128))
        path = [np.zeros(2)]
        while (path[-1] < 1).any():
            path.append(weights.next_tempering(log_likelihood, path[-1], ess_fraction=ALPHA, dtype=np.float32))
            assert len(path) < 20 * scale + 20
        steps = np.diff(path, axis=0)
        assert (steps[np.array(path[:-1]) < 1] > 0).all()
        assert (np.array(path) == np.float32(path)).all()
        exact = weights.next_tempering(log_likelihood, path[0], ess_fraction=ALPHA)
        np.testing.assert_allclose(path[1], exact, rtol=2**-24)

    @pytest.mark.parametrize("current", [0.0, 0.3, 1 - 2.0**-24])
    def test_it_advances_by_an_ulp_where_the_step_rounds_to_nothing(self, current: float) -> None:
        current32 = np.float32(current)
        log_likelihood = 1e18 * np.random.default_rng(7).normal(size=(1, 50))
        solved = weights.next_tempering(
            log_likelihood, np.array([float(current32)]), ess_fraction=ALPHA, dtype=np.float32
        )
        assert float(current32) < solved[0] <= float(np.nextafter(current32, np.float32(1))) + 1e-12

    def test_a_larger_fraction_takes_a_shorter_step(self) -> None:
        log_likelihood = 50 * np.random.default_rng(8).standard_t(2, size=(1, 200))
        fractions = np.linspace(0.05, 0.99, 30)
        steps = [weights.next_tempering(log_likelihood, np.zeros(1), ess_fraction=a)[0] for a in fractions]
        assert (np.diff(steps) < 0).all()


METHODS = pytest.mark.parametrize("method", weights.RESAMPLING)
UNEVEN = np.array([0.0, 0.13, 1e-6, 0.0, 0.27, 0.05, 0.219999, 0.33, 0.0, 0.0])


def copies(method: str, w: np.ndarray[Any, Any], u: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How often each particle is chosen, (rows of u, N)."""
    ancestors = weights.resample(method, np.broadcast_to(w, u.shape), u)
    return (ancestors[:, :, None] == np.arange(len(w))).sum(axis=1)


class TestResampling:
    uniforms = np.random.default_rng(9).uniform(size=(20_000, len(UNEVEN)))

    @METHODS
    def test_expected_copies_are_n_times_the_weight(self, method: str) -> None:
        counts = copies(method, UNEVEN, self.uniforms)
        expected = len(UNEVEN) * UNEVEN
        error = counts.std(axis=0, ddof=1) / np.sqrt(len(counts))
        common = expected > 1e-2
        assert_estimate(counts.mean(axis=0)[common], error[common], expected[common], bound=0.02)

    @METHODS
    def test_rows_are_sorted_and_whole_and_skip_weightless_particles(self, method: str) -> None:
        ancestors = weights.resample(method, np.broadcast_to(UNEVEN, self.uniforms.shape), self.uniforms)
        assert ancestors.shape == self.uniforms.shape
        assert (np.diff(ancestors, axis=1) >= 0).all()
        assert (UNEVEN[ancestors] > 0).all()

    @METHODS
    @pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
    def test_extreme_uniforms_choose_only_weighted_particles(self, method: str, u: float) -> None:
        for n in (1, 7, 1000):
            w = np.random.default_rng(n).exponential(size=(1, n))
            w[0, : n // 3] = w[0, n - n // 3 :] = 0
            ancestors = weights.resample(method, w / w.sum(), np.full((1, n), u))[0]
            assert ancestors.min() >= 0 and ancestors.max() < n
            assert (w[0, ancestors] > 0).all()

    @METHODS
    def test_one_particle_with_all_the_weight_takes_all_places(self, method: str) -> None:
        w = np.zeros(10)
        w[4] = 1.0
        assert (copies(method, w, self.uniforms[:100])[:, 4] == 10).all()

    def test_systematic_copies_are_the_floor_or_the_ceiling(self) -> None:
        rng = np.random.default_rng(10)
        for n in (3, 32, 501):
            w = rng.dirichlet(np.full(n, 0.3), size=1)[0]
            counts = copies("systematic", w, rng.uniform(size=(200, n)))
            assert (counts >= np.floor(n * w - 1e-9)).all() and (counts <= np.ceil(n * w + 1e-9)).all()

    def test_stratified_copies_are_less_than_two_from_their_mean(self) -> None:
        counts = copies("stratified", UNEVEN, self.uniforms[:2000])
        assert (np.abs(counts - len(UNEVEN) * UNEVEN) < 2).all()

    def test_residual_keeps_the_floor_of_every_particle(self) -> None:
        counts = copies("residual", UNEVEN, self.uniforms)
        assert (counts >= np.floor(len(UNEVEN) * UNEVEN + 1e-9)).all()

    def test_residual_of_whole_numbers_is_not_random(self) -> None:
        w = np.array([1, 3, 0, 2, 4, 0, 0, 0, 0, 0]) / 10
        assert (copies("residual", w, self.uniforms[:500]) == np.round(10 * w)).all()

    @pytest.mark.parametrize(
        ("method", "variance"),
        [("multinomial", 2.1), ("stratified", 0.42), ("residual", 0.0), ("systematic", 0.0)],
    )
    def test_each_method_has_its_own_variance(self, method: str, variance: float) -> None:
        # 3 copies expected, of an interval from 0.07 to 0.37: two borders, each cut at 0.7 of a stratum
        w = np.array([0.07, 0.3, 0.13, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
        squares = (copies(method, w, self.uniforms)[:, 1] - 3.0) ** 2
        assert_estimate(squares.mean(), squares.std() / np.sqrt(len(squares)) + 1e-9, variance, bound=0.03)

    def test_an_unknown_method_is_named(self) -> None:
        with pytest.raises(ValueError, match="resampling='best' must be one of 'systematic'"):
            weights.resample("best", UNEVEN[None], self.uniforms[:1])


class TestEvidence:
    def test_combined_evidence_is_the_log_of_the_mean(self) -> None:
        z = np.array([1.0, 2.0, 6.0])
        combined, error = weights.combined_log_evidence(np.log(z) - 12_345.0)
        assert combined == pytest.approx(math.log(3) - 12_345, rel=1e-15)
        assert error == pytest.approx(z.std(ddof=1) / math.sqrt(3) / 3, rel=1e-10)

    @pytest.mark.parametrize("offset", [-1e6, 0.0, 1e6])
    def test_islands_a_million_nats_apart_keep_every_digit(self, offset: float) -> None:
        log_z = np.array([0.0, -1e6, math.log(3.0), -5e5]) + offset
        combined, error = weights.combined_log_evidence(log_z)
        assert combined == pytest.approx(offset, abs=2 * np.spacing(1e6))  # log((1 + 0 + 3 + 0)/4) = 0
        assert error == pytest.approx(np.std([1, 0, 3, 0], ddof=1) / 2, rel=1e-9)
        np.testing.assert_allclose(weights.island_weights(log_z), [0.25, 0, 0.75, 0], rtol=1e-9)

    def test_dead_islands_count_as_zero_evidence(self) -> None:
        combined, error = weights.combined_log_evidence(np.array([math.log(2.0), -np.inf]))
        assert combined == pytest.approx(0, abs=1e-15)
        assert error == pytest.approx(1)

    @pytest.mark.parametrize("log_z", [[-7.0], [-np.inf, -np.inf]])
    def test_no_standard_error_without_two_islands_or_evidence(self, log_z: list[float]) -> None:
        assert weights.combined_log_evidence(np.array(log_z)) == (log_z[0], None)

    @pytest.mark.defect("PM #3807: Z is averaged, not log Z")
    def test_standard_error_is_the_spread_of_repeated_runs(self) -> None:
        log_z = np.random.default_rng(11).normal(-0.02, 0.2, size=(2000, 64)) - 5e3  # lognormal with mean e^-5000
        results = np.array([weights.combined_log_evidence(row) for row in log_z])
        ratio = np.exp(results[:, 0] + 5e3)
        assert_estimate(ratio.mean(), ratio.std(ddof=1) / np.sqrt(2000), 1.0, bound=1e-3)
        assert results[:, 1].mean() == pytest.approx(results[:, 0].std(ddof=1), rel=4 / math.sqrt(2 * 2000))
