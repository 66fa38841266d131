"""An experiment's figures: scores over P, and a synopsis of what more islands and longer runs bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isles.reproduce.experiments import Experiment, Method
from isles.reproduce.tables import Cell


def write(experiment: Experiment, found: list[Cell]) -> None:
    """All of them, as SVG and PNG."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context({"svg.hashsalt": experiment.name}):  # the same file for the same islands
        _save(experiment, "figure", over_islands(experiment, found))
        if has_synopsis(found):
            _save(experiment, "synopsis", synopsis(found))


def _save(experiment: Experiment, name: str, figure: Any) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(experiment.folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(experiment.folder / f"{name}.png")
    plt.close(figure)


def over_islands(experiment: Experiment, found: list[Cell]) -> Any:
    """Accuracy and NLL over P, ours as lines, the paper's as crosses."""
    import matplotlib.pyplot as plt

    groups = list(dict.fromkeys(cell.method.group for cell in found))
    figure, axes = plt.subplots(
        2, len(groups), figsize=(3.2 * len(groups), 5.2), squeeze=False, sharey="row", layout="constrained"
    )
    for column, group in enumerate(groups):
        methods = dict.fromkeys(method.name for method in experiment.methods if method.group == group)
        for colour, name in enumerate(methods):
            for line in ("evidence", "equal"):
                chosen = [cell for cell in found if cell.method.name == name and cell.weighting == line]
                _draw_line(axes[:, column], chosen, f"C{colour}", dashed=line == "equal")
        axes[0, column].set_title(group)
        axes[1, column].set_xlabel("P")
        axes[0, column].legend(fontsize="x-small")
    axes[0, 0].set_ylabel("accuracy, %")
    axes[1, 0].set_ylabel("NLL a datum")
    return figure


def _draw_line(axes: Any, found: list[Cell], colour: str, *, dashed: bool) -> None:
    if not found:
        return
    method: Method = found[0].method
    for axis, metric in zip(axes, ("accuracy", "nll"), strict=True):
        ran = [cell for cell in found if cell.realizations]
        x = [cell.row for cell in ran]
        summaries = [cell.summary(metric) for cell in ran]
        y = [summary.mean for summary in summaries if summary]
        error = [(summary.standard_error or 0.0) for summary in summaries if summary]
        style = ":" if dashed and method.weighs else "-"
        label = f"{method.column}, equal weights" if dashed and method.weighs else method.column
        axis.errorbar(x, y, error, color=colour, linestyle=style, marker="o", markersize=3, label=label)
        printed = [(cell.row, value) for cell in found if (value := cell.printed(metric)) is not None]
        if printed and not (dashed and method.weighs):
            axis.plot(*np.transpose(printed), "x", color=colour)
        axis.set_xscale("log", base=2)
        axis.set_xticks(method.rows, [str(row) for row in method.rows])


def longest(found: Sequence[Cell]) -> str:
    """The group whose particles took most epochs."""
    ran = [cell for cell in found if cell.realizations and cell.method.parts == 1]
    return max(ran, key=lambda cell: cell.epochs or 0.0).method.group


def has_synopsis(found: Sequence[Cell]) -> bool:
    """Whether at least two groups were run whose lengths differ."""
    ran = [cell for cell in found if cell.realizations and cell.method.parts == 1]
    lengths = {cell.method.group: cell.method.epochs for cell in ran}.values()
    return len(lengths) > 1 and max(lengths) > 1.5 * min(lengths)


def synopsis(found: Sequence[Cell]) -> Any:
    """NLL over P for the longest runs, and over epochs for all; ours as lines, the paper's as crosses."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
    chosen = [cell for cell in found if cell.method.parts == 1]
    best = longest(found)
    lines = dict.fromkeys((cell.method.column, cell.weighting) for cell in chosen)
    for colour, (column, weighting) in enumerate(lines):
        mine = [cell for cell in chosen if (cell.method.column, cell.weighting) == (column, weighting)]
        label = f"{column}, {weighting} weights" if mine[0].method.weighs else column
        look = {"color": f"C{colour}", "linestyle": ":" if mine[0].method.weighs and weighting == "equal" else "-"}
        _points(left, [(cell.row, cell) for cell in mine if cell.method.group == best], look, label)
        rows = [{cell.row for cell in mine if cell.method.name == name and cell.realizations}
                for name in {cell.method.name for cell in mine if cell.realizations}]  # fmt: skip
        common = max(set.intersection(*rows), default=None) if rows else None
        ran = [(cell.epochs or 0.0, cell) for cell in mine if cell.row == common and cell.realizations]
        _points(right, sorted(ran, key=lambda pair: pair[0]), look, f"{label}, P = {common}")
    left.set(xlabel="islands P", ylabel="NLL a datum", title=f"more islands, {best}")
    left.set_xscale("log", base=2)
    right.set(xlabel="epochs of one particle", title="longer runs", xscale="log")
    right.xaxis.set_minor_formatter(lambda value, place: "")
    for axis in (left, right):
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize="x-small")
    return figure


def _points(axis: Any, found: Sequence[tuple[float, Cell]], look: dict[str, str], label: str) -> None:
    """Ours with error bars; the paper's at its own place."""
    ran = [(x, summary) for x, cell in found if (summary := cell.summary("nll"))]
    if ran:
        error = [summary.standard_error or 0.0 for _, summary in ran]
        y = [summary.mean for _, summary in ran]
        axis.errorbar([x for x, _ in ran], y, error, marker="o", markersize=3, label=label, **look)
    printed = [(x, value) for x, cell in found if (value := cell.printed("nll")) is not None]
    if printed:
        axis.plot(*np.transpose(printed), "x", color=look["color"])
