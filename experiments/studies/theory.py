"""Biases that more islands do not cure, and their cures, on a small Gaussian: MSE over P."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies import estimates
from experiments.studies.fits import slope
from experiments.studies.page import Ran, Story, table
from experiments.studies.study import Cell
from experiments.studies.targets import Target, gaussian

import isles

STAGES = 4  # that the adaptive tempering takes here, about
LEAPFROGS = 3
PILOT = 512  # particles of the run that fixes schedule and step sizes


def target() -> Target:
    """d = 4, m = 8, σ = 1: where few particles have Var(log Z) < 1."""
    return gaussian(1, observations=8, noise=1.0, dimension=4)


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """Islands of few particles, chains of fixed burn-in, chains whose burn-in grows with log P."""
    most, r, parts = max(sizes["P"]), sizes["realizations"], sizes["parts"]
    found = []
    for kind in sizes["kinds"]:
        for n in sizes["N"]:
            facts = {"method": kind, "N": n, "P": sizes["P"], "realizations": r}
            found.append(Cell(f"{kind}-n{n}", facts, parts, r * most * n * LEAPFROGS * STAGES, "smc"))
    for b in sizes["B"]:
        facts = {"method": "fixed", "B": b, "P": sizes["P"], "realizations": r, "step": sizes["step"]}
        found.append(Cell(f"fixed-b{b}", facts, parts, r * most * b, "chains"))
    for p in sizes["P"]:
        b = growing(sizes["B_per_doubling"], p)
        facts = {"method": "growing", "B": b, "P": [p], "realizations": r, "step": sizes["step"]}
        found.append(Cell(f"growing-p{p}", facts, parts, r * p * b, "chains"))
    return found


def growing(per_doubling: int, p: int) -> int:
    """Burn-in proportional to log P."""
    return math.ceil(per_doubling * (1 + math.log2(p)))


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """Squared errors, and the mean error, for the first P islands or chains of each realization."""
    case, r, most = target(), facts["realizations"], max(facts["P"])
    if facts["method"] in ("frozen", "adaptive"):
        sampler = isles.SMC(isles.HMC(leapfrogs=LEAPFROGS), particles=facts["N"], mutations=1)
        spent = 0
        if facts["method"] == "frozen":
            wide = isles.SMC(isles.HMC(leapfrogs=LEAPFROGS), particles=PILOT, mutations=1)
            pilot = isles.sample(case.problem, wide, seed=1, progress=False)
            sampler, spent = sampler.frozen(pilot), pilot.epochs.total
        posterior = isles.sample(case.problem, sampler, islands=r * most, seed=seed, progress=False)
        means = estimates.island_means(posterior).reshape(r, most, -1)
        evidence = np.asarray(posterior.island_log_evidence).reshape(r, most)
    else:  # nothing is tuned, so that chains are independent of each other
        kernel = isles.PCN(step_size=facts["step"], scale="prior")
        posterior = isles.sample(
            case.problem, isles.MCMC(kernel, chains=most, burn_in=facts["B"]), islands=r, seed=seed, progress=False
        )
        means, evidence, spent = np.asarray(posterior.draws, np.float64), None, 0
    ways = {"equal": None} | ({} if evidence is None else {"evidence": evidence})
    bias = {
        f"bias_{way}": [
            (estimates.combine(means[:, :p], None if z is None else z[:, :p]) - case.mean).mean(axis=0)
            for p in facts["P"]
        ]
        for way, z in ways.items()
    }  # fmt: skip
    return estimates.prefix_errors(case, means, evidence, facts["P"]) | bias | {
        "variance": float(np.trace(case.covariance)),
        "log_evidence_variance": None if evidence is None else evidence.var(ddof=1),
        "particle_epochs": posterior.epochs.total + spent,
    }  # fmt: skip


def curve(found: Ran, way: str) -> list[float]:
    """MSE/tr Σ for every P."""
    pooled = np.concatenate([np.array(piece["found"][way]) for piece in found.pieces], axis=1)
    return (pooled.mean(axis=1) / found.mean("variance")).tolist()


def squared_bias(found: Ran, way: str) -> float:
    """‖mean error‖²/tr Σ at the largest P, less what its noise adds."""
    errors = np.array([piece["found"][f"bias_{way}"][-1] for piece in found.pieces]).mean(axis=0)
    whole = float(errors @ errors) / found.mean("variance")
    count = found.realizations
    return (whole - curve(found, way)[-1] / count) / (1 - 1 / count)


def series(ran: Sequence[Ran]) -> dict[str, tuple[list[int], list[float], float]]:
    """label -> P, MSE/tr Σ, squared bias at the largest P."""
    found: dict[str, tuple[list[int], list[float], float]] = {}
    names = {"evidence": "weights ∝ Z", "equal": "equal weights"}
    for each in ran:
        if each and each["method"] in ("frozen", "adaptive"):
            for way, label in names.items():
                line = each["P"], curve(each, way), squared_bias(each, way)
                found[f"SMC∥, {each['method']}, N = {each['N']}, {label}"] = line
        elif each and each["method"] == "fixed":
            found[f"chains, B = {each['B']}"] = each["P"], curve(each, "equal"), squared_bias(each, "equal")
    grown = [each for each in ran if each and each["method"] == "growing"]
    if grown:
        values = [curve(each, "equal")[0] for each in grown]
        found["chains, B ∝ log P"] = [each["P"][0] for each in grown], values, squared_bias(grown[-1], "equal")
    return found


def tell(ran: Sequence[Ran]) -> Story:
    """MSE over P for all, the slope of their last part, and the bias that is left."""
    found = series(ran)
    processes = ran[0]["P"]
    rows = []
    for label, (p, values, bias) in found.items():
        shown = dict(zip(p, values, strict=True))
        late = max(len(p) - 3, 0)
        tail = f"{slope(p[late:], values[late:]):.2f}" if len(p) > 1 else ""
        rows.append(
            [label, *(f"{shown[q]:.2g}" if q in shown else "not run" for q in processes), tail, f"{bias:.1g}"]
        )
    spread = ", ".join(
        f"{each.mean('log_evidence_variance'):.2f} ({each.cell.name})" for each in ran if _weighs(each)
    )
    missing = [each.cell.name for each in ran if not each]
    sections = [
        "## MSE/tr Σ over P\n\n*slope* is that of log MSE over log P at the last three P, −1 without bias and 0 "
        "a plateau; *bias²* is ‖E μ̂ − μ‖²/tr Σ at the largest P, less the noise in it. The paper's claims: "
        "weights ∝ Z and a burn-in ∝ log P leave no bias, equal weights leave one of order 1/N², a fixed burn-in "
        "of order exp(−b). With adapted schedules and step sizes Z itself has a bias of order 1/N, which frozen "
        "runs have not.\n\n" + table(["method \\ P", *processes, "slope", "bias²"], rows),
        f"Variance of log Z over islands: {spread or 'not run'}.",
    ]
    if missing:
        sections.append(f"Not run: {', '.join(missing)}.")
    facts = {label: {"P": p, "mse": values, "squared_bias": bias} for label, (p, values, bias) in found.items()}
    return Story(sections, partial(_draw, found=found), (9, 3.8), facts)


def _weighs(each: Ran) -> bool:
    return bool(each) and each["method"] in ("frozen", "adaptive")


def _draw(figure: Any, *, found: Mapping[str, tuple[list[int], list[float], float]]) -> None:
    left, right = figure.subplots(1, 2)
    for label, (p, values, _) in found.items():
        axis = right if label.startswith("chains") else left
        style = ":" if "equal" in label else "--" if "adaptive" in label else "-"
        axis.plot(p, values, style, marker=".", label=label)
    for axis, title in ((left, "islands of SMC∥"), (right, "chains")):
        axis.set(xscale="log", yscale="log", xlabel="P", ylabel="MSE / tr Σ", title=title)
        if axis.lines:
            axis.legend(fontsize=5)
