"""`python -m benchmarks.tabular`: isles' estimators beside scikit-learn's, on data that come with scikit-learn.

All have one setting for all data sets, the default but where it is said. Repeated 5-fold cross-validation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri
from sklearn import datasets
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import isles
from benchmarks import fits
from benchmarks.fits import Fit, Row
from isles import metrics

NAME = "tabular"
FOLDS = 5
FLOOR = 1e-6  # the least probability: a forest gives 0 to what none of its trees voted for, an infinite NLL
LEVEL = 0.9
CLEAR = 2.0  # standard errors
DIGITS_ROWS = 500

Floats = np.ndarray[Any, Any]


def some_digits() -> tuple[Floats, Floats]:
    """A part of scikit-learn's digits, with the shares of classes kept."""
    x, y = datasets.load_digits(return_X_y=True)
    return train_test_split(x, y, train_size=DIGITS_ROWS, stratify=y, random_state=0)[::2]


CLASSES: dict[str, Callable[[], tuple[Floats, Floats]]] = {
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "digits": some_digits,
}
VALUES: dict[str, Callable[[], tuple[Floats, Floats]]] = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "friedman1": lambda: datasets.make_friedman1(400, noise=1.0, random_state=0),
    "friedman2": lambda: datasets.make_friedman2(400, noise=100.0, random_state=0),
}
OURS = "isles"


def classifiers(seed: int) -> dict[str, Any]:
    """Those that are compared; features are scaled for all that need it."""
    return {
        OURS: isles.IslesClassifier(random_state=seed),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "random forest": RandomForestClassifier(random_state=seed),
        "MLP": make_pipeline(StandardScaler(), MLPClassifier(max_iter=2000, random_state=seed)),
    }


def regressors(seed: int) -> dict[str, Any]:
    """Those that are compared; targets are standardised beforehand for all of them."""
    return {
        OURS: isles.IslesRegressor(random_state=seed),
        "ridge": make_pipeline(StandardScaler(), Ridge()),
        "random forest": RandomForestRegressor(random_state=seed),
        "MLP": make_pipeline(StandardScaler(), MLPRegressor(max_iter=2000, random_state=seed)),
    }


def all_fits(repeats: int, chosen: list[str], quick: bool = False) -> Iterator[Fit]:
    """Repeat by repeat, so that what is cut short still has all data sets."""
    for repeat in range(repeats):
        for data in chosen:
            x, y = (CLASSES | VALUES)[data]()
            if quick:
                x, y = train_test_split(
                    x, y, train_size=60, stratify=y if data in CLASSES else None, random_state=0
                )[::2]
            splitter = StratifiedKFold if data in CLASSES else KFold
            folds = splitter(FOLDS, shuffle=True, random_state=repeat).split(x, y)
            for fold, (train, test) in enumerate(folds):
                models = (classifiers if data in CLASSES else regressors)(seed=FOLDS * repeat + fold)
                for method, model in models.items():
                    if quick and method == OURS:
                        model.set_params(hidden=(4,), particles=16, mutations=2, leapfrogs=5, islands=2)
                    name = f"{data}-{method}-{repeat}-{fold}".replace(" ", "_")
                    settings = {
                        "data": data, "rows": len(x), "method": method, "repeat": repeat, "fold": fold,
                        "model": " ".join(repr(model).split()),
                    }  # fmt: skip
                    score = score_classes if data in CLASSES else score_values
                    yield Fit(name, settings, lambda m=model, s=score, a=train, b=test, x=x, y=y: s(m, x, y, a, b))


def score_classes(model: Any, x: Floats, y: Floats, train: Floats, test: Floats) -> Row:
    """Accuracy, NLL, and what the calibration error comes from: counts and sums of each bin of confidence."""
    start = time.perf_counter()
    probabilities = model.fit(x[train], y[train]).predict_proba(x[test])
    seconds = time.perf_counter() - start
    p = np.maximum(probabilities, FLOOR)
    p /= p.sum(axis=1, keepdims=True)
    bins = metrics.reliability(p, y[test])
    sums = [np.nan_to_num(value) * bins.counts for value in (bins.confidence, bins.accuracy)]
    return {
        "accuracy": metrics.accuracy(p, y[test]),
        "nll": metrics.nll(p, y[test]),
        "bins": np.array([bins.counts, *sums]).round(6).tolist(),
        "seconds": seconds,
    }


def score_values(model: Any, x: Floats, y: Floats, train: Floats, test: Floats) -> Row:
    """RMSE, NLL and coverage, in units of the training targets' standard deviation.

    A peer's prediction is a Gaussian about its value, with the standard deviation of its training residuals; and
    again with that of residuals which it has not seen, by cross-validation within the training rows.
    """
    centre, scale = y[train].mean(), y[train].std()
    y = (y - centre) / scale
    start = time.perf_counter()
    if isinstance(model, isles.IslesRegressor):
        model.fit(x[train], y[train])
        scaled = ((x[test] - model.x_mean_) / model.x_scale_).astype(np.float32)
        values = model.posterior_.predict(scaled)
        seconds = time.perf_counter() - start
        truth = (y[test] - model.y_mean_) / model.y_scale_
        scores = dict(metrics.evaluate(values, truth, level=LEVEL))
        nll, cover = scores["nll"] + np.log(model.y_scale_), scores[f"coverage of {LEVEL:g}"]
        result = {"rmse": scores["rmse"] * model.y_scale_, "nll": nll, "coverage": cover}
        return {name: float(value) for name, value in result.items()} | {"seconds": seconds}
    mean = model.fit(x[train], y[train]).predict(x[test])
    seen = y[train] - model.predict(x[train])
    seconds = time.perf_counter() - start
    unseen = y[train] - cross_val_predict(clone(model), x[train], y[train], cv=KFold(FOLDS))
    nll, cover = gaussian_scores(mean, seen, y[test])
    held_out_nll, held_out_cover = gaussian_scores(mean, unseen, y[test])
    return {
        "rmse": metrics.rmse(mean, y[test]), "nll": nll, "coverage": cover,
        "held_out_nll": held_out_nll, "held_out_coverage": held_out_cover, "seconds": seconds,
    }  # fmt: skip


