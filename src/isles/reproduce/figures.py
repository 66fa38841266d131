"""An experiment's figures: scores over P, and a synopsis of what more islands and longer runs bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from textwrap import fill
from typing import Any

import numpy as np

from isles.reproduce.experiments import Experiment
from isles.reproduce.tables import Cell

SCORES = {"accuracy": "accuracy, %", "nll": "NLL a datum"}
ABREAST = 4  # panels of one row
TITLE_WIDTH = 30  # letters of a line above a panel


def write(experiment: Experiment, found: list[Cell]) -> None:
    """All of them, as SVG and PNG."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context({"svg.hashsalt": experiment.name}):  # the same file for the same islands
        _save(experiment, "figure", over_islands(experiment, found))
        if has_synopsis(experiment, found):
            _save(experiment, "synopsis", synopsis(experiment, found))


def _save(experiment: Experiment, name: str, figure: Any) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(experiment.folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(experiment.folder / f"{name}.png")
    plt.close(figure)


def shown(experiment: Experiment, found: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each group that figures show."""
    groups = experiment.panels or dict.fromkeys(cell.method.group for cell in found)
    return {group: [cell for cell in found if cell.method.group == group] for group in groups}


def over_islands(experiment: Experiment, found: list[Cell]) -> Any:
    """Accuracy and NLL over P for every group, ours as lines, the paper's as crosses."""
    import matplotlib.pyplot as plt

    groups = shown(experiment, found)
    columns = min(len(groups), ABREAST)
    bands = -(-len(groups) // columns)
    figure, axes = plt.subplots(
        2 * bands, columns, figsize=(3.2 * columns, 5.2 * bands), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[2 * len(groups) :]:
        axis.set_visible(False)
    for place, (group, mine) in enumerate(groups.items()):
        band, column = divmod(place, columns)
        for axis, metric in zip(axes[2 * band : 2 * band + 2, column], SCORES, strict=True):
            _over_islands(axis, mine, metric, colours_of(experiment))
        axes[2 * band, column].set_title(fill(group, TITLE_WIDTH))
        axes[2 * band + 1, column].set_xlabel("P")
    for band in range(bands):
        for row, label in enumerate(SCORES.values()):
            axes[2 * band + row, 0].set_ylabel(label)
    _name(figure, [cell for mine in groups.values() for cell in mine], colours_of(experiment))
    return figure


def _over_islands(axis: Any, found: Sequence[Cell], metric: str, colours: Mapping[str, str]) -> None:
    rows = sorted({cell.row for cell in found if not cell.method.shares})
    for label, mine, look in _lines(found, colours):
        end = mine[-1]
        if end.method.shares:  # a single chain, whose end stands for all P
            if (ours := _mean(end, metric)) is not None:
                axis.axhline(ours, color=look["color"], linewidth=1, label=label)
            _crosses(axis, [(row, end.printed(metric)) for row in rows], look)
        else:
            _points(axis, [(cell.row, cell.row, cell) for cell in mine], metric, look, label)
    axis.set_xscale("log", base=2)
    axis.set_xticks(rows, [str(row) for row in rows])


def colours_of(experiment: Experiment) -> dict[str, str]:
    """The same for a column in all panels."""
    columns = dict.fromkeys(method.column for method in experiment.methods)
    return {column: f"C{number}" for number, column in enumerate(columns)}


def _lines(found: Sequence[Cell], colours: Mapping[str, str]) -> list[tuple[str, list[Cell], dict[str, str]]]:
    """What belongs to one line, with its name and its look: a colour for each method, dots for equal weights."""
    lines = []
    for column, weighting in dict.fromkeys((cell.method.column, cell.weighting) for cell in found):
        mine = [cell for cell in found if (cell.method.column, cell.weighting) == (column, weighting)]
        dotted = mine[0].method.weighs and weighting == "equal"
        look = {"color": colours[column], "linestyle": ":" if dotted else "-"}
        lines.append((f"{column}, equal weights" if dotted else column, mine, look))
    return lines


def _islands_run(found: Sequence[Cell]) -> int:
    """The most islands of a cell that was run."""
    return max((cell.row for cell in found if cell.realizations and not cell.method.shares), default=0)


def _length(found: Sequence[Cell]) -> float:
    """Epochs that particles of a group take: of its shortest method, since serial chains take other ones."""
    return min(cell.method.epochs for cell in found)


def widest(experiment: Experiment, found: Sequence[Cell]) -> str:
    """Of the groups that were run with most islands, the longest."""
    groups = shown(experiment, found)
    return max(groups, key=lambda group: (_islands_run(groups[group]), _length(groups[group])))


def comparable(experiment: Experiment, found: Sequence[Cell]) -> list[Cell]:
    """Cells of the problem that most lengths were run on: a line over lengths must not change its data."""
    ran = {cell.method.group: cell.method.problem for cell in found if cell.realizations}
    lengths = [ran[group] for group in shown(experiment, found) if group in ran]
    usual = max(lengths, key=lengths.count, default=None)
    return [cell for cell in found if cell.method.problem == usual and not cell.method.shares]


def has_synopsis(experiment: Experiment, found: Sequence[Cell]) -> bool:
    """Whether at least two groups were run whose lengths differ."""
    groups = shown(experiment, comparable(experiment, found))
    lengths = [_length(mine) for mine in groups.values() if _islands_run(mine)]
    return len(lengths) > 1 and max(lengths) > 1.5 * min(lengths)


def about_synopsis(experiment: Experiment, found: Sequence[Cell]) -> str:
    """What it shows."""
    most = f"each with the most islands that were run ({_most_of_each(experiment, found)})"
    others = [group for group, mine in shown(experiment, found).items() if _islands_run(mine)]
    others = [
        group for group in others if group not in {cell.method.group for cell in _lengths(experiment, found)}
    ]
    if others:
        most += f", but for those on other data ({', '.join(others)})"
    if _islands_run(found) == 1:
        return f"What longer runs bring, {most}"
    return (
        f"What more islands bring (left, {widest(experiment, found)}) and what longer runs bring (right), {most}"
    )


def _most_of_each(experiment: Experiment, found: Sequence[Cell]) -> str:
    """P of the points of every method."""
    rows: dict[str, set[int]] = {}
    for cell in _most_islands(_lengths(experiment, found)):
        if cell.realizations:
            rows.setdefault(cell.method.column, set()).add(cell.row)
    return "; ".join(f"{column}: P = {' or '.join(map(str, sorted(mine)))}" for column, mine in rows.items())


def _lengths(experiment: Experiment, found: Sequence[Cell]) -> list[Cell]:
    """What a line over lengths is of."""
    return [cell for mine in shown(experiment, comparable(experiment, found)).values() for cell in mine]


def synopsis(experiment: Experiment, found: Sequence[Cell]) -> Any:
    """Scores over P for the runs with most islands, if any has several, and over epochs for all lengths."""
    import matplotlib.pyplot as plt

    groups, colours, best = shown(experiment, found), colours_of(experiment), widest(experiment, found)
    both = _islands_run(found) > 1
    lengths = _lengths(experiment, found)
    figure, axes = plt.subplots(2, 1 + both, figsize=(4 + 4 * both, 6), layout="constrained", squeeze=False)
    for row, (metric, label) in enumerate(SCORES.items()):
        right = axes[row, -1]
        if both:
            _over_islands(axes[row, 0], groups[best], metric, colours)
        for name, mine, look in _lines(lengths, colours):
            line = sorted(_most_islands(mine), key=lambda cell: cell.method.epochs)
            for _, part in groupby(line, lambda cell: cell.row * bool(cell.realizations)):  # of one P
                places = [(cell.epochs, cell.printed("epochs"), cell) for cell in part]
                _points(right, places, metric, look, name)
        axes[row, 0].set_ylabel(label)
        right.set_xscale("log")
        right.xaxis.set_minor_formatter(lambda value, place: "")
    if both:
        axes[0, 0].set_title(f"more islands, {best}")
        axes[1, 0].set_xlabel("islands P")
    axes[0, -1].set_title("longer runs")
    axes[1, -1].set_xlabel("epochs one after another")
    _name(figure, [*lengths, *(groups[best] if both else ())], colours)
    return figure


def _most_islands(found: Sequence[Cell]) -> list[Cell]:
    """Of every method the cell with most islands that was run; of those not run, the paper's with most."""
    chosen: dict[str, Cell] = {}
    for cell in sorted(found, key=lambda cell: (bool(cell.realizations), cell.row)):
        chosen[cell.method.name] = cell
    return list(chosen.values())


def _name(figure: Any, found: Sequence[Cell], colours: Mapping[str, str]) -> None:
    """One legend for all panels, below them: colours are methods, and looks mean the same everywhere."""
    from matplotlib.lines import Line2D

    columns = dict.fromkeys(cell.method.column for cell in found)
    looks = [Line2D([], [], color=colours[column], label=column) for column in columns]
    if any(cell.method.weighs for cell in found):
        looks += [Line2D([], [], color="grey", linestyle=":", label="equal weights")]
    if any(cell.printed(metric) is not None for cell in found for metric in SCORES):
        looks += [Line2D([], [], color="grey", linestyle="", marker="x", label="the paper's")]
    abreast = max(2, int(figure.get_figwidth() // 2))
    figure.legend(handles=looks, loc="outside lower center", ncols=abreast, fontsize="small", frameon=False)


def _mean(cell: Cell, metric: str) -> float | None:
    summary = cell.summary(metric)
    return None if summary is None else summary.mean


def _points(
    axis: Any,
    found: Sequence[tuple[float | None, float | None, Cell]],
    metric: str,
    look: dict[str, str],
    label: str,
) -> None:
    """Ours with error bars, and the paper's as crosses, each at its own place."""
    ran = [(x, summary) for x, _, cell in found if x is not None and (summary := cell.summary(metric))]
    if ran:
        error = [summary.standard_error or 0.0 for _, summary in ran]
        y = [summary.mean for _, summary in ran]
        axis.errorbar([x for x, _ in ran], y, error, marker="o", markersize=3, label=label, **look)
    if look["linestyle"] == "-":
        _crosses(axis, [(x, cell.printed(metric)) for _, x, cell in found], look)


def _crosses(axis: Any, places: Sequence[tuple[float | None, float | None]], look: dict[str, str]) -> None:
    """The paper's."""
    printed = [(x, y) for x, y in places if x is not None and y is not None]
    if printed:
        axis.plot(*np.transpose(printed), "x", color=look["color"])
