"""A study's page: results.json, tables in Markdown and a figure, all from the pieces that are there."""

from __future__ import annotations

import importlib
import json
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from experiments.studies.study import Cell, Study, commit

from isles.reproduce.page import one_of_each_kind


@dataclass(frozen=True)
class Ran:
    """A cell and all that has been run of it."""

    cell: Cell
    pieces: list[dict[str, Any]]

    def __getitem__(self, fact: str) -> Any:
        return self.cell.facts[fact]

    def __bool__(self) -> bool:
        return bool(self.pieces)

    @property
    def realizations(self) -> int:
        """That have been run."""
        return sum(piece["facts"]["realizations"] for piece in self.pieces)

    def mean(self, name: str) -> float:
        """Of a number that every piece found."""
        return float(np.mean([piece["found"][name] for piece in self.pieces]))

    def errors(self, way: str = "evidence", *, relative: bool = True) -> np.ndarray[Any, Any]:
        """Squared errors of all realizations, relative to ‖μ‖² of their targets if so asked."""
        scale = lambda found: found["mean_square"] if relative else 1.0
        return np.concatenate([np.array(p["found"][way]) / scale(p["found"]) for p in self.pieces])


@dataclass(frozen=True)
class Story:
    """What a study's module makes of its cells."""

    sections: list[str]  # Markdown
    draw: Callable[[Any], None]  # on a figure of matplotlib
    size: tuple[float, float]  # of the figure, in inches
    facts: dict[str, Any]  # for machines


def write(study: Study) -> None:
    """Everything that follows from the pieces."""
    ran = [Ran(cell, study.pieces(cell)) for cell in study.cells]
    story = importlib.import_module(study.module).tell(ran)
    study.folder.mkdir(parents=True, exist_ok=True)
    results = summarise(study, ran, story)
    (study.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    _save_figure(study, story)
    (study.folder / "README.md").write_text(text(study, results, story))


def summarise(study: Study, ran: Sequence[Ran], story: Story) -> dict[str, Any]:
    """For machines: seeds, versions, cost, and what the tables say."""
    pieces = [piece for each in ran for piece in each.pieces]
    return {
        "study": study.name,
        "command": f"python -m experiments.studies {study.name}",
        "page_commit": commit(),
        "piece_commits": sorted({str(piece.get("commit")) for piece in pieces}),  # None: not written down then
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("isles", "jax", "jaxlib", "numpy")},
        "particle_epochs": sum(piece["particle_epochs"] for piece in pieces),
        "core_seconds": round(sum(piece["seconds"] for piece in pieces)),
        "pieces": len(pieces),
        "cells_run": sum(bool(each) for each in ran),
        "cells": len(ran),
        "seeds": {each.cell.name: [piece["seed"] for piece in each.pieces] for each in ran if each},
        "warnings": one_of_each_kind(sorted(message for piece in pieces for message in piece["warnings"])),
        "tables": json.loads(json.dumps(story.facts, default=_rounded)),
    }


def text(study: Study, results: dict[str, Any], story: Story) -> str:
    """The page."""
    parts = [
        f"# {study.title}",
        study.about,
        f"Made by `{results['command']}`, which goes on where it stands: {results['pieces']} pieces so far, of "
        f"{results['cells_run']} of the {results['cells']} cells of the paper's extent, with "
        f"{results['particle_epochs']:.3g} particle-epochs in {results['core_seconds'] / 3600:.2f} core hours. "
        f"All that is here follows from the files in [pieces](pieces).",
        "![what was measured](figure.svg)",
        *_notes(study),
        *story.sections,
        f"## What was left out\n\n{study.left_out}",
    ]
    if results["warnings"]:
        listed = "\n".join(f"- {message}" for message in results["warnings"])
        parts.append(f"## What the runs said themselves\n\nOne message of each kind:\n\n{listed}")
    return "\n\n".join(parts) + "\n"


def _notes(study: Study) -> list[str]:
    """What we make of it, if somebody has written it down."""
    path = study.folder / "notes.md"
    return [path.read_text().strip()] if path.exists() else []


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """In Markdown."""
    line = lambda cells: "| " + " | ".join(str(cell) for cell in cells) + " |"
    return "\n".join([line(head), "|" + "---|" * len(head), *(line(row) for row in rows)])


def number(value: float | None, digits: int = 3) -> str:
    """In a table; None has not been run, NaN cannot be said."""
    return "not run" if value is None else "" if np.isnan(value) else f"{value:.{digits}g}"


def with_error(values: Any, digits: int = 3) -> str:
    """Mean ± standard error (with R − 1)."""
    values = np.asarray(values)
    if values.size == 0:
        return "not run"
    if values.size == 1:
        return f"{values.mean():.{digits}g}"
    return f"{values.mean():.{digits}g} ± {values.std(ddof=1) / np.sqrt(values.size):.1g}"


def grid(ran: Sequence[Ran], row: str, column: str, value: Callable[[Ran], float]) -> str:
    """A table of numbers over two settings; cells that were not run have a dot, and those not planned nothing."""
    rows, columns = (sorted({each[fact] for each in ran}) for fact in (row, column))
    found = {(each[row], each[column]): number(value(each)) if each else "·" for each in ran}
    body = [[f"**{r}**", *(found.get((r, c), "") for c in columns)] for r in rows]
    return table([f"{row} \\ {column}", *columns], body)


def _save_figure(study: Study, story: Story) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context({"svg.hashsalt": study.name, "font.size": 8}):  # the same file for the same pieces
        figure = plt.figure(figsize=story.size, layout="constrained")
        story.draw(figure)
        figure.savefig(study.folder / "figure.svg", metadata={"Date": None})
        figure.savefig(study.folder / "figure.png", dpi=120)
        plt.close(figure)


def _rounded(value: Any) -> Any:
    return np.asarray(value).tolist()