def gaussian_scores(mean: Floats, residuals: Floats, y: Floats) -> tuple[float, float]:
    """NLL and coverage of a Gaussian with the residuals' size for its standard deviation."""
    std = max(float(np.sqrt(np.mean(residuals**2))), FLOOR)
    z = (y - mean) / std
    nll = np.mean(0.5 * z * z) + np.log(std) + 0.5 * np.log(2 * np.pi)
    return float(nll), float(np.mean(np.abs(z) <= ndtri(0.5 + LEVEL / 2)))


def calibration_error(rows: list[Row]) -> list[float]:
    """ECE of each repeat, over the predictions of all its folds: of one fold alone it is mostly noise."""
    errors = []
    for repeat in sorted({row["settings"]["repeat"] for row in rows}):
        bins = sum(np.array(row["bins"]) for row in rows if row["settings"]["repeat"] == repeat)
        errors.append(float(np.abs(bins[1] - bins[2]).sum() / bins[0].sum()))
    return errors


def verdict(ours: list[Row], theirs: list[Row], score: str, key: str, sign: int) -> str:
    """`better` or `worse` for a peer that differs by more than `CLEAR` standard errors over folds."""
    fold = lambda row: (row["settings"]["repeat"], row["settings"]["fold"])
    found = {fold(row): row[score] for row in ours}
    gaps = np.array([sign * (row[key] - found[fold(row)]) for row in theirs if fold(row) in found])
    if gaps.size < 2 or abs(gaps.mean()) <= CLEAR * fits.standard_error(gaps):
        return ""
    return "better" if gaps.mean() > 0 else "worse"


def figures(folder: Path) -> str:
    """Tables of what is there, and where peers win."""
    rows = fits.read(folder)
    if not rows:
        return "## scikit-learn's data sets\n\nNot run.\n"
    tally: dict[str, list[str]] = {"better": [], "worse": [], "": []}
    parts = [
        table_of(rows, list(CLASSES), {"accuracy": 1, "nll": -1}, ["accuracy", "NLL", "ECE"], tally),
        table_of(rows, list(VALUES), {"rmse": -1, "nll": -1}, ["RMSE", "NLL", "coverage"], tally),
    ]
    listed = lambda names: "; ".join(names) + "." if names else "nowhere."
    return (
        "## scikit-learn's data sets\n\n" + "\n".join(part for part in parts if part) + "\n"
        f"A peer is clearly ahead (by more than {CLEAR:g} standard errors) in: {listed(tally['better'])}\n\n"
        f"Clearly behind in {len(tally['worse'])} comparisons: {listed(tally['worse'])}\n\n"
        f"Too close to tell: {len(tally[''])}.\n\n`python -m benchmarks.{NAME}`. {fits.provenance(rows)}"
    )


def table_of(
    rows: list[Row], data: list[str], scores: dict[str, int], names: list[str], tally: dict[str, list[str]]
) -> str:
    """One table, for classes or for values; `tally` gathers the verdicts."""
    lines = []
    for name in data:
        of = lambda method, name=name: [
            row for row in rows if (row["settings"]["data"], row["settings"]["method"]) == (name, method)
        ]
        ours = of(OURS)
        for method in classifiers(0) if name in CLASSES else regressors(0):
            theirs = of(method)
            if not theirs:
                continue
            words = []
            for score, sign in scores.items():
                keys = {score: names[list(scores).index(score)]}
                if f"held_out_{score}" in theirs[0]:
                    keys[f"held_out_{score}"] = "NLL by held-out residuals"
                for key, label in keys.items() if method != OURS else ():
                    word = verdict(ours, theirs, score, key, sign)
                    tally[word].append(f"{label} on {name} ({method})")
                    words += [f"{label} {word}"] if word else []
            cells = [fits.shown([row[score] for row in theirs]) for score in scores]
            if name in CLASSES:
                cells.append(f"{np.mean(calibration_error(theirs)):.3f}")
            else:
                cells.append(f"{np.mean([row['coverage'] for row in theirs]):.2f}")
                for key, digits in ("held_out_nll", 3), ("held_out_coverage", 2):
                    cells.append(fits.shown([row[key] for row in theirs], digits) if key in theirs[0] else "")
            seconds = np.mean([row["seconds"] for row in theirs])
            lines.append([name, method, len(theirs), *cells, f"{seconds:.2g}", ", ".join(words)])
    held_out = ["NLL, held-out residuals", "coverage, likewise"] if "RMSE" in names else []
    head = ["data", "method", "fits", *names, *held_out, "seconds", "against isles"]
    return fits.table(head, lines) if lines else ""


def main() -> None:
    """What is left to be done, then the tables."""
    parser = fits.arguments("isles beside scikit-learn's estimators")
    parser.add_argument("--repeats", type=int, default=1, help="of 5-fold cross-validation")
    parser.add_argument("--data", nargs="+", choices=[*CLASSES, *VALUES], default=[*CLASSES, *VALUES])
    options = parser.parse_args()
    fits.main(NAME, options, all_fits(options.repeats, options.data, options.quick))


if __name__ == "__main__":
    main()
