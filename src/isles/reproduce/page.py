"""An experiment's page: results.json, tables in Markdown and a figure, all from the islands that are there."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from isles.definition import processor
from isles.reproduce import figures, islands, sides
from isles.reproduce.experiments import METRICS, Experiment, Method
from isles.reproduce.islands import Scored
from isles.reproduce.tables import Cell, cells

FAR = 4.0  # standard errors beyond which a difference from the paper is pointed at
MOST = 99.0  # standard errors that are shown: of few realizations they are too rough for more
HEAD = (
    "| method | weights | P | NP | realizations | accuracy, % | paper | gap | NLL | paper | gap | H_ep | paper "
    "| gap | H_tot | paper | gap | island ESS | epochs | paper |"
)


def write(experiment: Experiment) -> None:
    """Everything that follows from the committed islands."""
    experiment.folder.mkdir(parents=True, exist_ok=True)
    scored = islands.scored(experiment) or Scored(0, np.array([], int))
    found = cells(experiment, scored.labels)
    results = summarise(experiment, found, scored)
    (experiment.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    figures.write(experiment, found)
    (experiment.folder / "README.md").write_text(text(experiment, results, found, scored))


def summarise(experiment: Experiment, found: list[Cell], scored: Scored) -> dict[str, Any]:
    """All of it, for machines: every realization's values, seeds, versions and cost."""
    kept = [island for path in experiment.folder.glob("islands/*/*.npz") if (island := islands.read(path))]
    seconds = [island.seconds for island in kept if island.seconds is not None]
    return {
        "experiment": experiment.name,
        "command": f"isles reproduce {experiment.name}{' --budget quick' if experiment.test else ''}",
        "data": {"name": experiment.data, "train": scored.train, "test": scored.test},
        "machine": {"processor": processor(), "python": platform.python_version()},
        "versions": [
            dict(pairs)
            for pairs in sorted({tuple(sorted(one.versions.items(), key=str)) for one in kept}, key=str)
        ],
        "particle_epochs": sum(island.particle_epochs for island in kept),
        "core_seconds": round(sum(seconds)),
        "islands": len(kept),
        "seeds": {method.name: experiment.seed(method) for method in experiment.methods},
        "numbers": "of island p in realization r: 1024 r + p",
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


def text(experiment: Experiment, results: dict[str, Any], found: list[Cell], scored: Scored) -> str:
    """The page."""
    groups = dict.fromkeys(cell.method.group for cell in found)
    parts = [
        f"# {experiment.title}",
        experiment.about.strip(),
        f"Data: {experiment.data}, {scored.train:,} training and {scored.test:,} test rows at hand. Islands run "
        f"so far: {results['islands']}, with {results['particle_epochs']:.3g} particle-epochs in "
        f"{results['core_seconds'] / 3600:.2f} core hours on {results['machine']['processor']}, by the clock, "
        f"whatever else the machine did.",
        f"Made by `{results['command']}`, which goes on where it stands; this page and the tables follow from the "
        f"files in [islands](islands). Figures are means over realizations ± standard error (with R − 1, so of "
        f"two realizations it is rough; of one there is none). *gap* is ours minus the paper's, in standard "
        f"errors: ours and, for the accuracy, the paper's; beyond {FAR:g} it is bold. *H_ep* and *H_tot* are mean "
        f"epistemic and total entropies in nats. *NP* counts all draws of a row.",
        f"Ours over P as lines, with standard errors; crosses are the paper's{_of_all_rows(found)}:\n\n"
        "![accuracy and NLL over P](figure.svg)",
    ]
    if figures.has_synopsis(experiment, found):
        parts.append(
            f"{figures.about_synopsis(experiment, found)}, crosses being the paper's (of what we did not run, "
            f"with the most islands that it has):\n\n"
            f"![accuracy and NLL over P, and over epochs](synopsis.svg)"
        )
    for group in groups:
        mine = [cell for cell in found if cell.method.group == group]
        table = [HEAD, "|" + "---|" * (HEAD.count("|") - 1), *map(_row, mine)]
        parts.append("\n".join([f"## {group}\n", *_subset(experiment, scored, mine[0].method), *table]))
    parts += sides.text(experiment, found)
    parts += _differences(found)
    parts.append("## What was left out\n\n" + "\n".join(_left_out(experiment, scored, found)))
    if results["warnings"]:
        listed = "\n".join(f"- {message}" for message in one_of_each_kind(results["warnings"]))
        parts.append(f"## What the runs said themselves\n\nOne message of each kind:\n\n{listed}")
    notes = experiment.folder / "notes.md"
    if notes.exists():
        parts.append(notes.read_text().strip())
    return "\n\n".join(parts) + "\n"


def _of_all_rows(found: Sequence[Cell]) -> str:
    """What figures over P show of a single long chain."""
    chains = dict.fromkeys(cell.method.column for cell in found if cell.method.shares)
    return f"; {', '.join(chains)} is one long chain, whose end stands at every P" if chains else ""


def _differences(found: Sequence[Cell]) -> list[str]:
    """How many cells differ from the paper's."""
    far, beside = (len([cell for cell in found if choose(cell)]) for choose in (is_far, has_gap))
    alone = len([cell for cell in found if is_counted(cell) and not has_gap(cell) and cell.printed("nll")])
    said = []
    if beside:
        said = [
            f"{far} of {beside} cells with a standard error differ from the paper by more than {FAR:g} in a score."
        ]
    if alone:
        said += [f"Cells beside the paper's with one realization, so without a gap: {alone}."]
    return [" ".join(said)] if said else []


def is_counted(cell: Cell) -> bool:
    """Whether a cell was run, and is not the same as another: with one island all weights are equal."""
    return bool(cell.realizations) and not (cell.method.weighs and cell.row == 1 and cell.weighting == "equal")


def has_gap(cell: Cell) -> bool:
    """Whether a cell that counts can be compared with the paper."""
    return is_counted(cell) and any(cell.gap(metric) is not None for metric in METRICS)


def is_far(cell: Cell) -> bool:
    """Whether a cell that counts differs from the paper in a score."""
    return is_counted(cell) and any(abs(cell.gap(metric) or 0) > FAR for metric in METRICS)


def _subset(experiment: Experiment, scored: Scored, method: Method) -> list[str]:
    """What part of the paper's data a table is of, if it is a part."""
    theirs, train = experiment.paper_rows, _train_rows(scored, method)
    if theirs is None or (train, scored.test) == theirs or not scored.test:
        return []
    return [
        f"{train:,} of the paper's {theirs[0]:,} training and {scored.test:,} of its {theirs[1]:,} test rows: "
        f"gaps are between different data.\n"
    ]


def _train_rows(scored: Scored, method: Method) -> int:
    """Training rows of a method: those at hand, or the first of them."""
    chosen = re.search(r"[?&]train=(\d+)", method.problem)
    return min(int(chosen[1]), scored.train) if chosen else scored.train


def _left_out(experiment: Experiment, scored: Scored, found: Sequence[Cell]) -> list[str]:
    lines = [line for line in experiment.left_out.strip().splitlines() if line]
    for name in dict.fromkeys(cell.method.name for cell in found):
        mine = [cell for cell in found if cell.method.name == name]
        method, what = mine[0].method, "shares of the chain" if mine[0].method.shares else "P"
        whole = method.extents["paper"].realizations
        if not any(cell.realizations for cell in mine):
            lines.append(f"- {method.column}, {method.group}: not run.")
            continue
        rows: dict[int, dict[str, None]] = {}  # by realizations run
        for cell in mine:
            rows.setdefault(len(cell.realizations), {})[str(cell.row)] = None
        short = [
            (f"{count} of the paper's {whole} realizations" if count else "not run")
            + f" for {what} = {', '.join(some)}"
            for count, some in sorted(rows.items(), reverse=True)
            if count < whole
        ]
        if short:
            lines.append(f"- {method.column}, {method.group}: {'; '.join(short)}.")
    return lines or ["- Nothing: every cell has the paper's realizations."]


def _row(cell: Cell) -> str:
    method = cell.method
    place = f"{cell.row}/{method.parts} of the chain" if method.shares else str(cell.row)
    columns = [method.column, cell.weighting if method.weighs else "", place, str(method.draws(cell.row))]
    columns.append(str(len(cell.realizations)))
    for metric in METRICS:
        ours = _ours(cell, metric) if cell.realizations else "not run"
        if metric == "epistemic" and cell.realizations and method.draws(cell.row) == 1:
            ours = "0"  # of a single draw; what is there is rounding
        columns += [ours, _number(cell.printed(metric), metric), _gap(cell.gap(metric))]
    columns.append("" if cell.island_ess is None or not method.weighs else f"{cell.island_ess:.2f}")
    columns.append(_number(cell.epochs, "epochs") if cell.realizations else "not run")
    columns.append(_number(cell.printed("epochs"), "epochs"))
    return "".join(f"| {column} " for column in columns) + "|"


def _ours(cell: Cell, metric: str) -> str:
    summary = cell.summary(metric)
    assert summary is not None
    if summary.standard_error is None:
        return _number(summary.mean, metric)
    return f"{_number(summary.mean, metric)} ± {_number(summary.standard_error, metric)}"


def _number(value: float | None, metric: str) -> str:
    if value is None:
        return ""
    shown = {"accuracy": f"{value:.2f}", "epochs": f"{value:.4g}", "epistemic": f"{value:.3g}"}
    return shown.get(metric, f"{value:.4f}")


def _gap(gap: float | None) -> str:
    if gap is None:
        return ""
    if abs(gap) > MOST:
        return f"**{'> +' if gap > 0 else '< −'}{MOST:g}**"
    return f"**{gap:+.1f}**" if abs(gap) > FAR else f"{gap:+.1f}"


def one_of_each_kind(messages: Iterable[str]) -> list[str]:
    """The first message of each kind, told by its first words that are no numbers."""
    kinds: dict[str, str] = {}
    for message in messages:
        words = [word for word in message.split() if not any(map(str.isdigit, word))]
        kinds.setdefault(" ".join(words[:4]), message)
    return list(kinds.values())
