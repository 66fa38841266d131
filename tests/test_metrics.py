"""Metrics against scikit-learn, scipy and loops written out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats
from sklearn import metrics as sklearn_metrics

import isles
from isles import metrics
from isles.predictions import Mixture

RNG = np.random.default_rng(0)
P = special.softmax(2 * RNG.normal(size=(200, 4)), axis=1)
Q = special.softmax(2 * RNG.normal(size=(200, 4)), axis=1)
Y = RNG.integers(0, 4, 200)


def test_accuracy_nll_and_brier_are_scikit_learns() -> None:
    assert metrics.accuracy(P, Y) == sklearn_metrics.accuracy_score(Y, P.argmax(axis=1))
    assert metrics.nll(P, Y) == pytest.approx(sklearn_metrics.log_loss(Y, P))
    assert metrics.brier(P, Y) == pytest.approx(np.mean([sum((P[i] - np.eye(4)[Y[i]]) ** 2) for i in range(200)]))
    two = np.stack([1 - P[:, 0], P[:, 0]], axis=1)
    assert metrics.brier(two, Y == 0) == pytest.approx(2 * sklearn_metrics.brier_score_loss(Y == 0, P[:, 0]))


def test_nll_of_impossible_labels_is_infinite_but_not_of_underflown_ones() -> None:
    assert metrics.nll(np.array([[1.0, 0.0]]), [1]) == np.inf
    tiny = isles.Classes(np.array([[0.0, -2000.0]]), np.zeros(1), np.zeros(1))
    assert metrics.nll(tiny, [1]) == 2000


@pytest.mark.parametrize("bins", [1, 5, 15])
def test_calibration_error_by_a_loop(bins: int) -> None:
    confidence, correct = P.max(axis=1), P.argmax(axis=1) == Y
    total, counts = 0.0, []
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        counts.append(inside.sum())
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert metrics.ece(P, Y, bins) == pytest.approx(total, rel=1e-12)
    diagram = metrics.reliability(P, Y, bins)
    assert diagram.counts.tolist() == counts and len(diagram.edges) == bins + 1
    assert np.isnan(diagram.accuracy[diagram.counts == 0]).all()


def test_bins_are_closed_on_the_right() -> None:
    p = np.array([[0.8, 0.2], [1.0, 0.0], [0.6, 0.4]])
    assert metrics.reliability(p, [0, 0, 1], 5).counts.tolist() == [0, 0, 1, 1, 1]


def test_a_calibrated_prediction_has_small_error() -> None:
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(3), size=50_000)
    y = (rng.uniform(size=(50_000, 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    assert metrics.ece(p, y) < 0.01
    assert metrics.ece(np.sqrt(p) / np.sqrt(p).sum(axis=1, keepdims=True), y) > 0.05


def test_entropies_are_scipys() -> None:
    np.testing.assert_allclose(metrics.entropy(P), stats.entropy(P, axis=1))
    assert metrics.entropy(np.array([[1.0, 0.0]]))[0] == 0
    draws, w = np.stack([P, Q, P[::-1]]), np.array([0.5, 0.5, 1.0])
    mean = np.einsum("d,dnk->nk", w / 2, draws)
    # mutual information as a mean divergence from the mean prediction
    expected = sum(w[d] / 2 * special.rel_entr(draws[d], mean).sum(axis=1) for d in range(3))
    np.testing.assert_allclose(metrics.epistemic_entropy(draws, w), expected, atol=1e-14)
    np.testing.assert_allclose(metrics.epistemic_entropy(np.stack([P, P])), 0, atol=1e-15)
    both = metrics.epistemic_entropy(draws.reshape(1, 3, 200, 4), w[None])
    np.testing.assert_allclose(both, expected, atol=1e-14)


@pytest.mark.parametrize("decimals", [None, 1, 0], ids=["no ties", "ties", "many ties"])
def test_detection_is_scikit_learns(decimals: int | None) -> None:
    scores, outside = RNG.normal(size=300), RNG.uniform(size=300) < 0.3
    scores = scores + outside if decimals is None else np.round(scores + outside, decimals)
    assert metrics.auroc(scores, outside) == pytest.approx(
        sklearn_metrics.roc_auc_score(outside, scores), rel=1e-12
    )
    expected = sklearn_metrics.average_precision_score(outside, scores)
    assert metrics.aupr(scores, outside) == pytest.approx(expected, rel=1e-12)


def test_selective_accuracy_by_a_loop() -> None:
    order = np.argsort(stats.entropy(P, axis=1))
    correct = (P.argmax(axis=1) == Y)[order]
    curve = metrics.selective_accuracy(P, Y)
    for k in (1, 7, 100, 200):
        assert curve.accuracy[k - 1] == pytest.approx(correct[:k].mean()) and curve.fraction[k - 1] == k / 200
    assert curve.accuracy[-1] == pytest.approx(metrics.accuracy(P, Y))
    assert curve.area == pytest.approx(np.mean([correct[:k].mean() for k in range(1, 201)]))
    tied = metrics.selective_accuracy(P, Y, score=np.zeros(200))
    np.testing.assert_allclose(tied.accuracy, metrics.accuracy(P, Y), err_msg="ties in no order")


def test_regression_scores() -> None:
    mean, y = RNG.normal(size=100), RNG.normal(size=100)
    assert metrics.rmse(mean, y) == pytest.approx(sklearn_metrics.root_mean_squared_error(y, mean))
    assert metrics.coverage([0, 0, 0, 0], [1, 1, 1, 1], [0, 0.5, 1, 2]) == 0.75


def test_distances_to_a_reference() -> None:
    assert metrics.agreement(P, Q) == np.mean(P.argmax(axis=1) == Q.argmax(axis=1))
    assert metrics.total_variation(P, Q) == pytest.approx(np.maximum(P - Q, 0).sum(axis=1).mean())
    assert metrics.kl(P, Q) == pytest.approx(stats.entropy(Q, P, axis=1).mean())
    assert metrics.kl(P, P) == 0 and metrics.total_variation(P, P) == 0 and metrics.agreement(P, P) == 1
    sure, other = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])
    assert metrics.kl(sure, other) == np.inf and metrics.kl(other, sure) == pytest.approx(np.log(2))


def test_summary_over_realizations() -> None:
    values = RNG.normal(size=(25, 3))
    summary = metrics.summarise(values)
    np.testing.assert_allclose(summary.mean, values.mean(axis=0))
    np.testing.assert_allclose(summary.standard_error, stats.sem(values))
    np.testing.assert_allclose(summary.standard_error_biased, stats.sem(values, ddof=0))
    assert metrics.summarise([3.0]).standard_error is None and summary.realizations == 25


def test_evaluate_is_an_ordered_table_that_cannot_be_changed() -> None:
    prediction = isles.Classes(np.log(P), 0.1 * metrics.entropy(P), 0.9 * metrics.entropy(P))
    unsure = isles.Classes(np.log(0.5 * P + 0.125), 0.2 * metrics.entropy(P), metrics.entropy(P))
    scores = metrics.evaluate(prediction, Y, ood=unsure)
    assert list(scores)[:4] == ["accuracy", "nll", "brier", "ece"]
    assert scores["nll"] == metrics.nll(P, Y) and scores["epistemic entropy"] == prediction.epistemic.mean()
    both = np.concatenate([metrics.entropy(P), metrics.entropy(unsure)])
    assert scores["auroc by entropy"] == metrics.auroc(both, np.arange(400) >= 200)
    assert set(scores) > {"aupr by entropy", "auroc by epistemic", "aupr by epistemic", "selective area"}
    assert "accuracy" in str(scores) and str(scores).count("\n") == len(scores) - 1
    with pytest.raises(TypeError):
        scores["nll"] = 0.0
    assert "epistemic entropy" not in metrics.evaluate(P, Y), "which probabilities alone cannot tell"


def test_evaluate_a_regression() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 1))
    y = x[:, 0] + 0.5 * rng.normal(size=60)
    problem = isles.regression(lambda w, x: x @ w, isles.Gaussian(np.zeros(1)), x, y, noise_std=0.5)
    draws = 1 + 0.06 * rng.normal(size=(200, 1))
    mixture = Mixture(problem.layout, problem.log_likelihood, draws, np.full(200, 1 / 200), x)
    scores = metrics.evaluate(mixture.predict(), y)
    assert scores["rmse"] == pytest.approx(0.5, abs=0.1) and scores["nll"] == pytest.approx(0.73, abs=0.2)
    assert scores["aleatoric std"] == pytest.approx(0.5) and 0.8 < scores["coverage of 0.9"] <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.nll(P, Y + 1), "labels run from 1 to 4; 4 classes have 0..3"),
        (lambda: metrics.nll(P, -Y), "labels run from -3"),
        (lambda: metrics.nll(P, Y + 0.5), "labels must be whole numbers"),
        (lambda: metrics.nll(P, Y[:-1]), "labels have shape (199,); probabilities of 200 rows need (200,)"),
        (lambda: metrics.nll(np.where(P > 0.9, np.nan, P), Y), "values that are not finite"),
        (lambda: metrics.accuracy(2 * P, Y), "sum to 2, not 1; divide by the sum, or apply softmax"),
        (lambda: metrics.accuracy(np.array([[1.5, -0.5]]), [0]), "hold -0.5; they must lie between 0 and 1"),
        (lambda: metrics.accuracy(P[:, 0], Y), "they must be (n, classes)"),
        (lambda: metrics.ece(P, Y, bins=0), "bins=0 must be at least 1"),
        (lambda: metrics.auroc(np.arange(3.0), [1, 1, 1]), "all 3 data are outside; some of either kind"),
        (lambda: metrics.aupr(np.arange(3.0), [0, 0, 0]), "all 3 data are inside; some of either kind"),
        (lambda: metrics.auroc(np.arange(3.0), [0, 1, 2]), "outside must hold only true and false"),
        (lambda: metrics.auroc(np.arange(4.0), [0, 1, 1]), "both must be (n,)"),
        (lambda: metrics.auroc([0.0, np.nan], [0, 1]), "scores hold 1 values that are not finite"),
        (lambda: metrics.selective_accuracy(P, Y, score=np.ones(3)), "score has shape (3,)"),
        (
            lambda: metrics.rmse(np.ones(3), np.ones(4)),
            "shapes must be equal and not empty: mean (3,), targets (4,)",
        ),
        (lambda: metrics.coverage([1.0], [0.0], [0.5]), "1 intervals have low above high"),
        (lambda: metrics.kl(P, Q[:5]), "they must be for the same data"),
        (lambda: metrics.epistemic_entropy(P), "it must be (draws, n, classes)"),
        (lambda: metrics.epistemic_entropy(np.stack([P, Q]), [1.0]), "weights have shape (1,)"),
        (lambda: metrics.epistemic_entropy(np.stack([P, Q]), [1.0, -1.0]), "weights must be finite, not negative"),
        (lambda: metrics.summarise([]), "values have shape (0,)"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
