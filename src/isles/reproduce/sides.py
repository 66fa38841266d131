"""Tables that set methods of an experiment side by side, as its settings ask for. No JAX."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isles.reproduce.experiments import Experiment
from isles.reproduce.tables import Cell

NOT_RUN = "not run"


def text(experiment: Experiment, found: Sequence[Cell]) -> list[str]:
    """All of them, in Markdown."""
    kinds = {"particles": by_particles, "processes": by_processes}
    return [f"## {side['title']}\n\n{kinds[side['kind']](side, found)}" for side in experiment.sides]


def by_particles(side: Mapping[str, Any], found: Sequence[Cell]) -> str:
    """N at a fixed number of draws NP, with both weights: accuracies, then NLL, the paper's in brackets."""
    names: Mapping[str, str] = side["methods"]
    head = ["NP", "weights", *(f"accuracy, {label}" for label in names), *(f"NLL, {label}" for label in names)]
    rows = []
    for draws, weighting in itertools.product(side["draws"], ("evidence", "equal")):
        mine = [_with_draws(found, name, draws, weighting) for name in names.values()]
        scores = [_shown(cell, metric) for metric in ("accuracy", "nll") for cell in mine]
        rows.append([str(draws), weighting, *scores])
    return _table(head, rows)


def by_processes(side: Mapping[str, Any], found: Sequence[Cell]) -> str:
    """One process against one for each particle or chain: scores, and the epochs one after another."""
    head = ["", *(f"{method}, {what}" for method in ("SMC", "HMC") for what in ("accuracy", "NLL", "epochs"))]
    rows = []
    for group, names in side["groups"].items():
        smc, serial, parallel = (_first(found, names[which]) for which in ("smc", "serial", "parallel"))
        width = smc.method.width if smc else 1
        rows.append([f"{group}, one process", *_scores(smc, width), *_scores(serial, 1)])
        rows.append([f"{group}, one process a particle", *_scores(smc, 1), *_scores(parallel, 1)])
    return _table(head, rows)


def _scores(cell: Cell | None, processes: int) -> list[str]:
    if cell is None:
        return [NOT_RUN] * 3
    theirs, ours = cell.printed("epochs"), cell.epochs
    shown = NOT_RUN if ours is None else f"{ours * processes:.3g}"
    epochs = shown if theirs is None else f"{shown} ({theirs * processes:.3g})"
    return [_shown(cell, "accuracy"), _shown(cell, "nll"), epochs]


def _shown(cell: Cell | None, metric: str) -> str:
    """Ours ± its standard error, and the paper's in brackets."""
    if cell is None:
        return ""
    digits, theirs, summary = 2 if metric == "accuracy" else 4, cell.printed(metric), cell.summary(metric)
    ours = NOT_RUN
    if summary is not None:
        ours = f"{summary.mean:.{digits}f}"
        ours += "" if summary.standard_error is None else f" ± {summary.standard_error:.{digits}f}"
    return ours if theirs is None else f"{ours} ({theirs:.{digits}f})"


def _first(found: Iterable[Cell], name: str) -> Cell | None:
    """A method's row with the fewest islands."""
    mine = [cell for cell in found if cell.method.name == name]
    return min(mine, key=lambda cell: cell.row, default=None)


def _with_draws(found: Iterable[Cell], name: str, draws: int, weighting: str) -> Cell | None:
    """A method's row with so many draws."""
    mine = (cell for cell in found if cell.method.name == name and cell.weighting == weighting)
    return next((cell for cell in mine if cell.method.draws(cell.row) == draws), None)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
