"""SMC's free parameters N and M on the Gaussian of high-accuracy data; adaptive M; SMC against pCN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies import estimates
from experiments.studies.fits import PowerLaw, power_law
from experiments.studies.page import Ran, Story, grid, number, table, with_error
from experiments.studies.study import Cell
from experiments.studies.targets import gaussian

import isles

DRAWS = 5  # of X and θ*; part k is on draw k mod 5
STAGES = 16  # that the adaptive tempering takes here, about
LINEAR = (12, 28_672)  # mutations between which the paper finds a straight line
ENOUGH = 96  # particles, from which on it does
PRINTED_FIT = {"exponent": 0.3789, "mse": 0.006939, "mape": 9.30}
PRINTED_TABLE = {"smc": {"high": 0.0563, "medium": 0.1237, "low": 0.2160}}
PRINTED_TABLE["pcn"] = {"high": 0.0676, "medium": 0.3663, "low": 1.7411}
FALLING = 10  # mutations a stage while correlations fall, about
EPOCHS = 2e7  # that a piece should take, if it need not take more


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """The grid, its long row, adaptive M, and the table of costs."""
    pairs = [(n, m) for n in sizes["N"] for m in sizes["M"] if n * m <= sizes["most"]]
    pairs += [(sizes["row_N"], m) for m in sizes["row_M"]] + [(sizes["eta_N"], m) for m in sizes["eta_M"]]
    found = [_smc(n, m, sizes["realizations"], sizes["parts"]) for n, m in dict.fromkeys(pairs)]
    wanted = [(sizes["eta_N"], eta) for eta in sizes["eta"]] + [(n, 0.05) for n in sizes["scaling_N"]]
    for n, eta in dict.fromkeys(wanted):
        total = n * _expected_mutations(eta, sizes["max_mutations"])
        r = int(np.clip(EPOCHS // total, 1, sizes["realizations"]))
        facts = {"method": "adaptive", "N": n, "eta": eta, "max": sizes["max_mutations"], "realizations": r}
        found.append(Cell(f"adaptive-n{n}-eta{eta:g}", facts, sizes["parts"], r * total, "adaptive"))
    for fall in sizes["falls"]:
        facts = {"method": "falling", "N": sizes["eta_N"], "fall": fall, "max": sizes["max_mutations"]}
        facts |= {"realizations": sizes["realizations"]}
        cost = sizes["realizations"] * sizes["eta_N"] * STAGES * FALLING
        found.append(Cell(f"falling-n{sizes['eta_N']}-fall{fall:g}", facts, sizes["parts"], cost, "adaptive"))
    for regime, length in sizes["regimes"].items():
        m = max(round(length / (2 * STAGES)), 1)
        found.append(_smc(sizes["regime_N"], m, sizes["realizations"], sizes["parts"], regime))
        facts = {"method": "pcn", "regime": regime, "T": length, "realizations": sizes["chains"]}
        found.append(Cell(f"pcn-{regime}", facts, sizes["parts"], 100 * length * sizes["chains"], "chain"))
    return found


def _expected_mutations(eta: float, cap: int) -> float:
    """Of all stages, as seen in a pilot run: M_j is about 2 · 2.15^j for η = 0.5, and goes like log 1/η."""
    grown = 2 * 2.15 ** np.arange(STAGES + 1) * np.log(1 / eta) / np.log(2)
    return float(np.clip(grown, 1, cap).sum())


def _smc(n: int, m: int, most: int, parts: int, regime: str | None = None) -> Cell:
    r = int(np.clip(EPOCHS // (n * m * STAGES), 2, most))
    facts = {"method": "smc", "N": n, "M": m, "realizations": r} | ({"regime": regime} if regime else {})
    name = f"smc-{regime}" if regime else f"smc-n{n}-m{m}"
    return Cell(name, facts, parts, r * n * m * STAGES, "wide" if n > 2048 else "narrow" if n < 16 else "smc")


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """Squared errors of the posterior mean."""
    target = gaussian(part % DRAWS)
    if facts["method"] == "pcn":  # one chain of 100 T steps, all but the first T of them used, ten draws in each T
        thin = max(facts["T"] // 10, 1)
        draws = 99 * facts["T"] // thin
        sampler = isles.MCMC(isles.PCN(), chains=1, burn_in=facts["T"], draws=draws, thin=thin)
    else:
        sampler = isles.SMC(isles.PCN(), particles=facts["N"], mutations=_mutations(facts))
    return estimates.realize(target, sampler, facts["realizations"], seed)


def _mutations(facts: Mapping[str, Any]) -> int | isles.Decorrelate:
    if facts["method"] == "smc":
        return int(facts["M"])
    if facts["method"] == "falling":
        return isles.WhileFalling(facts["fall"], max=facts["max"])
    return isles.Decorrelate(facts["eta"], max=facts["max"])


def mse(found: Ran) -> float:
    """Relative MSE over all draws and realizations."""
    return float(found.errors("equal").mean())


def fit(ran: Sequence[Ran]) -> PowerLaw | None:
    """Over the cells that the paper's line is about."""
    low, high = LINEAR
    chosen = [each for each in ran if each and each["N"] >= ENOUGH and low <= each["M"] <= high]
    if len({each["M"] for each in chosen}) < 2:
        return None
    column = lambda name: [each[name] for each in chosen]
    return power_law(column("N"), column("M"), [mse(each) for each in chosen])


