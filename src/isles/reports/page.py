"""The report: facts and pictures of a posterior, put in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isles import files, metrics, plot
from isles.predictions import Classes
from isles.reports.folder import block_table, describe
from isles.reports.html import Figure, Page, Table, facts_table, show
from isles.store.folder import RunFolder
from isles.store.status import read_status
from isles.summary import evidence_caveat, mean_of_last

if TYPE_CHECKING:
    from isles.posterior import Posterior

IMAGES = 10  # shown of the most certain inputs, and of the least certain


def report(
    posterior: Posterior,
    path: str | os.PathLike[str] = "report.html",
    *,
    test: tuple[Any, Any] | None = None,
    ood: Any = None,
    title: str = "isles run",
    facts: Mapping[str, Any] | None = None,
    others: Mapping[str, Posterior] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Path:
    """Write one HTML file about a posterior, which needs no network to be read.

    Args:
        posterior: what to report on.
        path: the file.
        test: inputs and labels (or targets) that were not used for sampling: adds scores, calibration, and the
            most and least certain inputs.
        ood: inputs unlike the data, to see whether the posterior is uncertain about them.
        title: of the page.
        facts: further lines about what was run.
        others: other posteriors by name, scored on the same test inputs beside this one.
        folder: of the run: adds its definition, versions, machine, and the cost of each block.
    """
    if not hasattr(posterior, "diagnostics"):
        raise TypeError(
            f"isles.report takes a posterior, not {posterior!r}; read the one of a run first: isles.load(folder)"
        )
    if test is not None and not (isinstance(test, (tuple, list)) and len(test) == 2):
        raise TypeError(f"test must be a pair of inputs and labels, (x, y), not {type(test).__name__}")
    path = Path(path)
    files.check_folder(path)
    page = build(posterior, test=test, ood=ood, title=title, facts=facts, others=others, folder=folder)
    with files.whole(path) as file:
        file.write(page.render().encode())
    return path


def build(
    posterior: Posterior,
    *,
    test: tuple[Any, Any] | None,
    ood: Any,
    title: str,
    facts: Mapping[str, Any] | None,
    others: Mapping[str, Posterior] | None,
    folder: str | os.PathLike[str] | None,
) -> Page:
    """The page of `report`."""
    page = Page(title)
    page.verdict(*verdict(posterior))
    prediction = outside = None
    if test is not None:
        x, y = test
        prediction = posterior.predict(x)
        outside = None if ood is None else posterior.predict(ood)
        page.add("Predictions", _scores(posterior, x, y, prediction, ood, outside, others or {}))
        page.add("Predictions", *_prediction_figures(x, y, prediction, outside))
    page.add("Evidence and islands", _evidence(posterior))
    if posterior.island_log_evidence is not None and len(posterior.island_log_evidence) > 1:
        page.add(
            "Evidence and islands",
            draw("island weights", plot.island_weights, posterior, note=_weights_note(posterior)),
            draw("log evidence of each island", plot.island_evidence, posterior, note=_evidence_note(posterior)),
        )
    page.add("How the run went", *trace_figures(posterior))
    page.add("Diagnostics", facts_table(posterior.diagnostics().rows))
    rows = _run(posterior, facts)
    if folder is not None:
        rows |= describe(RunFolder(folder).definition().facts)
        page.add("Blocks", block_table(read_status(folder).blocks))
    page.add("What was run", facts_table(rows))
    return page


def verdict(posterior: Posterior) -> tuple[str, str, list[str]]:
    """A word, a sentence and the warnings."""
    if posterior.kind != "posterior":
        return "baseline", f"These are draws of a {posterior.kind}, not of a posterior.", list(posterior.warnings)
    if posterior.warnings:
        count = len(posterior.warnings)
        plural = "warning deserves" if count == 1 else "warnings deserve"
        return "look", f"{count} {plural} a look before these numbers are used.", list(posterior.warnings)
    return "sound", "No diagnostic objects to this run.", []


def draw(title: str, function: Callable[..., Any], *arguments: Any, note: str, **options: Any) -> Figure:
    """One picture with the sentence that says what is in it."""
    return Figure.drawn(title, note, lambda ax: function(*arguments, ax=ax, **options))


def _scores(
    posterior: Posterior, x: Any, y: Any, prediction: Any, ood: Any, outside: Any, others: Mapping[str, Posterior]
) -> Table:
    columns = {"this run": metrics.evaluate(prediction, y, outside)}
    for name, other in others.items():
        theirs = None if ood is None else other.predict(ood)
        columns[name] = metrics.evaluate(other.predict(x), y, theirs)
    rows = [[name, *(show(scores[name]) for scores in columns.values())] for name in columns["this run"]]
    return Table(["score", *columns], rows)


def _prediction_figures(x: Any, y: Any, prediction: Any, outside: Any) -> list[Figure]:
    if not isinstance(prediction, Classes):
        low, high = prediction.interval(0.9)
        covered = metrics.coverage(low, high, y)
        note = f"Means, 90 % intervals and targets; the intervals hold {covered:.1%} of the targets."
        return [draw("intervals", plot.intervals, prediction, y, note=note)]
    gap = metrics.ece(prediction, y)
    figures = [
        draw("reliability", plot.reliability, prediction, y,
             note=f"Accuracy against confidence. The mean gap to the diagonal (ECE) is {gap:.3f}."),
        draw("entropies", plot.entropies, prediction, outside, note=_entropy_note(prediction, outside)),
        draw("selective accuracy", plot.selective, prediction, y,
             note="Accuracy if only the most certain inputs are answered."),
    ]  # fmt: skip
    if plot.as_images(x) is not None and len(x) >= IMAGES:
        figures += [_image_figure(x, y, prediction, most=most) for most in (True, False)]
    return figures


def _image_figure(x: Any, y: Any, prediction: Classes, *, most: bool) -> Figure:
    word = "most" if most else "least"
    chosen = np.argsort(prediction.entropy)[:: 1 if most else -1][:IMAGES]
    wrong = int((prediction.labels[chosen] != np.asarray(y)[chosen]).sum())
    note = f"The {IMAGES} {word} certain test inputs, with the predicted class; {wrong} of them are wrong."
    picture = lambda ax: plot.images(x, prediction, y, ax, most=most, count=IMAGES)
    return Figure.drawn(f"{word} certain inputs", note, picture, wide=True)


def _entropy_note(prediction: Classes, outside: Classes | None) -> str:
    note = f"Epistemic entropy, mean {prediction.epistemic.mean():.3f} nats on test inputs"
    return note + ("." if outside is None else f" and {outside.epistemic.mean():.3f} out of distribution.")


def _evidence(posterior: Posterior) -> Table:
    rows = [["log evidence", show(posterior.log_evidence)]]
    if posterior.log_evidence is not None:
        rows += [
            ["standard error", show(posterior.log_evidence_standard_error)],
            *([["standard error is", caveat]] if (caveat := evidence_caveat(posterior)) else []),
            ["the estimate is", show(posterior.evidence_kind)],
        ]
    rows += [["island ESS", show(posterior.island_ess)], ["islands weighted by", posterior.weighting]]
    return Table(["", "value"], rows)


def _weights_note(posterior: Posterior) -> str:
    ess = posterior.island_ess
    return f"Weights of {len(posterior.island_weights)} islands; {show(ess)} of them carry the weight."


def _evidence_note(posterior: Posterior) -> str:
    values = posterior.island_log_evidence
    assert values is not None
    return f"Islands range from {values.min():.2f} to {values.max():.2f}, combined {posterior.log_evidence:.2f}."


def trace_figures(traced: plot.Traced, *, finished: bool = True) -> list[Figure]:
    """How the islands went, stage by stage."""
    trace = traced.trace
    if not trace:
        return []
    stages = len(next(iter(trace.values())))
    figures: list[Figure] = []
    when = "at the end" if finished else "so far"
    if "tempering" in trace:
        lowest = show(float(np.nanmin(np.fmax.reduce(trace["tempering"]))))
        path = f"From the prior to the posterior in {stages} stages."
        figures += [
            draw(
                "tempering",
                plot.tempering,
                traced,
                note=path if finished else f"The slowest island is at {lowest}.",
            ),
            draw("effective sample size", plot.ess, traced, note="Before each stage resamples, by island."),
        ]
    figures += [
        draw("acceptance", plot.acceptance, traced, note=f"Mean acceptance, {_last(trace, 'acceptance')} {when}."),
        draw("step size", plot.step_size, traced, note=f"Step size, {_last(trace, 'step_size')} {when}."),
    ]
    if np.isfinite(trace["log_likelihood"]).any():
        note = f"Mean log-likelihood of the particles, {_last(trace, 'log_likelihood')} {when}."
        figures.append(draw("log-likelihood", plot.log_likelihood, traced, note=note))
    return figures


def _last(trace: Mapping[str, Any], name: str) -> str:
    """The mean over islands, each at its own last stage, as in the table of diagnostics."""
    value = mean_of_last(np.asarray(trace[name]))
    return show(value) if np.isfinite(value) else "unknown"


def _run(posterior: Posterior, facts: Mapping[str, Any] | None) -> dict[str, Any]:
    rows = {
        "sampler": posterior.sampler,
        "parameters": posterior.layout.size,
        "islands": len(posterior.log_weights),
        "seed": posterior.seed,
        "epochs, parallel (what one particle waits for)": posterior.epochs.parallel,
        "epochs, total": posterior.epochs.total,
    }
    if posterior.missing:
        rows["islands missing"] = ", ".join(map(str, posterior.missing))
    return rows | dict(facts or {})
