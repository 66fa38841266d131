"""The likelihoods of networks against scipy."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, log_expit, log_softmax

import isles
from evaluating import aligned, evaluated, scored
from isles import classification, regression

ROWS, FEATURES = 103, 4
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(ROWS, FEATURES)), RNG.normal(size=ROWS)
THETA = RNG.normal(size=FEATURES)
STANDARD = isles.Gaussian(np.zeros(FEATURES, np.float32))


class TestClassification:
    x = RNG.normal(size=(30, FEATURES))

    @pytest.mark.parametrize("chunk_rows", [None, 7])
    def test_softmax_is_scipys_multinomial(self, chunk_rows: int | None) -> None:
        w, y = np.random.default_rng(5).normal(size=(FEATURES, 5)), np.arange(30) % 5
        prior = isles.Gaussian(w)
        problem = classification(lambda w, x: x @ w, prior, self.x, y, chunk_rows=chunk_rows)
        p = np.exp(log_softmax(self.x @ w, axis=1))
        expected = stats.multinomial.logpmf(np.eye(5, dtype=int)[y], 1, p).sum()
        assert scored(problem, w) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("columns", [(), (1,)])
    @pytest.mark.parametrize("labels", [int, bool, float])
    def test_one_logit_is_scipys_bernoulli(self, columns: tuple[int, ...], labels: Any) -> None:
        w, y = np.random.default_rng(6).normal(size=(FEATURES, *columns)), np.arange(30) % 3 == 0
        problem = classification(lambda w, x: x @ w, isles.Gaussian(w), self.x, y.astype(labels))
        p = expit(self.x @ w).ravel()
        assert scored(problem, w) == pytest.approx(stats.bernoulli.logpmf(y, p).sum(), rel=1e-5)

    @pytest.mark.parametrize("width", [(), (3,)])
    def test_enormous_logits_stay_finite(self, width: tuple[int, ...]) -> None:
        w = np.full((FEATURES, *width), 1e4)
        x, y = np.ones((2, FEATURES)), [0, 1]
        problem = classification(lambda w, x: x @ w, isles.Gaussian(w), x, y)
        expected = -2 * np.log(3) if width else -4e4
        assert scored(problem, w) == pytest.approx(expected, rel=1e-6)
        state = evaluated(problem, problem.layout.ravel(w), gradient=True)
        assert not state.nonfinite and np.isfinite(state.gradient).all()

    @pytest.mark.parametrize(
        ("labels", "classes", "message"),
        [
            ([0, 1, 3], 3, "labels run from 0 to 3, but the network has 3 classes; labels must lie in 0..2"),
            ([-1, 0, 1], 3, "labels run from -1 to 1"),
            ([0, 1, 2], 1, "but the network has 2 classes"),
            ([0.5, 1, 2], 3, "labels must be whole numbers"),
            ([0.0, np.nan, 2.0], 3, "labels must be whole numbers"),
            ([2**40, 1, 2], 3, "labels"),
            (["a", "b", "a"], 3, "labels must be whole numbers"),
            ([0, 1], 3, "y has shape (2,); 3 rows of x need labels of shape (3,)"),
            (np.eye(3), 3, "y has shape (3, 3)"),
        ],
    )
    def test_labels_that_fit_no_class_are_refused(self, labels: Any, classes: int, message: str) -> None:
        prior = isles.Gaussian(np.zeros((FEATURES, classes)))
        with pytest.raises(ValueError, match=re.escape(message)):
            classification(lambda w, x: x @ w, prior, self.x[:3], labels)

    def test_logits_of_another_rank_are_refused(self) -> None:
        with pytest.raises(ValueError, match=re.escape("apply returns logits of shape (3, 2, 2)")):
            classification(lambda w, x: jnp.zeros((len(x), 2, 2)) * w, isles.Gaussian(0.0), self.x[:3], [0, 1, 0])

    def test_labels_are_copied_on_entry(self) -> None:
        y = np.arange(30, dtype=np.int32) % 2
        problem = classification(lambda w, x: x @ w, isles.Gaussian(THETA), self.x, y)
        before = scored(problem, THETA)
        y[:] = 1
        assert scored(problem, THETA) == before


def with_noise(kind: str, outputs: int) -> tuple[Any, Any, Any, Any]:
    """noise_std, apply, parameters, and stds (ROWS, outputs) as they should be."""
    rng = np.random.default_rng(2)
    w = rng.normal(size=(FEATURES, 2 * outputs)) * 0.3
    mean, log_std = X @ w[:, :outputs], X @ w[:, outputs:]
    apply = lambda w, x: x @ w[:, :outputs]
    if kind == "number":
        return 0.7, apply, w, np.full_like(mean, 0.7)
    if kind == "learned":
        return "learned", apply, {"network": w, "log_noise_std": -0.4}, np.full_like(mean, np.exp(-0.4))
    if kind == "predicted":
        return "predicted", lambda w, x: x @ w, w, np.exp(log_std)
    if kind == "callable":
        return lambda w: jnp.exp(w[0, 0]), apply, w, np.full_like(mean, np.exp(w[0, 0]))
    return lambda w: jnp.exp(w[0, :outputs]), apply, w, np.broadcast_to(np.exp(w[0, :outputs]), mean.shape)


class TestRegression:
    @pytest.mark.parametrize("columns", [(), (1,), (2,)])
    @pytest.mark.parametrize("kind", ["number", "learned", "predicted", "callable", "callable per output"])
    def test_every_noise_is_scipys_normal(self, kind: str, columns: tuple[int, ...]) -> None:
        outputs = columns[0] if columns else 1
        noise_std, apply, params, stds = with_noise(kind, outputs)
        w = params["network"] if kind == "learned" else params
        shaped = apply if columns or kind == "predicted" else lambda w, x: apply(w, x)[:, 0]
        y = np.random.default_rng(3).normal(size=(ROWS, *columns))
        problem = regression(shaped, isles.Gaussian(w), X, y, noise_std=noise_std, chunk_rows=10)
        expected = stats.norm(X @ w[:, :outputs], stds).logpdf(y.reshape(ROWS, outputs)).sum()
        assert scored(problem, params) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("columns", [(), (1,)])
    @pytest.mark.parametrize("returned", [(), (1,)])
    def test_one_output_may_be_a_column_or_not(self, columns: tuple[int, ...], returned: tuple[int, ...]) -> None:
        apply = lambda w, x: (x @ w).reshape(-1, *returned)
        problem = regression(apply, STANDARD, X, Y.reshape(-1, *columns), noise_std=2.0, chunk_rows=10)
        assert scored(problem, THETA) == pytest.approx(stats.norm(X @ THETA, 2).logpdf(Y).sum(), rel=1e-5)

    @pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32])
    def test_whole_number_features_do_not_round_the_noise(self, dtype: Any) -> None:
        x = np.arange(40).reshape(10, FEATURES).astype(dtype)
        y = x.sum(axis=1) + np.linspace(-1, 1, 10)
        problem = regression(lambda w, x: x.astype(w.dtype) @ w, STANDARD, x, y, noise_std=0.5)
        expected = stats.norm(x.sum(axis=1), 0.5).logpdf(y).sum()
        assert scored(problem, np.ones(FEATURES)) == pytest.approx(expected, rel=1e-4)

    def test_learned_noise_adds_one_standard_normal_parameter(self) -> None:
        prior = isles.Gaussian({"w": np.zeros(FEATURES)}, mean=2.0, std=0.5)
        problem = regression(lambda p, x: x @ p["w"], prior, X, Y, noise_std="learned")
        params = {"network": {"w": THETA}, "log_noise_std": 0.3}
        expected = stats.norm(2, 0.5).logpdf(THETA).sum() + stats.norm.logpdf(0.3)
        assert float(problem.prior.log_prob(params)) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("prior", ["covariance", "custom"])
    def test_learned_noise_needs_a_prior_with_stds(self, prior: str) -> None:
        class Own:
            sample = staticmethod(lambda key: jax.random.normal(key, (FEATURES,)))
            log_prob = staticmethod(lambda theta: -0.5 * theta @ theta)

        given = Own() if prior == "custom" else isles.Gaussian(THETA, covariance=np.eye(FEATURES))
        with pytest.raises(ValueError, match=r"noise_std='learned' extends an isles\.Gaussian prior with stds"):
            regression(lambda w, x: x @ w, given, X, Y, noise_std="learned")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"y": Y[:-1]}, "x has 103 rows and y has 102; they must match"),
            ({"y": np.where(np.arange(ROWS) < 2, np.nan, Y)}, "y holds 2 values that are not finite"),
            ({"x": np.where(X > 2, np.inf, X)}, f"x holds {np.sum(X > 2)} values that are not finite"),
            ({"x": np.zeros((0, FEATURES)), "y": []}, "x has shape (0, 4); it needs rows"),
            ({"x": 1.0}, "x has shape (); it needs rows"),
            ({"y": np.ones((ROWS, 2))}, "apply returns shape (103,); y of shape (103, 2) needs (103, 2)"),
            ({"noise_std": "predicted"}, "apply returns shape (103,); y of shape (103,) needs (103, 2)"),
            ({"noise_std": "guessed"}, "noise_std='guessed' must be a number, 'learned', 'predicted' or a"),
            ({"noise_std": 0.0}, "noise_std=0.0 must be positive and finite"),
            ({"noise_std": np.nan}, "noise_std=nan must be positive and finite"),
            ({"noise_std": 1e-46}, "noise_std=1e-46 is 0.0 in float32; scale y"),
            ({"y": 1.0}, "y has shape ()"),
            ({"y": np.full(ROWS, 1e39)}, f"y holds {ROWS} values that are not finite in float32"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, change: Any, message: str) -> None:
        arguments = {"x": X, "y": Y, "noise_std": 1.0} | change
        with pytest.raises(ValueError, match=re.escape(message)):
            regression(lambda w, x: x @ w, STANDARD, **arguments)

    def test_targets_that_are_text_are_refused(self) -> None:
        with pytest.raises(TypeError, match=r"y has dtype <U1; convert it to numbers first"):
            regression(lambda w, x: x @ w, STANDARD, X, ["a"] * ROWS, noise_std=1.0)

    @pytest.mark.parametrize(
        ("apply", "message"),
        [
            (lambda w, x: jnp.round(x @ w).astype(int), r"apply returns dtype int32; .* must be floating point"),
            (lambda w, x: x @ w > 0, r"apply returns dtype bool; .* must be floating point"),
            (lambda w, x: np.asarray(x) @ np.asarray(w), r"write apply with jax\.numpy alone, without NumPy"),
            (lambda w, x: x @ w if w[0] > 0 else x @ -w, r"without Python's if and float\(\) on values"),
            (lambda w: w, r"write it as a function of both, apply\(params, x\)"),
            (lambda w, x: x @ w[:2], r"the prior's like= and the network's input width must fit x"),
        ],
    )
    def test_a_network_that_is_no_network_is_told_what_to_change(self, apply: Any, message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            regression(apply, STANDARD, X, Y, noise_std=2.9)
        with pytest.raises((TypeError, ValueError), match=message):
            isles.classification(apply, STANDARD, X, np.arange(ROWS) % 2)

    def test_features_that_are_objects_are_refused(self) -> None:
        with pytest.raises(TypeError, match="x holds Python objects"):
            regression(lambda w, x: x @ w, STANDARD, X.astype(object), Y, noise_std=1.0)

    def test_targets_are_copied_on_entry(self) -> None:
        x, y = aligned(X), aligned(Y)
        problem = regression(lambda w, x: x @ w, STANDARD, x, y, noise_std=1.0)
        before = scored(problem, THETA)
        x[:], y[:] = 5, 7
        assert scored(problem, THETA) == before


class TestBernoulli:
    """Against SciPy, where logits are large too."""

    logits = np.array([-200.0, -30.0, -3.0, -0.1, 0.0, 0.1, 3.0, 30.0, 200.0])

    @pytest.mark.parametrize("y", [0, 1])
    def test_values_and_slopes(self, y: int) -> None:
        from isles.likelihoods import log_bernoulli

        with jax.enable_x64(True):
            logits, labels = jnp.asarray(self.logits), jnp.full(9, y)
            value = log_bernoulli(logits, labels)
            np.testing.assert_allclose(value, log_expit(self.logits * (2 * y - 1)), rtol=1e-12, atol=1e-15)
            slope = jax.grad(lambda logits: log_bernoulli(logits, labels).sum())(logits)
            np.testing.assert_allclose(slope, y - expit(self.logits), rtol=1e-12, atol=1e-15)
            second = jax.hessian(lambda logits: log_bernoulli(logits, labels).sum())(logits).diagonal()
            truth = -expit(self.logits) * expit(-self.logits)
            np.testing.assert_allclose(second, truth, rtol=1e-12, atol=1e-15)
