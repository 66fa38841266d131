"""MSE over serial and parallel cost of HMC, of parallel HMC chains and of SMC, on a Gaussian and on a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies import estimates
from experiments.studies.page import Ran, Story, table, with_error
from experiments.studies.study import Cell
from experiments.studies.targets import Target, gaussian, mixture

import isles

DRAWS = 5  # of the Gaussian's X and y; part k is on draw k mod 5
LEAPFROGS = 10
STAGES = {"gaussian": 10, "mixture": 5}  # that the adaptive tempering takes, about
TITLES = {"gaussian": "Gaussian", "mixture": "Mixture of two Gaussians"}


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """For both targets: chains of several lengths, one or many, and SMC with several N and M."""
    found, r, parts = list[Cell](), sizes["realizations"], sizes["parts"]

    def add(name: str, epochs: float, **facts: Any) -> None:
        found.append(Cell(name, facts | {"realizations": r}, parts, r * epochs, facts["method"]))

    for target in sizes["targets"]:
        for m in sizes["M"]:
            for n in sizes["N"]:
                cost = n * m * LEAPFROGS * STAGES[target]
                add(f"{target}-smc-m{m}-n{n}", cost, target=target, method="smc", M=m, N=n)
        for length in sizes["leapfrogs"]:
            add(f"{target}-hmc-l{length}", length, target=target, method="hmc", leapfrogs=length)
            steps = -(-length // LEAPFROGS)
            for b in sizes["B"]:
                if steps >= 2 * b:
                    facts = {"target": target, "method": "parallel", "B": b, "chains": steps // b}
                    add(f"{target}-parallel-b{b}-l{length}", length, **facts)
    return found


def target_of(name: str, part: int) -> Target:
    """The Gaussian of part k is draw k mod 5; there is one mixture."""
    if name == "mixture":
        return mixture()
    return gaussian(part % DRAWS, observations=32, noise=1.0, ones=True)


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """Squared errors of the posterior mean, and both costs."""
    kernel = isles.HMC(leapfrogs=LEAPFROGS)
    sampler: Any
    if facts["method"] == "smc":
        sampler = isles.SMC(kernel, particles=facts["N"], mutations=facts["M"])
    elif facts["method"] == "parallel":
        sampler = isles.MCMC(kernel, chains=facts["chains"], burn_in=facts["B"])
    else:
        steps = -(-facts["leapfrogs"] // LEAPFROGS)
        burn_in = steps // 4
        sampler = isles.MCMC(kernel, chains=1, burn_in=burn_in, draws=steps - burn_in + 1)
    found = estimates.realize(target_of(facts["target"], part), sampler, facts["realizations"], seed)
    return {name: value for name, value in found.items() if name != "mutations"}


def mse(found: Ran) -> float:
    """Of the posterior mean: ‖μ̂ − μ‖², mean over realizations."""
    return float(found.errors("equal", relative=False).mean())


def lines(ran: Sequence[Ran], target: str) -> dict[str, list[Ran]]:
    """Cells of one line of the figure, by cost."""
    found: dict[str, list[Ran]] = {}
    for each in ran:
        if each["target"] == target:
            method = each["method"]
            label = {"smc": "SMC, M = {M}", "parallel": "HMC chains, B = {B}", "hmc": "HMC, one chain"}[method]
            found.setdefault(label.format(**each.cell.facts), []).append(each)
    return found


def tell(ran: Sequence[Ran]) -> Story:
    """For each target, what every line reaches at its largest cost, and its slope."""
    claims = {
        "gaussian": "The paper's claims: one chain is the most efficient in total cost, parallel chains and SMC "
        "in parallel cost; the bias of chains with B < 16 shows, and SMC with M = 2 stagnates.",
        "mixture": "The paper's claim: only SMC converges, for M = 16.",
    }
    there = dict.fromkeys(each["target"] for each in ran)
    sections = [f"## {TITLES[target]}\n\n{claims[target]}\n\n{_table(ran, target)}" for target in there]
    facts = {
        each.cell.name: {
            "mse": mse(each), "epochs": each.mean("epochs"), "parallel_epochs": each.mean("parallel_epochs"),
            "realizations": each.realizations,
        }
        for each in ran if each
    }  # fmt: skip
    return Story(sections, partial(_draw, ran=ran), (10, 7.5), facts)


def _table(ran: Sequence[Ran], target: str) -> str:
    rows = []
    for label, chosen in lines(ran, target).items():
        there = [each for each in chosen if each]
        if not there:
            rows.append([label, f"0 of {len(chosen)}", *["not run"] * 7])
            continue
        last = max(there, key=lambda each: each.mean("epochs"))
        errors = last.errors("equal", relative=False)
        slope = ""
        if len(there) > 1:
            slope = f"{np.polyfit(*np.log([[each.mean('epochs'), mse(each)] for each in there]).T, 1)[0]:.2f}"
        share = errors.mean() / last.mean("variance")
        draws = [np.mean(piece["found"]["equal"]) for piece in last.pieces]
        by_draw = f"{min(draws):.2g} … {max(draws):.2g}"
        cost = [f"{last.mean(name):.3g}" for name in ("epochs", "parallel_epochs")]
        count = f"{len(there)} of {len(chosen)}"
        rows.append([label, count, last.realizations, with_error(errors), by_draw, f"{share:.2g}", *cost, slope])
    head = ["method", "cells run", "realizations", "MSE at most cost", "by part", "MSE/tr Σ", "serial", "parallel"]
    return table([*head, "slope"], rows)


def _draw(figure: Any, *, ran: Sequence[Ran]) -> None:
    axes = figure.subplots(2, 2, sharey="row")
    styles = {"smc": "-", "parallel": "--", "hmc": "k-"}
    for row, (target, title) in zip(axes, TITLES.items(), strict=True):
        for axis, cost in zip(row, ("epochs", "parallel_epochs"), strict=True):
            for index, (label, chosen) in enumerate(lines(ran, target).items()):
                points = sorted((each.mean(cost), mse(each)) for each in chosen if each)
                if points:
                    style = styles[chosen[0]["method"]]
                    colour = {} if "k" in style else {"color": f"C{index % 10}"}
                    axis.plot(*np.transpose(points), style, marker=".", label=label, **colour)
            axis.set(xscale="log", yscale="log", title=title, ylabel="MSE")
            axis.set_xlabel("serial cost, epochs" if cost == "epochs" else "parallel cost, epochs")
        if row[1].lines:
            row[1].legend(fontsize=5)
