"""Tables from the islands that are there: scores of P islands over realizations, the paper's beside. No JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isles import metrics, weights
from isles.reproduce import islands
from isles.reproduce.experiments import METRICS, Experiment, Method, Place
from isles.reproduce.islands import Island

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Cell:
    """One method with P islands, over the realizations that have so many."""

    method: Method
    row: int  # P
    weighting: str  # "evidence" or "equal"
    values: dict[str, tuple[float, ...]]  # metric -> one a realization, in the order of `realizations`
    realizations: tuple[int, ...]
    epochs: float | None  # of one particle, mean over islands; for a serial chain, of the chain so far
    island_ess: float | None  # mean over realizations

    def summary(self, metric: str) -> metrics.Summary | None:
        """Mean and standard errors; None if it was not run."""
        return metrics.summarise(self.values[metric]) if self.realizations else None

    def printed(self, name: str) -> float | None:
        """The paper's figure."""
        values = self.method.printed.get(name, ())
        place = self.method.rows.index(self.row)
        return values[place] if place < len(values) else None

    def gap(self, metric: str) -> float | None:
        """How far ours is from the paper's, in standard errors; None where one of them or the error is missing."""
        ours, theirs = self.summary(metric), self.printed(metric)
        if ours is None or theirs is None or ours.realizations < 2:
            return None
        error = np.hypot(ours.standard_error, self.printed(f"{metric}_error") or 0.0)
        return float((ours.mean - theirs) / error) if error > 0 else None


def cells(experiment: Experiment, labels: Array) -> list[Cell]:
    """Every cell of every table; those that were not run have no realizations."""
    return [
        _cell(experiment, method, row, weighting, labels)
        for method in experiment.methods
        for row in method.rows
        for weighting in (["evidence", "equal"] if method.weighs else ["equal"])
    ]


def scores(found: Sequence[Island], omega: Array, labels: Array) -> dict[str, float]:
    """Scores of islands with weights omega. Entropies in nats, accuracy in per cent."""
    mixed = np.tensordot(omega, np.stack([island.probabilities for island in found]), 1)
    total = float(metrics.entropy(mixed).mean())
    own = float(omega @ [island.draw_entropy for island in found])
    return {
        "accuracy": 100 * metrics.accuracy(mixed, labels),
        "nll": metrics.nll(mixed, labels),
        "epistemic": max(total - own, 0.0),  # one draw has none, and rounding may make it less
        "entropy": total,
    }


def island_weights(found: Sequence[Island], weighting: str) -> Array:
    """By evidence, or equal."""
    if weighting == "equal":
        return np.full(len(found), 1 / len(found))
    return weights.island_weights(np.array([island.log_evidence for island in found], np.float64))


def _cell(experiment: Experiment, method: Method, row: int, weighting: str, labels: Array) -> Cell:
    most = max((extent.realizations for extent in method.extents.values()), default=0)
    values: dict[str, list[float]] = {metric: [] for metric in METRICS}
    realizations, ess, epochs = list[int](), list[float](), list[float]()
    for realization in range(most):
        places = [Place(realization, island) for island in range(row * method.shards)]
        paths = [islands.path_of(experiment, method, place) for place in places]
        found = [island for path in paths if (island := islands.read(path)) is not None]
        if len(found) < len(paths):
            continue
        omega = island_weights(found, weighting)
        for metric, value in scores(found, omega, labels).items():
            values[metric].append(value)
        realizations.append(realization)
        ess.append(weights.ess(omega) / method.shards)
        each = [island.epochs for island in found]
        epochs.append(sum(each) if method.parts > 1 else float(np.mean(each)))
    return Cell(
        method, row, weighting,
        {metric: tuple(numbers) for metric, numbers in values.items()},
        tuple(realizations),
        float(np.mean(epochs)) if epochs else None,
        float(np.mean(ess)) if ess and row > 1 else None,
    )  # fmt: skip
