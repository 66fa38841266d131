"""The bias of the evidence over the particles of an island: none where frozen, of order 1/N where adapted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies.page import Ran, Story, table
from experiments.studies.study import Cell
from experiments.studies.theory import target

import isles

STAGES = 5  # that the adaptive tempering takes here, about
PILOT = 512  # particles of the run that fixes what is frozen
LABELS = {
    "pcn": "pCN, adaptive",
    "pcn-frozen": "pCN, frozen",
    "hmc": "HMC, adaptive",
    "hmc-frozen": "HMC, frozen",
    "hmc-frozen-waste-free": "HMC, frozen, waste-free",
    "hmc-waste-free": "HMC, adaptive, waste-free",
    "hmc-population": "HMC, adaptive, mass from the particles",
    "hmc-decorrelate": "HMC, number of mutations by `Decorrelate`",
    "hmc-while-falling": "HMC, number of mutations by `WhileFalling`",
    "smmala": "SmMALA, adaptive",
    "smmala-frozen": "SmMALA, frozen",
    "stretch": "stretch moves",
    "de": "differential evolution",
}


def sampler(name: str, particles: int) -> isles.SMC:
    """What one island does, before anything is frozen."""
    method, *rest = name.split("-", 1)
    variant = "".join(rest).removeprefix("frozen").removeprefix("-")
    kernel: Any = {
        "pcn": isles.PCN(),
        "hmc": isles.HMC(leapfrogs=5, mass="population" if variant == "population" else "identity"),
        "smmala": isles.SmMALA(),
        "stretch": isles.Stretch(),
        "de": isles.DE(),
    }[method]
    fixed = {"hmc": 3, "smmala": 5}.get(method, 20)
    rules = {"decorrelate": isles.Decorrelate(max=20), "while-falling": isles.WhileFalling(max=20)}
    waste_free = variant == "waste-free"
    return isles.SMC(kernel, particles=particles, mutations=rules.get(variant, fixed), waste_free=waste_free)


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """Every sampler with every N; islands so that all cells have as many particles."""
    found = []
    for name in sizes["samplers"]:
        kind = "gradient" if name.startswith("hmc") else "metric" if name.startswith("smmala") else "random-walk"
        for n in sizes["N"]:
            islands = sizes["particles"] // n
            facts = {"method": name, "N": n, "realizations": islands}
            cost = islands * n * STAGES * {"gradient": 15, "metric": 5, "random-walk": 20}[kind]
            found.append(Cell(f"{name}-n{n}", facts, sizes["parts"], cost, kind))
    return found


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """Mean and standard deviation of Ẑ/Z − 1 over islands."""
    case, name, islands, spent = target(), facts["method"], facts["realizations"], 0
    chosen = sampler(name, facts["N"])
    if is_frozen(name):
        pilot = isles.sample(case.problem, dataclasses.replace(chosen, particles=PILOT), seed=1, progress=False)
        chosen, spent = chosen.frozen(pilot), pilot.epochs.total
    posterior = isles.sample(case.problem, chosen, islands=islands, seed=seed, keep="none", progress=False)
    evidence = posterior.island_log_evidence
    assert evidence is not None
    ratios = np.exp(evidence - case.log_evidence) - 1
    return {
        "bias": ratios.mean(), "spread": ratios.std(ddof=1),
        "particle_epochs": posterior.epochs.total + spent,
    }  # fmt: skip


def is_frozen(name: str) -> bool:
    """Whether a pilot run fixes all that could adapt."""
    return "frozen" in name


def bias(found: Ran) -> tuple[float, float]:
    """Mean of Ẑ/Z − 1 over all islands of all pieces, and its standard error."""
    spread = np.sqrt(np.mean([piece["found"]["spread"] ** 2 for piece in found.pieces]))
    return found.mean("bias"), float(spread / np.sqrt(found.realizations))


def verdict(biases: Mapping[int, tuple[float, float]], *, frozen: bool) -> str:
    """What the biases at several N say, within four standard errors."""
    if frozen:
        return "unbiased" if all(abs(value) < 4 * error for value, error in biases.values()) else "**biased**"
    (first, (value, error)), (last, (late, late_error)) = min(biases.items()), max(biases.items())
    share = first / last  # what a bias of order 1/N leaves of the first
    if abs(value) < 4 * error and abs(late) < 4 * late_error:
        return "too small to see"
    allowed = abs(value) * share + 4 * np.hypot(share * error, late_error)
    return "falls at least like 1/N" if abs(late) <= allowed else "**falls slower than 1/N**"


def tell(ran: Sequence[Ran]) -> Story:
    """Biases over N, and whether they are what theory says."""
    sizes = sorted({each["N"] for each in ran})
    names = list(dict.fromkeys(each["method"] for each in ran))
    facts: dict[str, Any] = {}
    rows = []
    for name in names:
        found = {each["N"]: bias(each) for each in ran if each["method"] == name and each}
        shown = ["not run" if n not in found else "{:+.4f} ± {:.4f}".format(*found[n]) for n in sizes]
        said = verdict(found, frozen=is_frozen(name)) if len(found) == len(sizes) else ""
        rows.append([LABELS[name], *shown, said])
        facts[name] = {"bias": {n: value for n, (value, _) in found.items()}, "verdict": said} | {
            "error": {n: error for n, (_, error) in found.items()}
        }
    section = (
        "## Ẑ/Z − 1\n\nMean over islands ± standard error. *verdict*: within four standard errors, no bias at any "
        f"N where all is frozen; elsewhere that at N = {sizes[-1]} is at most {sizes[0]}/{sizes[-1]} of that at "
        f"N = {sizes[0]}.\n\n" + table(["sampler", *(f"N = {n}" for n in sizes), "verdict"], rows)
    )
    return Story([section], partial(_draw, facts=facts, sizes=sizes), (8, 4), facts)


def _draw(figure: Any, *, facts: Mapping[str, Any], sizes: Sequence[int]) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axis, frozen, title in zip(panels, (True, False), ("frozen", "adaptive, and ensembles"), strict=True):
        for index, (name, one) in enumerate((n, f) for n, f in facts.items() if is_frozen(n) == frozen):
            at = [n for n in sizes if n in one["bias"]]
            values, errors = ([one[key][n] for n in at] for key in ("bias", "error"))
            shifted = np.array(at) * 1.03**index  # so that bars do not hide each other
            axis.errorbar(shifted, values, errors, marker=".", label=LABELS[name].replace("`", ""))
        axis.set(xlabel="particles N of an island", title=title)
        if axis.lines:
            axis.set_xscale("log")
            axis.set_xticks(sizes, [str(n) for n in sizes])
            axis.minorticks_off()
            axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
            axis.legend(fontsize=6)
    panels[0].set_ylabel("Ẑ/Z − 1")
