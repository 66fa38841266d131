"""`Problem`: sums over chunks, what non-finite numbers do, and sizes of chunks."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import isles
from evaluating import aligned, evaluated, scored, value_of
from isles import Problem

ROWS, FEATURES = 103, 4
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(ROWS, FEATURES)), RNG.normal(size=ROWS)
THETA = RNG.normal(size=FEATURES)
STANDARD = isles.Gaussian(np.zeros(FEATURES, np.float32))


def student(theta: Any, batch: Any) -> Any:
    """A sum over rows that is not quadratic."""
    return -jnp.sum(jnp.log1p((batch["y"] - jnp.tanh(batch["x"] @ theta)) ** 2))


def wide(theta: Any, batch: Any) -> Any:
    """Many intermediates a row."""
    return jnp.sum(jnp.tanh(batch * jnp.ones(1000)) @ jnp.ones(1000)) * theta[0]


class TestChunks:
    @pytest.mark.parametrize(("x64", "tolerance"), [(False, 1e-6), (True, 1e-12)])
    @pytest.mark.parametrize(
        ("rows", "chunk_rows"), [(1, 1), (1, 8), (ROWS, 1), (ROWS, 10), (ROWS, 102), (ROWS, 999)]
    )
    def test_value_and_gradient_do_not_depend_on_the_chunk(
        self, rows: int, chunk_rows: int, x64: bool, tolerance: float
    ) -> None:
        with jax.enable_x64(x64):
            prior = isles.Gaussian(np.zeros(FEATURES))
            data = {"x": X[:rows], "y": Y[:rows]}
            theta = jnp.asarray(THETA, prior.layout.dtype)
            value, slope = jax.jit(jax.value_and_grad(student))(theta, data)
            problem = Problem(prior, student, data, chunk_rows=chunk_rows)
            state = evaluated(problem, theta, gradient=True)
            assert problem.chunk_rows == min(chunk_rows, rows)
            assert value_of(state) == pytest.approx(float(value), rel=tolerance)
            scale = float(jnp.abs(slope).max())
            np.testing.assert_allclose(state.gradient, slope, rtol=4 * tolerance, atol=4 * tolerance * scale)
            assert state.gradient.dtype == state.log_likelihood.dtype == problem.dtype

    @pytest.mark.parametrize("gradient", [True, False])
    @pytest.mark.parametrize(("rows", "chunk_rows"), [(1, 4), (7, 4), (8, 4), (9, 4), (20, 1), (20, 19)])
    def test_every_row_is_counted_exactly_once(self, rows: int, chunk_rows: int, gradient: bool) -> None:
        marks = 2.0 ** np.arange(rows)  # sums of different rows differ
        counting = lambda theta, batch: jnp.sum(batch) + theta[0]  # no sum over rows, so that calls show
        problem = Problem(STANDARD, counting, marks, chunk_rows=rows).with_chunk_rows(chunk_rows)
        calls = -(-rows // chunk_rows)
        state = evaluated(problem, jnp.array([0.5, 0, 0, 0]), gradient=gradient)
        assert value_of(state) == marks.sum() + 0.5 * calls
        assert not gradient or state.gradient.tolist() == [calls, 0, 0, 0]

    def test_the_prior_is_scored_once_and_not_tempered(self) -> None:
        problem = Problem(isles.Gaussian(np.zeros(FEATURES), 1.0, 2.0), student, {"x": X, "y": Y}, chunk_rows=7)
        state = evaluated(problem, jnp.asarray(THETA, jnp.float32), gradient=False)
        assert float(state.log_prior) == pytest.approx(stats.norm(1, 2).logpdf(THETA).sum(), rel=1e-6)
        assert state.gradient is None

    def test_ten_thousand_chunks_lose_no_digits_in_float32(self) -> None:
        values = np.random.default_rng(1).uniform(0.5, 1.5, 10_000).astype(np.float32) * np.float32(-7.3)
        problem = Problem(STANDARD, total, values, chunk_rows=1)
        state = evaluated(problem, jnp.zeros(FEATURES), gradient=False)
        truth = values.astype(np.float64).sum()
        naive = np.add.accumulate(values)[-1]  # one after another, in float32
        assert abs(naive / truth - 1) > 1e-6
        assert value_of(state) == pytest.approx(truth, rel=1e-8)

    def test_low_bits_reach_the_ratio(self) -> None:
        values = np.full(5000, 1e3 / 3, np.float32)
        log_likelihood = lambda theta, batch: -jnp.sum(batch) + 1e-3 * jnp.tanh(theta[0])
        problem = Problem(STANDARD, log_likelihood, values, chunk_rows=1)
        old, new = (evaluated(problem, jnp.full(FEATURES, t), gradient=False) for t in (0.0, 1.0))
        per_row = [
            (np.float32(-1e3 / 3) + np.float32(1e-3) * np.tanh(np.float32(t))).astype(float) for t in (0, 1)
        ]
        truth = 5000 * (per_row[1] - per_row[0])
        assert truth > 0
        ratio = float(problem.log_likelihood_ratio(new, old, jnp.float32(1)))
        assert ratio == pytest.approx(truth, abs=2e-3)
        assert float(new.log_likelihood - old.log_likelihood) != pytest.approx(truth, abs=2e-3)

    def test_the_default_chunk_follows_shapes_alone_and_bounds_memory(self) -> None:
        data = np.zeros((20_000, 1), np.float32)
        problem = Problem(STANDARD, wide, data)
        assert 16 <= problem.chunk_rows < 2000
        assert (
            problem.chunk_rows % (64 if problem.chunk_rows >= 128 else 16 if problem.chunk_rows >= 32 else 1) == 0
        )
        assert Problem(STANDARD, student, {"x": X, "y": Y}).chunk_rows == 103  # all of a few rows
        assert Problem(STANDARD, wide, data + 1).chunk_rows == problem.chunk_rows

    def test_the_default_chunk_sees_into_a_jitted_likelihood(self) -> None:
        data = np.zeros((20_000, 1), np.float32)
        assert Problem(STANDARD, jax.jit(wide), data).chunk_rows <= 2 * Problem(STANDARD, wide, data).chunk_rows

    def test_another_chunk_is_the_same_problem(self) -> None:
        problem = Problem(STANDARD, student, {"x": X, "y": Y})
        other = problem.with_chunk_rows(10)
        assert repr(other) == "Problem(4 parameters, 103 rows in chunks of 10)"
        assert scored(other, THETA) == pytest.approx(scored(problem, THETA), rel=1e-6)

    @pytest.mark.parametrize("rows", [None, ROWS])
    def test_data_are_copied_on_entry(self, rows: int | None) -> None:
        x, y = aligned(X), aligned(Y)
        problem = Problem(STANDARD, student, {"x": x, "y": y}, chunk_rows=rows)
        before = scored(problem, THETA)
        x[:] = 0
        y[:] = 1e9
        assert scored(problem, THETA) == before

    def test_a_likelihood_without_data_sees_the_parameters_only(self) -> None:
        problem = Problem(isles.Gaussian({"a": np.zeros(2), "b": 0.0}), lambda p: -jnp.sum(p["a"]) * p["b"])
        state = evaluated(problem, jnp.array([1.0, 2.0, 5.0]), gradient=True)
        assert value_of(state) == -15 and state.gradient.tolist() == [-5, -5, -3]
        assert repr(problem) == "Problem(3 parameters)"

    @pytest.mark.parametrize("number", [0.0, np.float64(-2.5)])
    def test_a_constant_likelihood_may_be_a_python_number(self, number: Any) -> None:
        state = Problem(STANDARD, lambda theta: number).evaluate(jnp.ones(FEATURES), gradient=True)
        assert value_of(state) == number and state.gradient.tolist() == [0] * FEATURES


def special(theta: Any) -> Any:
    """theta[0] chooses: 0 finite, 1 NaN, 2 +inf, 3 −inf, 4 finite with a NaN gradient."""
    values = jnp.array([-3.0, jnp.nan, jnp.inf, -jnp.inf, -4.0])
    no_slope = jnp.sqrt(jnp.where(theta[0] == 4, theta[1] ** 2, 1.0))  # 0 · inf at theta[1] = 0
    return values[theta[0].astype(int)] + jnp.where(theta[0] == 4, no_slope, 0.0)


def total(theta: Any, batch: Any) -> Any:
    return jnp.sum(batch)


PROBLEM = Problem(isles.Gaussian(np.zeros(2)), special)
FINITE, NAN, INFINITE, ZERO, NO_SLOPE = range(5)


@cache
def at(case: int, gradient: bool = True) -> isles.State:
    return evaluated(PROBLEM, jnp.array([case, 0.0]), gradient=gradient)


class TestNonfinite:
    @pytest.mark.defect("BJ 1.7.1 and PM #7292: a NaN log likelihood wins all the weight")
    @pytest.mark.parametrize(
        ("case", "gradient", "value", "nonfinite"),
        [
            (FINITE, True, -3.0, False),
            (NAN, True, -np.inf, True),
            (NAN, False, -np.inf, True),
            (INFINITE, True, -np.inf, True),
            (INFINITE, False, -np.inf, True),
            (ZERO, True, -np.inf, False),
            (ZERO, False, -np.inf, False),
            (NO_SLOPE, True, -np.inf, True),
            (NO_SLOPE, False, -4.0, False),
        ],
    )
    def test_only_minus_infinity_is_a_legitimate_value(
        self, case: int, gradient: bool, value: float, nonfinite: bool
    ) -> None:
        state = at(case, gradient)
        assert float(state.log_likelihood) == value
        assert bool(state.nonfinite) is nonfinite
        assert np.isfinite(state.low_bits)
        assert state.gradient is None or np.isfinite(state.gradient).all()

    @pytest.mark.parametrize("gradient", [True, False])
    @pytest.mark.parametrize(
        ("marks", "value", "nonfinite"),
        [
            ([1.0, -np.inf, 2.0, 3.0, 4.0], -np.inf, False),
            ([-np.inf, -np.inf, -np.inf, -np.inf, -np.inf], -np.inf, False),
            ([1.0, np.nan, 2.0, 3.0, 4.0], -np.inf, True),
            ([1.0, -np.inf, np.nan, 3.0, 4.0], -np.inf, True),
            ([1.0, 2.0, 3.0, 4.0, np.inf], -np.inf, True),
            ([np.inf, 2.0, -np.inf, 4.0, 1.0], -np.inf, True),
            ([-3e38, -3e38, 1.0, 1.0, 1.0], -np.inf, False),
        ],
    )
    @pytest.mark.parametrize("chunk_rows", [1, 2, 5])
    def test_one_bad_chunk_marks_the_sum(
        self, marks: list[float], value: float, nonfinite: bool, gradient: bool, chunk_rows: int
    ) -> None:
        problem = Problem(STANDARD, total, np.float32(marks), chunk_rows=chunk_rows)
        state = evaluated(problem, jnp.zeros(FEATURES), gradient=gradient)
        assert float(state.log_likelihood) == value
        assert bool(state.nonfinite) is nonfinite
        assert float(state.low_bits) == 0

    @pytest.mark.parametrize("tempering", [0.0, 1e-8, 0.5, 1.0])
    @pytest.mark.parametrize("old", range(5))
    @pytest.mark.parametrize("new", range(5))
    def test_ratios_are_never_nan_and_nonfinite_proposals_never_accepted(
        self, new: int, old: int, tempering: float
    ) -> None:
        ratio = float(PROBLEM.log_ratio(at(new), at(old), jnp.float32(tempering)))
        prior = 0.5 * (old**2 - new**2)
        if new in (NAN, INFINITE, NO_SLOPE):
            assert ratio == -np.inf
        elif tempering == 0:
            assert ratio == pytest.approx(prior, rel=1e-6)
        elif new == ZERO:
            assert ratio == -np.inf
        elif old == FINITE:
            assert ratio == pytest.approx(prior, rel=1e-6)
        else:
            assert ratio == np.inf  # away from a point of zero likelihood

    @pytest.mark.parametrize("where", [np.inf, -np.inf, np.nan])
    @pytest.mark.parametrize("tempering", [0.0, 1.0])
    def test_a_position_that_ran_away_is_rejected(self, where: float, tempering: float) -> None:
        problem = Problem(isles.Gaussian(np.zeros(2)), lambda theta: jnp.sum(0 * jnp.sign(theta)))
        old, new = (evaluated(problem, jnp.array([t, 0.0]), gradient=True) for t in (0.3, where))
        assert float(problem.log_ratio(new, old, jnp.float32(tempering))) == -np.inf

    def test_the_ratio_is_the_tempered_posterior(self) -> None:
        problem = Problem(STANDARD, student, {"x": X, "y": Y}, chunk_rows=10)
        a, b = np.float32(np.random.default_rng(4).normal(size=(2, FEATURES)))
        new, old = (evaluated(problem, jnp.asarray(t), gradient=False) for t in (a, b))
        batch = {"x": jnp.asarray(X), "y": jnp.asarray(Y)}
        likelihood = float(student(a, batch)) - float(student(b, batch))
        expected = 0.5 * (b @ b - a @ a) + 0.3 * likelihood
        assert float(problem.log_ratio(new, old, jnp.float32(0.3))) == pytest.approx(expected, rel=1e-5)


class TestErrors:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"x": X, "y": Y[:-1]}, "equal first axes, one row a datum; got data['x']: 103, data['y']: 102"),
            ({"x": X, "scale": 2.0}, "data['scale']: a scalar"),
            (3.0, "equal first axes"),
            ({"x": X[:0], "y": Y[:0]}, "data has no rows"),
            ({}, "data holds no array"),
            ([], "data holds no array"),
        ],
    )
    def test_data_without_common_rows_are_refused(self, data: Any, message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            Problem(STANDARD, lambda theta, batch: jnp.sum(theta), data)

    @pytest.mark.parametrize(
        ("log_likelihood", "kind", "message"),
        [
            (
                lambda theta, b: b["y"] - b["x"] @ theta,
                ValueError,
                "returns shape (103,), it must return shape ()",
            ),
            (lambda theta, b: jnp.sum(b["y"], keepdims=True), ValueError, "sum over the batch's rows"),
            (lambda theta, b: (jnp.sum(theta), 0.0), ValueError, "it must return shape ()"),
            (lambda theta, b: None, ValueError, "it must return shape ()"),
            (lambda theta, b: jnp.sum(b["y"] > 0), TypeError, "returns dtype int32, it must be floating point"),
            (lambda theta, b: 0, TypeError, "it must be floating point"),
            ("normal", TypeError, "log_likelihood='normal' must be a function"),
        ],
    )
    def test_a_likelihood_that_is_no_scalar_is_refused(self, log_likelihood: Any, kind: Any, message: str) -> None:
        with pytest.raises(kind, match=re.escape(message)):
            Problem(STANDARD, log_likelihood, {"x": X, "y": Y})

    def test_a_likelihood_that_works_for_one_size_only_is_found_at_once(self) -> None:
        fixed = lambda theta, batch: jnp.sum(batch["y"] - np.ones(ROWS, np.float32))
        Problem(STANDARD, fixed, {"y": Y}, chunk_rows=ROWS)
        with pytest.raises(TypeError, match="incompatible shapes"):
            Problem(STANDARD, fixed, {"y": Y}, chunk_rows=10)

    def test_chunks_need_data(self) -> None:
        with pytest.raises(ValueError, match="chunk_rows=10 needs data= to split"):
            Problem(STANDARD, lambda theta: jnp.sum(theta), chunk_rows=10)

    @pytest.mark.parametrize(("chunk_rows", "kind"), [(0, ValueError), (-3, ValueError), (2.5, TypeError)])
    def test_chunks_are_whole_numbers_of_rows(self, chunk_rows: Any, kind: Any) -> None:
        with pytest.raises(kind, match=f"chunk_rows={chunk_rows} must be"):
            Problem(STANDARD, student, {"x": X, "y": Y}, chunk_rows=chunk_rows)


class TestDefaultChunks:
    """The size follows from the rows, the parameters and the particles evaluated together."""

    def test_more_particles_take_fewer_rows_at_a_time(self) -> None:
        wide = lambda theta, batch: jnp.sum(jnp.tanh(batch[:, None] * theta[0] + jnp.arange(100.0)))
        problem = Problem(STANDARD, wide, np.ones(5000))
        rows = [problem.for_particles(particles).chunk_rows for particles in [8, 64, 512, 4096, 1 << 15]]
        assert rows == sorted(rows, reverse=True) and rows[0] > 1000 and rows[-1] < 20

    def test_many_particles_of_a_small_model_keep_enough_rows(self) -> None:
        prior = isles.Gaussian(like=np.zeros(3))
        problem = Problem(prior, lambda theta, batch: jnp.sum(jnp.tanh(batch @ theta)), np.ones((5000, 3)))
        rows = [problem.for_particles(particles).chunk_rows for particles in (32, 1 << 10, 1 << 14, 1 << 20)]
        assert rows == sorted(rows, reverse=True)
        assert rows[0] == 5000 and rows[2] >= 128
        assert (1 << 20) * rows[3] * problem.row_bytes <= 1 << 28, "their memory is bounded all the same"

    def test_long_gradients_are_not_added_up_every_few_rows(self) -> None:
        prior = isles.Gaussian(like=np.zeros(10_000))
        problem = Problem(prior, lambda theta, batch: jnp.sum(jnp.tanh(batch @ theta)), np.ones((5000, 10_000)))
        assert problem.for_particles(1 << 14).chunk_rows >= 512

    def test_a_chosen_size_stays(self) -> None:
        problem = Problem(STANDARD, lambda theta, batch: jnp.sum(batch * theta[0]), np.ones(5000), chunk_rows=77)
        assert problem.for_particles(1 << 20).chunk_rows == 77
        assert problem.with_chunk_rows(78).for_particles(1 << 20).chunk_rows == 78

    def test_a_likelihood_that_knows_one_size_keeps_it(self) -> None:
        def fixed(theta: Any, batch: Any) -> Any:
            if len(batch) not in (100, 50):  # 50: seen while sizes are found out
                raise ValueError("100 rows only")
            return jnp.sum(batch * theta[0])

        assert Problem(STANDARD, fixed, np.ones(100)).for_particles(1 << 20).chunk_rows == 100
