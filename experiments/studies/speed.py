"""Particle-epochs a second of SMC on the MNIST CNN, on one core and on all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies import together
from experiments.studies.page import Ran, Story, table, with_error
from experiments.studies.study import Cell

PAPER = (  # its Table for different numbers of cores, nodes with 2 × Skylake of 16 cores
    ("SMC, 1 core", 11.0),
    ("HMC, 1 core", 10.4),
    ("HMC, 32 cores", 84.8),
    ("SMC, 32 cores (8.5 × 32)", 8.5 * 32),
)


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """One process a core, each with an island of its own: no communication."""
    keys = "problem", "N", "stages", "leapfrogs", "step_size"
    work = {key: sizes[key] for key in keys} | {"realizations": 1}
    return [
        Cell(f"cores-{count}", work | {"cores": count}, sizes["parts"], count * island_epochs(work), "smc")
        for count in sizes["cores"]
    ]


def island_epochs(facts: Mapping[str, Any]) -> int:
    """Of all particles: the prior draws, and the leapfrogs of all stages."""
    return int(facts["N"] * (1 + facts["stages"] * facts["leapfrogs"]))


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """The same work in every process, at the same time."""
    job = {**facts, "seed": seed, "shared": False}
    found = together.launch(job, facts["cores"], epochs=facts["cores"] * island_epochs(facts))
    total, seconds = sum(each["particle_epochs"] for each in found), max(each["seconds"] for each in found)
    return {
        "particle_epochs": total,
        "rate": total / seconds,
        "wall_seconds": seconds,
        "cpu_share": sum(each["cpu_seconds"] for each in found) / seconds / facts["cores"],
        "machine_cores": len(os.sched_getaffinity(0)),
    }


def rates(found: Ran) -> list[float]:
    """Of every piece."""
    return [piece["found"]["rate"] for piece in found.pieces]


def tell(ran: Sequence[Ran]) -> Story:
    """A table beside the paper's."""
    rows = [["paper", name, f"{rate:.4g}", f"{rate / PAPER[0][1]:.3g}", "", ""] for name, rate in PAPER]
    single = next((each for each in ran if each and each["cores"] == 1), None)
    for each in ran:
        cores = f"SMC, {each['cores']} core{'s' * (each['cores'] > 1)}"
        if not each:
            rows.append(["isles", cores, "not run", "not run", "not run", "not run"])
            continue
        if each["cores"] > each.pieces[0]["found"]["machine_cores"]:
            cores += " (oversubscribed)"
        speedup = "" if single is None else f"{np.mean(rates(each)) / np.mean(rates(single)):.3g}"
        times = f"{np.mean(rates(each)) / PAPER[0][1]:.3g}"
        rows.append(["isles", cores, with_error(rates(each), 4), times, speedup, f"{each.mean('cpu_share'):.0%}"])
    head = ["", "method", "particle-epochs a second", "times the paper's one core", "speedup", "of the CPU used"]
    facts = {each.cell.name: {"rate": rates(each), "cpu_share": each.mean("cpu_share")} for each in ran if each}
    facts |= {"paper": dict(PAPER)}
    return Story([f"## Speed\n\n{table(head, rows)}"], partial(_draw, ran=ran), (5, 2.5), facts)


def _draw(figure: Any, *, ran: Sequence[Ran]) -> None:
    axis = figure.subplots()
    bars = [(f"paper: {name}", rate, "grey") for name, rate in PAPER]
    bars += [(f"isles: {each['cores']} core(s)", float(np.mean(rates(each))), "C0") for each in ran if each]
    names, heights, colours = zip(*bars, strict=True)
    axis.barh(names, heights, color=colours)
    axis.set(xscale="log", xlabel="particle-epochs a second")