def tell(ran: Sequence[Ran]) -> Story:
    """The grid and its fit, the regimes of M, adaptive M, and the table of costs."""
    squares = [each for each in ran if each["method"] == "smc" and "regime" not in each.cell.facts]
    adaptive = [each for each in ran if each["method"] == "adaptive"]
    falling = [each for each in ran if each["method"] == "falling"]
    regimes = [each for each in ran if "regime" in each.cell.facts]
    law = fit(squares)
    sections = [
        "## MSE over N and M\n\nMSE of the posterior mean relative to ‖μ‖², over five draws of X and θ*. A dot "
        "has not been run.\n\n" + grid(squares, "N", "M", mse),
        "## The line\n\n" + _fit_text(law),
        "## Regimes of M\n\n" + _regimes(squares),
        "## Adaptive M\n\n" + _adaptive(adaptive, falling, squares),
        "## SMC and pCN at equal cost\n\n" + _costs(regimes),
    ]
    facts = {
        "mse": {each.cell.name: [mse(each), each.realizations] for each in ran if each},
        "fit": law._asdict() if law else None,
        "mutations": {each.cell.name: _growth(each) for each in [*adaptive, *falling] if each},
    }
    return Story(sections, partial(_draw, squares=squares, adaptive=adaptive, falling=falling), (9, 7), facts)


def _fit_text(law: PowerLaw | None) -> str:
    head = ["", "a", "MSE of the fit", "MAPE, %", "cells"]
    ours = [*map(number, (law.exponent, law.mse, law.mape)), law.cells] if law else ["not run"] * 4
    rows = [["ours", *ours], ["paper", *PRINTED_FIT.values(), ""]]
    constant = f" Our C is {law.constant:.2f}." if law else ""
    return (
        f"log MSE = C − log N − a log M, fitted to cells with N ≥ {ENOUGH} and {LINEAR[0]} ≤ M ≤ {LINEAR[1]}."
        f"{constant} The paper prints C = 829.56, which cannot be on the scale of logarithms.\n\n"
        + table(head, rows)
    )


