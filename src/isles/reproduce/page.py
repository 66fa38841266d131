"""An experiment's page: results.json, tables in Markdown and a figure, all from the islands that are there."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from isles import data as datasets
from isles.definition import processor
from isles.reproduce import figures, islands
from isles.reproduce.experiments import METRICS, Experiment
from isles.reproduce.tables import Cell, cells

FAR = 4.0  # standard errors beyond which a difference from the paper is pointed at
HEAD = (
    "| method | weights | P | realizations | accuracy, % | paper | gap | NLL | paper | gap | H_ep | paper "
    "| H_tot | paper | island ESS | epochs | paper |"
)


def write(experiment: Experiment) -> None:
    """Everything that follows from the committed islands."""
    experiment.folder.mkdir(parents=True, exist_ok=True)
    test = datasets.load(experiment.data, test=experiment.test)
    found = cells(experiment, test.y_test)
    results = summarise(experiment, found, repr(test))
    (experiment.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    figures.write(experiment, found)
    (experiment.folder / "README.md").write_text(text(experiment, results, found))


def summarise(experiment: Experiment, found: list[Cell], data: str) -> dict[str, Any]:
    """All of it, for machines: every realization's values, seeds, versions and cost."""
    kept = [island for path in experiment.folder.glob("islands/*/*.npz") if (island := islands.read(path))]
    seconds = [island.seconds for island in kept if island.seconds is not None]
    return {
        "experiment": experiment.name,
        "command": f"isles reproduce {experiment.name}",
        "commit": commit(experiment.folder),
        "data": data,
        "machine": {"processor": processor(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("isles", "jax", "jaxlib", "numpy")},
        "particle_epochs": sum(island.particle_epochs for island in kept),
        "core_seconds": round(sum(seconds)),
        "islands": len(kept),
        "seeds": {method.name: experiment.seed(method) for method in experiment.methods},
        "warnings": sorted({message for island in kept for message in island.warnings}),
        "cells": [
            {
                "method": cell.method.name,
                "P": cell.row,
                "weights": cell.weighting,
                "realizations": list(cell.realizations),
                "values": {metric: list(values) for metric, values in cell.values.items()},
                "epochs": cell.epochs,
                "island_ess": cell.island_ess,
                "gaps": {metric: cell.gap(metric) for metric in METRICS},
            }
            for cell in found
        ],
    }


def text(experiment: Experiment, results: dict[str, Any], found: list[Cell]) -> str:
    """The page."""
    groups = dict.fromkeys(cell.method.group for cell in found)
    far = [cell for cell in found if any(abs(cell.gap(metric) or 0) > FAR for metric in METRICS)]
    parts = [
        f"# {experiment.title}",
        experiment.about.strip(),
        f"Data: {results['data'].strip('<>')}. Islands run so far: {results['islands']}, with "
        f"{results['particle_epochs']:.3g} particle-epochs in {results['core_seconds'] / 3600:.2f} core hours on "
        f"{results['machine']['processor']}.",
        f"Made by `{results['command']}`, which goes on where it stands; this page and the tables follow from the "
        f"files in [islands](islands). Figures are means over realizations ± standard error (with R − 1; with one "
        f"realization there is none). *gap* is ours minus the paper's, in standard errors; beyond {FAR:g} it is "
        f"bold. *H_ep* and *H_tot* are mean epistemic and total entropies in nats.",
        "![accuracy and NLL over P](figure.svg)",
    ]
    if figures.has_synopsis(found):
        parts.append(
            f"What more islands bring (left, {figures.longest(found)}) and what longer runs bring (right; for "
            "every method the most islands that all its lengths have), crosses being the paper's:\n\n"
            "![NLL over P, and over epochs](synopsis.svg)"
        )
    for group in groups:
        rows = [_row(cell) for cell in found if cell.method.group == group]
        parts.append("\n".join([f"## {group}\n", HEAD, "|" + "---|" * (HEAD.count("|") - 1), *rows]))
    if far:
        count = sum(bool(cell.realizations) for cell in found)
        parts.append(f"{len(far)} of {count} cells that were run differ from the paper by more than {FAR:g}.")
    if results["warnings"]:
        listed = "\n".join(f"- {message}" for message in _kinds(results["warnings"]))
        parts.append(f"## What the runs said themselves\n\nOne message of each kind:\n\n{listed}")
    notes = experiment.folder / "notes.md"
    if notes.exists():
        parts.append(notes.read_text().strip())
    return "\n\n".join(parts) + "\n"


def _row(cell: Cell) -> str:
    method = cell.method
    weighting = cell.weighting if method.weighs else ""
    start = f"| {method.column} | {weighting} | {cell.row} "
    if not cell.realizations:
        theirs = [_number(cell.printed(name), name) for name in METRICS]
        printed = (
            f"| not run | {theirs[0]} | | not run | {theirs[1]} | | not run | {theirs[2]} | not run | {theirs[3]} "
        )
        return start + "| 0 " + printed + f"| | not run | {_number(cell.printed('epochs'), 'epochs')} |"
    columns = [str(len(cell.realizations))]
    for metric in METRICS:
        columns += [_ours(cell, metric), _number(cell.printed(metric), metric)]
        if metric in ("accuracy", "nll"):
            columns.append(_gap(cell.gap(metric)))
    ess = "" if cell.island_ess is None else f"{cell.island_ess:.2f}"
    columns += [ess, _number(cell.epochs, "epochs"), _number(cell.printed("epochs"), "epochs")]
    return start + "".join(f"| {column} " for column in columns) + "|"


def _ours(cell: Cell, metric: str) -> str:
    summary = cell.summary(metric)
    assert summary is not None
    if summary.standard_error is None:
        return _number(summary.mean, metric)
    return f"{_number(summary.mean, metric)} ± {_number(summary.standard_error, metric)}"


def _number(value: float | None, metric: str) -> str:
    if value is None:
        return ""
    return {"accuracy": f"{value:.2f}", "epochs": f"{value:.4g}"}.get(metric, f"{value:.4f}")


def _gap(gap: float | None) -> str:
    if gap is None:
        return ""
    return f"**{gap:+.1f}**" if abs(gap) > FAR else f"{gap:+.1f}"


def _kinds(messages: Iterable[str]) -> list[str]:
    """The first message of each kind, told by its first words."""
    kinds: dict[str, str] = {}
    for message in messages:
        kinds.setdefault(" ".join(message.split()[:4]), message)
    return list(kinds.values())


def commit(folder: Path) -> str | None:
    """The commit of the code, if it is in a repository."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
