"""Particles N against islands P at a fixed number of samples NP, on the Gaussian of high-accuracy data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies import estimates
from experiments.studies.page import Ran, Story, grid, number, table, with_error
from experiments.studies.study import Cell
from experiments.studies.targets import gaussian

import isles

DRAWS = 5  # of X and θ*; part k is on draw k mod 5
STAGES = 16  # that the adaptive tempering takes here, about
ENOUGH = 0.5  # of the single sampler's accuracy: what the paper calls negligible


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """N against P for several M, and large P."""
    found = []
    for what, m, r, parts in (
        *(("trade", m, sizes["realizations"], sizes["parts"]) for m in sizes["M"]),
        ("large", sizes["large_M"], 1, sizes["large_parts"]),
    ):
        total = sizes["samples"] if what == "trade" else sizes["large_samples"]
        for p in sizes["P"] if what == "trade" else sizes["large_P"]:
            n = total // p
            facts = {"what": what, "N": n, "P": p, "M": m, "realizations": r}
            kind = "few" if n < 16 else "some" if n < 2048 else "many"
            found.append(Cell(f"{what}-n{n}-m{m}", facts, parts, r * total * m * STAGES, kind))
    return found


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """Squared errors with evidence weights and with equal ones."""
    sampler = isles.SMC(isles.PCN(), particles=facts["N"], mutations=facts["M"])
    found = estimates.realize(gaussian(part % DRAWS), sampler, facts["realizations"], seed, islands=facts["P"])
    return {name: value for name, value in found.items() if name != "mutations"}


def mse(found: Ran, way: str = "evidence") -> float:
    """Relative MSE over all draws and realizations."""
    return float(found.errors(way).mean())


def ratio(single: Ran, many: Ran, way: str) -> float | None:
    """MSE of one sampler over that of P islands, on the draws that both have."""
    parts = {piece["part"] for piece in single.pieces} & {piece["part"] for piece in many.pieces}
    if not parts:
        return None
    shared = lambda ran: [piece["found"] for piece in ran.pieces if piece["part"] in parts]
    error = lambda ran: np.mean([np.mean(found[way]) / found["mean_square"] for found in shared(ran)])
    return float(error(single) / error(many))


def tell(ran: Sequence[Ran]) -> Story:
    """Two tables of NP = constant, and the one of large P."""
    trade = [each for each in ran if each["what"] == "trade"]
    large = sorted((each for each in ran if each["what"] == "large"), key=lambda each: each["P"])
    samples = trade[0]["N"] * trade[0]["P"]
    sections = [
        f"## NP = {samples}\n\nMSE of the posterior mean relative to ‖μ‖², islands weighted by evidence; a dot "
        f"has not been run. The paper's claims: little is gained beyond M = 16, and from N = 32 on it does not "
        f"matter how NP is shared out.\n\n" + grid(trade, "M", "N", mse),
        "The same with equal island weights:\n\n" + grid(trade, "M", "N", partial(mse, way="equal")),
        "The spread of log Z over islands, as a variance. Evidence weights pay where it is below 1:\n\n"
        + grid(trade, "M", "N", lambda each: _spread(each)),
        f"## NP = {large[0]['N'] * large[0]['P']}, M = {large[0]['M']}\n\n*ratio* is the MSE of one sampler with "
        f"particles over that of P islands, on the same draws of X and θ*. The paper calls a loss negligible as "
        f"long as it is above {ENOUGH}, which it finds down to N = 16. Errors have long tails: *median* is that "
        f"of the realizations with evidence weights.\n\n" + _large(large),
    ]
    facts = {
        "mse": {
            each.cell.name: {
                "evidence": mse(each),
                "equal": mse(each, "equal"),
                "realizations": each.realizations,
                "median": float(np.median(each.errors("evidence"))),
                "log_evidence_variance": _spread(each),
            }
            for each in ran
            if each
        },
        "ratio": {each.cell.name: ratio(large[0], each, "evidence") for each in large if each},
    }
    return Story(sections, partial(_draw, trade=trade, large=large), (9, 3.6), facts)


def _spread(each: Ran) -> float:
    found = [p["found"]["log_evidence_variance"] for p in each.pieces]
    return float(np.mean([value for value in found if value is not None])) if found[0] is not None else np.nan


def _large(large: Sequence[Ran]) -> str:
    rows = []
    for each in large:
        if not each:
            rows.append([each["P"], each["N"], 0, *["not run"] * 6])
            continue
        ratios = [ratio(large[0], each, way) for way in ("evidence", "equal")]
        shown = ["" if value is None else f"{value:.2f}" for value in ratios]
        errors = [with_error(each.errors(way)) for way in ("evidence", "equal")]
        median = number(float(np.median(each.errors("evidence"))))
        rows.append([each["P"], each["N"], each.realizations, errors[0], median, errors[1], *shown])
        rows[-1].append(number(_spread(each), 2))
    head = ["P", "N", "realizations", "relative MSE", "median", "equal weights", "ratio", "ratio, equal"]
    return table([*head, "Var log Z"], rows)


def _draw(figure: Any, *, trade: Sequence[Ran], large: Sequence[Ran]) -> None:
    left, right = figure.subplots(1, 2)
    for index, m in enumerate(sorted({each["M"] for each in trade if each})):
        chosen = sorted((each for each in trade if each and each["M"] == m), key=lambda each: each["N"])
        for way, style in (("evidence", "-"), ("equal", ":")):
            points = [(each["N"], mse(each, way)) for each in chosen]
            label = f"M = {m}" if way == "evidence" else None
            left.plot(*np.transpose(points), style, color=f"C{index}", marker=".", label=label)
    left.set(xscale="log", yscale="log", xlabel="N (dotted: equal weights)", ylabel="relative MSE")
    for way, style in (("evidence", "-"), ("equal", ":")):
        points = [(each["P"], value) for each in large if each and (value := ratio(large[0], each, way))]
        if points:
            right.plot(*np.transpose(points), f"k{style}", marker=".", label=f"{way} weights")
    right.axhline(ENOUGH, color="grey", linewidth=0.5)
    right.set(xscale="log", xlabel="P", ylabel="MSE of one sampler / MSE of P islands")
    for axis in (left, right):
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize="x-small")
