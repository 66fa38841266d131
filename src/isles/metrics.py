"""Scores of predictions: accuracy, calibration, uncertainty, distance to a reference. NumPy only.

Functions of class probabilities take an array (n, K), or what `posterior.predict` returned. Entropies are
in nats.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

BINS = 15


@dataclass(frozen=True)
class Scores(Mapping[str, float]):
    """Named numbers in a fixed order; `print` gives a table."""

    items_: tuple[tuple[str, float], ...]

    def __getitem__(self, name: str) -> float:
        return dict(self.items_)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def __str__(self) -> str:
        width = max(len(name) for name in self)
        return "\n".join(f"{name:<{width}}  {value:.4g}" for name, value in self.items_)


class Reliability(NamedTuple):
    """Data of a reliability diagram; mean confidence and accuracy are NaN in an empty bin."""

    edges: Floats  # (bins + 1,)
    confidence: Floats  # (bins,)
    accuracy: Floats  # (bins,)
    counts: np.ndarray[Any, np.dtype[np.int64]]  # (bins,)


class Selective(NamedTuple):
    """Accuracy among the most certain share of the data, for each share, and the mean over shares."""

    fraction: Floats  # (n,) 1/n, 2/n, ..., 1
    accuracy: Floats  # (n,)
    area: float


class Summary(NamedTuple):
    """Mean over realizations, and its standard error.

    `standard_error` divides the sum of squares by R − 1; `standard_error_biased` by R, as is also found in print.
    """

    mean: Any
    standard_error: Any
    standard_error_biased: Any
    realizations: int


def evaluate(prediction: Any, labels: Any, ood: Any = None, *, level: float = 0.9) -> Scores:
    """All scores of a prediction in one table.

    Args:
        prediction: what `posterior.predict(x)` returned, or class probabilities (n, K).
        labels: true labels, or true values for a regression.
        ood: for classification, the prediction for inputs that are out of distribution: adds how well entropies
            tell them from the others.
        level: for regression, of the intervals whose coverage is measured.
    """
    if hasattr(prediction, "interval"):
        low, high = prediction.interval(level)
        if ood is not None:
            raise ValueError("ood= needs class probabilities; a regression has no entropies")
        return Scores((
            ("rmse", rmse(prediction.mean, labels)),
            ("nll", -float(prediction.log_density(labels).mean())),
            (f"coverage of {level:g}", coverage(low, high, labels)),
            ("epistemic std", float(np.sqrt(prediction.epistemic.mean()))),
            ("aleatoric std", float(np.sqrt(prediction.aleatoric.mean()))),
        ))  # fmt: skip
    scores = {
        "accuracy": accuracy(prediction, labels),
        "nll": nll(prediction, labels),
        "brier": brier(prediction, labels),
        "ece": ece(prediction, labels),
        "entropy": float(entropy(prediction).mean()),
    }
    if hasattr(prediction, "epistemic"):
        scores["epistemic entropy"] = float(prediction.epistemic.mean())
    scores["selective area"] = selective_accuracy(prediction, labels).area
    if ood is not None:
        pairs = {"entropy": (entropy(prediction), entropy(ood))}
        if hasattr(prediction, "epistemic") and hasattr(ood, "epistemic"):
            pairs["epistemic"] = (prediction.epistemic, ood.epistemic)
        for name, (inside, outside) in pairs.items():
            both, flags = np.concatenate([inside, outside]), np.repeat([False, True], [len(inside), len(outside)])
            scores[f"auroc by {name}"] = auroc(both, flags)
            scores[f"aupr by {name}"] = aupr(both, flags)
    return Scores(tuple(scores.items()))


def accuracy(prediction: Any, labels: Any) -> float:
    """Share of labels that are the most probable class."""
    return float(_correct(*_pair(prediction, labels)).mean())


def nll(prediction: Any, labels: Any) -> float:
    """Mean over the data of −log p(label); infinite if a label has probability zero."""
    p, y = _pair(prediction, labels)
    if hasattr(prediction, "log_probabilities"):  # probabilities that underflow are still there
        log_p = prediction.log_probabilities[np.arange(len(y)), y]
    else:
        with np.errstate(divide="ignore"):
            log_p = np.log(p[np.arange(len(y)), y])
    return float(-log_p.mean())


def brier(prediction: Any, labels: Any) -> float:
    """Mean over the data of Σ_k (p_k − [k is the label])², between 0 and 2."""
    p, y = _pair(prediction, labels)
    return float(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1).mean())


def ece(prediction: Any, labels: Any, bins: int = BINS) -> float:
    """Expected calibration error: mean gap of confidence and accuracy over bins, weighted by their counts.

    It is biased upwards where bins hold few data: of a perfectly calibrated prediction too it is above zero.
    """
    diagram = reliability(prediction, labels, bins)
    gap = np.abs(diagram.accuracy - diagram.confidence)
    return float(np.nansum(diagram.counts * gap) / diagram.counts.sum())


def reliability(prediction: Any, labels: Any, bins: int = BINS) -> Reliability:
    """Confidence (the largest probability) against accuracy in equally wide bins (lower, upper]."""
    p, y = _pair(prediction, labels)
    if operator.index(bins) < 1:
        raise ValueError(f"bins={bins} must be at least 1")
    confidence, correct = p.max(axis=1), _correct(p, y)
    edges = np.linspace(0, 1, bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean = lambda values: np.bincount(place, values, minlength=bins) / count
        return Reliability(edges, mean(confidence), mean(correct), count)


def entropy(prediction: Any) -> Floats:
    """(n,) −Σ p log p."""
    return _entropy(_probabilities(prediction))


def epistemic_entropy(per_draw: Any, weights: Any = None) -> Floats:
    """(n,) entropy of the mean prediction minus the mean entropy of the draws' own.

    Args:
        per_draw: each draw's probabilities (..., n, K), or what `posterior.predict(x, per_draw=True)` returned.
        weights: of the draws (...); equal by default.
    """
    if weights is None:
        weights = getattr(per_draw, "weights", None)
    p = np.asarray(getattr(per_draw, "probabilities", per_draw), np.float64)
    if p.ndim < 3:
        raise ValueError(f"per_draw has shape {p.shape}; it must be (draws, n, classes)")
    draws = p.shape[:-2]
    w = np.full(draws, 1 / np.prod(draws)) if weights is None else np.asarray(weights, np.float64)
    if w.shape != draws:
        raise ValueError(f"weights have shape {w.shape}; draws of shape {draws} need as many")
    if not (w >= 0).all() or not np.isfinite(w).all() or w.sum() == 0:
        raise ValueError("weights must be finite, not negative, and not all zero")
    p, w = p.reshape(-1, *p.shape[-2:])[w.ravel() > 0], w[w > 0] / w.sum()
    _probabilities(p.reshape(-1, p.shape[-1]))
    return np.maximum(_entropy(np.tensordot(w, p, 1)) - w @ _entropy(p), 0.0)


def auroc(scores: Any, outside: Any) -> float:
    """Probability that a datum from outside has a higher score than one from inside; ties count half.

    Args:
        scores: (n,) such as an entropy: high where the model is unsure.
        outside: (n,) true where a datum is out of distribution.
    """
    scores, outside = _flags(scores, outside)
    order, group = np.unique(scores, return_inverse=True)
    inside_at = np.bincount(group[~outside], minlength=len(order))
    below = np.cumsum(inside_at) - 0.5 * inside_at  # of each distinct score, ties as one half
    return float(below[group[outside]].mean() / inside_at.sum())


def aupr(scores: Any, outside: Any) -> float:
    """Average precision of finding what is outside by the highest scores: Σ (gain in recall) · precision."""
    scores, outside = _flags(scores, outside)
    order, group = np.unique(-scores, return_inverse=True)
    found = np.bincount(group, outside, minlength=len(order))
    precision = np.cumsum(found) / np.cumsum(np.bincount(group, minlength=len(order)))
    return float((found * precision).sum() / found.sum())


def selective_accuracy(prediction: Any, labels: Any, score: Any = None) -> Selective:
    """Accuracy if only the most certain share of the data is answered.

    Args:
        prediction: class probabilities.
        labels: true labels.
        score: (n,) uncertainty to sort by, the entropy by default; ties count with their mean.
    """
    p, y = _pair(prediction, labels)
    score = _entropy(p) if score is None else _finite("score", score)
    if score.shape != y.shape:
        raise ValueError(f"score has shape {score.shape}; {len(y)} labels need ({len(y)},)")
    _, group, count = np.unique(score, return_inverse=True, return_counts=True)
    expected = (np.bincount(group, _correct(p, y)) / count)[group]
    number = np.arange(1, len(y) + 1)
    curve = np.cumsum(expected[np.argsort(score, kind="stable")]) / number
    return Selective(number / len(y), curve, float(curve.mean()))


def rmse(mean: Any, targets: Any) -> float:
    """Root of the mean squared error; over all outputs, where there are several."""
    mean, targets = _same_shape(mean=mean, targets=targets)
    return float(np.sqrt(((mean - targets) ** 2).mean()))


def coverage(low: Any, high: Any, targets: Any) -> float:
    """Share of targets that lie in their interval, ends included."""
    low, high, targets = _same_shape(low=low, high=high, targets=targets)
    if (low > high).any():
        raise ValueError(f"{np.count_nonzero(low > high)} intervals have low above high; swap them")
    return float(((low <= targets) & (targets <= high)).mean())


def agreement(prediction: Any, reference: Any) -> float:
    """Share of the data for which both have the same most probable class."""
    p, q = _two(prediction, reference)
    return float((p.argmax(axis=1) == q.argmax(axis=1)).mean())


def total_variation(prediction: Any, reference: Any) -> float:
    """Mean over the data of `½ Σ |p − q|`, between 0 and 1."""
    p, q = _two(prediction, reference)
    return float(0.5 * np.abs(p - q).sum(axis=1).mean())


def kl(prediction: Any, reference: Any) -> float:
    """Mean over the data of Σ q log(q/p), q the reference; infinite if p misses a class that q has."""
    p, q = _two(prediction, reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(q > 0, q * (np.log(q) - np.log(p)), 0.0)
    return max(float(terms.sum(axis=1).mean()), 0.0)  # rounding may take it below


def summarise(values: Any, axis: int = 0) -> Summary:
    """Mean and standard error over realizations, along `axis`; one realization has no standard error."""
    values = _finite("values", values)
    if values.ndim == 0 or values.shape[axis] == 0:
        raise ValueError(f"values have shape {values.shape}; give one number, or array, a realization")
    count = values.shape[axis]
    error = values.std(axis=axis, ddof=1) / np.sqrt(count) if count > 1 else None
    return Summary(values.mean(axis=axis), error, values.std(axis=axis) / np.sqrt(count), count)


def _correct(p: Floats, y: Any) -> Floats:
    return (p.argmax(axis=1) == y).astype(np.float64)


def _entropy(p: Floats) -> Floats:
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1))


def _probabilities(prediction: Any, name: str = "probabilities") -> Floats:
    p = _finite(name, getattr(prediction, "probabilities", prediction))
    if p.ndim != 2 or p.shape[1] < 2 or len(p) == 0:
        raise ValueError(f"{name} have shape {p.shape}; they must be (n, classes), one row a datum")
    if p.min() < 0:
        raise ValueError(f"{name} hold {p.min()}; they must lie between 0 and 1")
    gap = np.abs(p.sum(axis=1) - 1)
    if gap.max() > 1e-4:  # float32 rounds sums over thousands of classes
        row = int(gap.argmax())
        raise ValueError(
            f"{name} of row {row} sum to {p[row].sum():.6g}, not 1; divide by the sum, or apply softmax"
        )
    return p


def _pair(prediction: Any, labels: Any) -> tuple[Floats, np.ndarray[Any, np.dtype[np.int64]]]:
    p, y = _probabilities(prediction), np.asarray(labels)
    if y.shape != (len(p),):
        raise ValueError(f"labels have shape {y.shape}; probabilities of {len(p)} rows need ({len(p)},)")
    if y.dtype.kind not in "biuf" or not (y == np.floor(y)).all():
        raise ValueError(f"labels must be whole numbers 0, 1, ..., got dtype {y.dtype}; encode them first")
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise ValueError(f"labels run from {y.min()} to {y.max()}; {p.shape[1]} classes have 0..{p.shape[1] - 1}")
    return p, y.astype(np.int64)


def _two(prediction: Any, reference: Any) -> tuple[Floats, Floats]:
    p, q = _probabilities(prediction), _probabilities(reference, "the reference's probabilities")
    if p.shape != q.shape:
        raise ValueError(
            f"predictions have shape {p.shape}, the reference {q.shape}; they must be for the same data"
        )
    return p, q


def _flags(scores: Any, outside: Any) -> tuple[Floats, np.ndarray[Any, np.dtype[np.bool_]]]:
    scores, flags = _finite("scores", scores), np.asarray(outside)
    if scores.ndim != 1 or scores.shape != flags.shape:
        raise ValueError(f"scores have shape {scores.shape} and outside {flags.shape}; both must be (n,)")
    if not np.isin(flags, [0, 1]).all():
        raise ValueError("outside must hold only true and false, or 1 and 0")
    flags = flags.astype(bool)
    if flags.all() or not flags.any():
        raise ValueError(
            f"all {len(flags)} data are {'outside' if flags.any() else 'inside'}; some of either kind are needed"
        )
    return scores, flags


def _same_shape(**arrays: Any) -> list[Floats]:
    finite = [_finite(name, array) for name, array in arrays.items()]
    if len({array.shape for array in finite}) > 1 or finite[0].size == 0:
        shown = ", ".join(f"{name} {array.shape}" for name, array in zip(arrays, finite, strict=True))
        raise ValueError(f"shapes must be equal and not empty: {shown}")
    return finite


def _finite(name: str, values: Any) -> Floats:
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} hold {np.count_nonzero(~np.isfinite(array))} values that are not finite")
    return array