def _regimes(squares: Sequence[Ran]) -> str:
    """Slopes of log MSE over log M in three ranges, for every N that has them."""
    low, high = LINEAR
    ranges = {f"M < {low}": (1, low - 1), f"{low} ≤ M ≤ {high}": (low, high), f"M ≥ {high // 2}": (high // 2, 1e9)}
    rows = []
    for n in sorted({each["N"] for each in squares if each and each["N"] >= ENOUGH}):
        slopes = []
        for first, last in ranges.values():
            chosen = [each for each in squares if each and each["N"] == n and first <= each["M"] <= last]
            points = np.log([[each["M"], mse(each)] for each in chosen])
            slopes.append(f"{np.polyfit(*points.T, 1)[0]:.2f}" if len(chosen) > 1 else "")
        rows.append([n, *slopes])
    return (
        "Slope of log MSE over log M. The paper's three regimes for N ≥ 96: a fast and curved fall below M = 12, "
        "a line of slope −0.38 up to M = 28,672, and a plateau from there.\n\n" + table(["N", *ranges], rows)
    )


def _growth(each: Ran) -> list[float]:
    """M_j over stages j, mean over pieces that have so many."""
    found = [piece["found"]["mutations"] for piece in each.pieces]
    return [float(np.mean([m[j] for m in found if j < len(m)])) for j in range(max(map(len, found)))]


def _adaptive(adaptive: Sequence[Ran], falling: Sequence[Ran], squares: Sequence[Ran]) -> str:
    rows = []
    for each in [*adaptive, *falling]:
        rule = f"η = {each['eta']}" if each["method"] == "adaptive" else f"while falling by {each['fall']:g}"
        if not each:
            rows.append([each["N"], rule, 0, *["not run"] * 4])
            continue
        grown = _growth(each)
        free = [m for m in grown if m < 0.5 * each["max"]]  # the others were cut at the largest M
        rate = f"{np.exp(np.polyfit(np.arange(len(free)), np.log(free), 1)[0]):.2f}" if len(free) > 1 else ""
        last = f"{grown[0]:.0f} … {max(grown):.0f}"
        values = with_error(each.errors("equal")), f"{each.mean('parallel_epochs'):.3g}", last, rate
        rows.append([each["N"], rule, each.realizations, *values])
    for each in squares:
        if each and any(each["N"] == other["N"] for other in adaptive):
            cost = f"{each.mean('parallel_epochs'):.3g}"
            values = each.realizations, with_error(each.errors("equal")), cost
            rows.append([each["N"], f"M = {each['M']}", *values, "", ""])
    head = ["N", "rule", "realizations", "relative MSE", "epochs a particle", "M_j", "growth a stage"]
    return (
        "Mutations until the mean correlation with the stage's start is at most η, or until there are "
        f"{adaptive[0]['max']} of them, and fixed M at the same N. *growth* is that of M_j below half of that. "
        "The paper's claims: M_j grows geometrically with j, more regularly for large N; at equal cost adaptive "
        "and fixed M do alike; below η = 0.05 little is gained. *while falling* is PyMC's rule: the stage ends "
        "when fewer than 90 % of the coordinates' correlations fell by more than the given amount in the last "
        "mutation.\n\n" + table(head, rows)
    )


def _costs(regimes: Sequence[Ran]) -> str:
    rows = []
    for each in regimes:
        printed = PRINTED_TABLE[each["method"]].get(each["regime"], "")
        ours = with_error(each.errors("equal")) if each else "not run"
        spread = [f"{np.mean(p['found']['equal']) / p['found']['mean_square']:.3g}" for p in each.pieces[:DRAWS]]
        shares = [np.mean(p["found"]["equal"]) / p["found"]["variance"] for p in each.pieces]
        share = f"{np.mean(shares):.3g}" if each else ""
        cost = f"{each.mean('epochs'):.3g}" if each else ""
        name = f"SMC, N = {each['N']}" if each["method"] == "smc" else "pCN, one chain"
        rows.append([name, each["regime"], each.realizations, ours, printed, share, ", ".join(spread), cost])
    head = ["method", "cost", "realizations", "relative MSE", "paper", "MSE/tr Σ", "by draw", "epochs"]
    return (
        "T is 72,160 (high, the paper's autocorrelation time of pCN), a tenth and a hundredth of it. SMC takes "
        f"M = T/2J mutations with J = {STAGES}, pCN one chain of 100 T steps, of which the first T are burn-in. X "
        "and θ* are one random draw in the paper and five here, so digits cannot agree; the order can: alike at "
        "high cost, SMC better at low.\n\n" + table(head, rows)
    )


def _draw(figure: Any, *, squares: Sequence[Ran], adaptive: Sequence[Ran], falling: Sequence[Ran]) -> None:
    over_n, over_m, stages, costs = figure.subplots(2, 2).ravel()
    for axis, x, line in ((over_n, "N", "M"), (over_m, "M", "N")):
        for index, value in enumerate(sorted({each[line] for each in squares if each})):
            chosen = sorted((each[x], mse(each)) for each in squares if each and each[line] == value)
            colour = {"color": f"C{index % 10}", "linestyle": "-" if index < 10 else "--"}
            axis.plot(*np.transpose(chosen), marker=".", label=f"{line} = {value}", **colour)
        axis.set(xscale="log", yscale="log", xlabel=x, ylabel="relative MSE")
        if axis.lines:
            axis.legend(fontsize=5, ncols=2)
    for each in adaptive:
        if each and each["eta"] == 0.05:
            stages.plot(range(1, len(_growth(each)) + 1), _growth(each), marker=".", label=f"N = {each['N']}")
    stages.set(yscale="log", xlabel="stage j", ylabel="M_j, η = 0.05")
    sizes = [each["N"] for each in adaptive if each["eta"] != 0.05]
    fixed = [each for each in squares if each and each["N"] in sizes]
    lines = {"fixed M": fixed, "adaptive M": [e for e in adaptive if e and e["N"] in sizes]}
    lines["while falling"] = [each for each in falling if each]
    for label, chosen in lines.items():
        points = sorted((each.mean("parallel_epochs"), mse(each)) for each in chosen)
        if points:
            costs.plot(*np.transpose(points), marker="o", label=label)
    costs.set(xscale="log", yscale="log", xlabel="epochs a particle", ylabel="relative MSE")
    for axis in (stages, costs):
        if axis.lines:
            axis.legend(fontsize="x-small")
