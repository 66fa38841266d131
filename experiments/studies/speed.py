"""Particle-epochs a second of SMC and of one chain of HMC on the MNIST CNN, on one core and on all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies import together
from experiments.studies.page import Ran, Story, table, with_error
from experiments.studies.study import Cell

# its Table for different numbers of cores, nodes with 2 × Skylake of 16: particle-epochs a second, cores, and the
# speed-up that it prints, which is of seconds
PAPER = (
    ("SMC, 1 core", 11.0, 1, 1.0),
    ("SMC, 32 cores (8.5 × 32)", 8.5 * 32, 32, 32.0),
    ("HMC, one chain, 1 core", 10.4, 1, 1.0),
    ("HMC, one chain, 32 cores", 84.8, 32, 7.8),
)


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """One process a core, each with an island of its own: no communication. And one chain, with a thread a core.

    A chain is an island of one particle: it neither weighs nor resamples, and stages are parts of it.
    """
    keys = "problem", "N", "stages", "leapfrogs", "step_size"
    work = {key: sizes[key] for key in keys} | {"realizations": 1}
    islands = [
        Cell(f"cores-{count}", work | {"cores": count}, sizes["parts"], count * island_epochs(work), "smc")
        for count in sizes["cores"]
    ]
    chain = work | {"N": 1, "stages": sizes["chain_stages"]}
    chains = [
        Cell(f"chain-{count}", chain | {"cores": 1, "threads": count}, sizes["parts"], island_epochs(chain), "hmc")
        for count in sizes["cores"]
    ]
    return islands + chains


def island_epochs(facts: Mapping[str, Any]) -> int:
    """Of all particles: the prior draws, and the leapfrogs of all stages."""
    return int(facts["N"] * (1 + facts["stages"] * facts["leapfrogs"]))


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """The same work in every process, at the same time."""
    job = {**facts, "seed": seed, "shared": False}
    threads = facts.get("threads", 1)
    found = together.launch(job, facts["cores"], epochs=facts["cores"] * island_epochs(facts), threads=threads)
    total, seconds = sum(each["particle_epochs"] for each in found), max(each["seconds"] for each in found)
    return {
        "particle_epochs": total,
        "rate": total / seconds,
        "wall_seconds": seconds,
        "cpu_share": sum(each["cpu_seconds"] for each in found) / seconds / (facts["cores"] * threads),
        "machine_cores": len(os.sched_getaffinity(0)),
    }


def rates(found: Ran) -> list[float]:
    """Of every piece."""
    return [piece["found"]["rate"] for piece in found.pieces]


def cores(found: Ran) -> int:
    """That it may use."""
    return int(found["cores"] * found.cell.facts.get("threads", 1))


def named(found: Ran) -> str:
    """What a row is called."""
    what = "HMC, one chain" if found.cell.kind == "hmc" else "SMC"
    return f"{what}, {cores(found)} core{'s' * (cores(found) > 1)}"


def tell(ran: Sequence[Ran]) -> Story:
    """A table beside the paper's."""
    rows = []
    for name, rate, used, speedup in PAPER:
        rows.append(["paper", name, f"{rate:.4g}", f"{rate / used:.3g}", f"{speedup:g}", ""])
    for each in ran:
        name = named(each)
        if not each:
            rows.append(["isles", name, *["not run"] * 4])
            continue
        if cores(each) > each.pieces[0]["found"]["machine_cores"]:
            name += " (oversubscribed)"
        kind = "threads" in each.cell.facts
        single = next(
            (one for one in ran if one and cores(one) == 1 and ("threads" in one.cell.facts) == kind), None
        )
        rate = float(np.mean(rates(each)))
        gain = "" if single is None else f"{rate / np.mean(rates(single)):.3g}"
        share = f"{each.mean('cpu_share'):.0%}"
        rows.append(["isles", name, with_error(rates(each), 4), f"{rate / cores(each):.3g}", gain, share])
    head = ["", "method", "particle-epochs a second", "a core", "over one core's", "of the CPU used"]
    facts = {each.cell.name: {"rate": rates(each), "cpu_share": each.mean("cpu_share")} for each in ran if each}
    facts |= {"paper": {name: rate for name, rate, *_ in PAPER}}
    return Story([f"## Speed\n\n{table(head, rows)}"], partial(_draw, ran=ran), (5, 3), facts)


def _draw(figure: Any, *, ran: Sequence[Ran]) -> None:
    axis = figure.subplots()
    bars = [(f"paper: {name}", rate, "grey") for name, rate, *_ in PAPER]
    bars += [(f"isles: {named(each)}", float(np.mean(rates(each))), "C0") for each in ran if each]
    names, heights, colours = zip(*bars, strict=True)
    axis.barh(names, heights, color=colours)
    axis.set(xscale="log", xlabel="particle-epochs a second")
