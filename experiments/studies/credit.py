"""Variance of the posterior mean on the credit data, for SMC∥, AIS and Markov chains, by NP and P."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies import estimates
from experiments.studies.fits import slope
from experiments.studies.page import Ran, Story, number, table
from experiments.studies.study import Cell
from experiments.studies.targets import Floats, credit

import isles

LABELS = {
    "smc-pcn": "SMC∥-pCN",
    "smc-hmc": "SMC∥-HMC",
    "ais": "AIS, pCN",
    "hmc-parallel": "HMC∥",
    "pcn-parallel": "pCN∥",
    "mh": "MH, one chain",
    "smmala": "SmMALA, one chain",
    "rb-mp": "RB-MP-MCMC",
    "arb-mp": "ARB-MP-MCMC",
}
LATE = 5  # points, of which the slope is taken
ISLANDS = ("smc-pcn", "smc-hmc", "ais", "hmc-parallel", "pcn-parallel")  # the others are one chain a realization


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """One for each method, one for AIS's ESS, one for the reference."""
    n, r = sizes["particles"], sizes["realizations"]
    found = []
    for method in sizes["methods"]:
        steps = sizes["steps"][method]
        processes = sizes["processes"] + ([] if method in ISLANDS else sizes["longer"])
        facts = {"method": method, "N": n, "P": processes, "steps": steps, "realizations": r}
        found.append(Cell(method, facts, sizes["parts"], _epochs(facts), method))
    n, steps = sizes["check_particles"], sizes["steps"]["ais"]
    check = {"method": "ais-check", "N": n, "steps": steps, "realizations": 1}
    found.append(Cell("ais-check", check, sizes["checks"], 40 * n * steps, "ais"))
    chains, draws = sizes["reference_chains"], sizes["reference_draws"]
    reference = {
        "method": "reference", "N": chains, "steps": sizes["steps"]["hmc-parallel"], "draws": draws,
        "realizations": 1,
    }  # fmt: skip
    cost = 10 * chains * (reference["steps"] + draws)
    return [*found, Cell("reference", reference, sizes["references"], cost, "hmc-parallel")]


def _epochs(facts: Mapping[str, Any]) -> float:
    n, most, steps = facts["N"], max(facts["P"]), facts["steps"]
    each = {
        "smc-pcn": 21 * steps * n * most,
        "smc-hmc": 21 * 10 * steps * n * most,
        "ais": 40 * steps * n * most,
        "hmc-parallel": 10 * steps * n * most,
        "pcn-parallel": steps * n * most,
        "mh": steps + n * most,
        "smmala": 2 * (steps + n * most),
    }
    return facts["realizations"] * each.get(facts["method"], n * (steps + most))


def sampler(facts: Mapping[str, Any]) -> Any:
    """What one island does."""
    method, n, steps = facts["method"], facts["N"], facts["steps"]
    if method == "smc-pcn":
        return isles.SMC(isles.PCN(), particles=n, mutations=steps)
    if method == "smc-hmc":
        return isles.SMC(isles.HMC(leapfrogs=10), particles=n, mutations=steps)
    if method in ("ais", "ais-check"):
        return isles.AIS(isles.PCN(), particles=n, schedule=isles.neal_schedule(), mutations=steps)
    if method == "hmc-parallel":
        return isles.MCMC(isles.HMC(leapfrogs=10), chains=n, burn_in=steps)
    if method == "pcn-parallel":
        return isles.MCMC(isles.PCN(), chains=n, burn_in=steps)
    if method == "reference":
        return isles.MCMC(isles.HMC(leapfrogs=10), chains=n, burn_in=steps, draws=facts["draws"])
    most = max(facts["P"])
    if method in ("mh", "smmala"):
        kernel = isles.MH() if method == "mh" else isles.SmMALA()
        return isles.MCMC(kernel, chains=1, burn_in=steps, draws=n * most)
    return isles.MPMCMC(proposals=n, steps=most, burn_in=steps, adaptive=method == "arb-mp")


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """Estimates of the posterior mean for every P, the first P processes or steps of the same realizations."""
    method, r = facts["method"], facts["realizations"]
    count = r * max(facts["P"]) if method in ISLANDS else r
    posterior = isles.sample(credit(), sampler(facts), islands=count, seed=seed, progress=False)
    cost = {"particle_epochs": posterior.epochs.total}
    if method == "ais-check":
        share = lambda name: posterior.trace[name][:, 0] / facts["N"]
        return cost | {"ess": share("ess"), "cumulative_ess": share("cumulative_ess")}
    if method == "reference":
        means = np.asarray(posterior.draws, np.float64).reshape(facts["N"], -1, 15).mean(axis=1)
        return cost | {"mean": means.mean(axis=0), "error": means.std(axis=0, ddof=1) / np.sqrt(len(means))}
    if method in ISLANDS:
        means = estimates.island_means(posterior).reshape(r, -1, 15)
        evidence = posterior.island_log_evidence
        grouped = None if evidence is None else evidence.reshape(r, -1)
        prefix = lambda p: estimates.combine(means[:, :p], None if grouped is None else grouped[:, :p])
        spread = None if evidence is None else float(evidence.std(ddof=1))
        epochs = [posterior.epochs.total / count * p for p in facts["P"]]
        waiting = [estimates.costs(posterior, r)["parallel_epochs"]] * len(facts["P"])
        return cost | {
            "estimates": np.stack([prefix(p) for p in facts["P"]]),
            "epochs": epochs, "parallel_epochs": waiting, "log_evidence_std": spread,
        }  # fmt: skip
    return cost | _chain(facts, posterior)


def _chain(facts: Mapping[str, Any], posterior: isles.Posterior) -> dict[str, Any]:
    """Means of the first part of a chain: NP draws of it, or all points of P steps with many proposals."""
    n, steps, most = facts["N"], facts["steps"], max(facts["P"])
    positions, weights = np.asarray(posterior.draws, np.float64), posterior.weights
    size = positions.shape[1] // most

    def prefix(p: int) -> Floats:
        w = weights[:, : p * size]
        return np.einsum("rn,rnd->rd", w / w.sum(axis=1, keepdims=True), positions[:, : p * size])

    many = facts["method"] in ("rb-mp", "arb-mp")
    total = posterior.epochs.total / facts["realizations"]
    each = 1 if many else total / (steps + n * most)  # epochs of a step that wait for each other
    waiting = [1 + steps + p if many else each * (steps + n * p) for p in facts["P"]]
    epochs = [1 + n * (steps + p) if many else each * (steps + n * p) for p in facts["P"]]
    return {
        "estimates": np.stack([prefix(p) for p in facts["P"]]),
        "epochs": epochs, "parallel_epochs": waiting, "log_evidence_std": None,
    }  # fmt: skip


def variances(found: Ran) -> list[tuple[float, float]]:
    """For every P the variance over realizations, mean over coordinates, and its standard error."""
    pooled = np.concatenate([np.array(piece["found"]["estimates"]) for piece in found.pieces], axis=1)
    count = pooled.shape[1]
    each = np.square(pooled - pooled.mean(axis=1, keepdims=True)).mean(axis=2) * count / (count - 1)  # (P, R)
    return [(float(e.mean()), float(e.std(ddof=1) / np.sqrt(count))) for e in each]


def squared_bias(found: Ran, reference: Floats) -> list[float]:
    """For every P the squared bias, mean over coordinates, less what the noise of the mean adds to it."""
    pooled = np.concatenate([np.array(piece["found"]["estimates"]) for piece in found.pieces], axis=1)
    noise = [variance / pooled.shape[1] for variance, _ in variances(found)]
    return (np.square(pooled.mean(axis=1) - reference).mean(axis=1) - noise).tolist()


def tell(ran: Sequence[Ran]) -> Story:
    """Slopes and costs, variances over P, and the check of AIS."""
    methods = [each for each in ran if each["method"] in LABELS]
    (check,) = (each for each in ran if each["method"] == "ais-check")
    (reference,) = (each for each in ran if each["method"] == "reference")
    truth = np.mean([p["found"]["mean"] for p in reference.pieces], axis=0) if reference else None
    facts = {each["method"]: _facts(each, truth) for each in methods if each}
    n, common = methods[0]["N"], min(max(each["P"]) for each in methods)
    processes = max((each["P"] for each in methods), key=len)
    names = [each["method"] for each in methods]
    sections = [
        f"## Slopes and costs\n\n*variance* is that of the estimate of the posterior mean over realizations, mean "
        f"over the 15 coordinates, at NP = {n * common}; *slope* that of log variance over log NP for the {LATE} "
        "largest NP, −1 where the method converges at the Monte Carlo rate; *bias²* the squared bias against a "
        f"long reference run, less the noise in it. *epochs* are likelihood evaluations of one realization at "
        f"NP = {n * common}, *parallel* those that wait for each other. The paper's claims: slope −1; SMC∥ the "
        "best of those that need no communication; AIS and the plain chains worse.\n\n"
        + _summary_table(names, facts, n * common),
        f"## Variance over P (N = {n}, so NP samples)\n\n" + _variance_table(names, processes, facts),
        "## AIS's ESS\n\n" + _check(check),
    ]
    return Story(sections, partial(_draw, facts=facts, n=n), (9, 4.2), facts)


def _facts(each: Ran, truth: Floats | None) -> dict[str, Any]:
    found, first = variances(each), each.pieces[0]["found"]
    samples = [each["N"] * p for p in each["P"]]
    return {
        "NP": samples,
        "variance": [value for value, _ in found],
        "error": [error for _, error in found],
        "slope": slope(samples[-LATE:], [value for value, _ in found][-LATE:]),
        "squared_bias": None if truth is None else squared_bias(each, truth),
        "epochs": first["epochs"],
        "parallel_epochs": first["parallel_epochs"],
        "log_evidence_std": None if first["log_evidence_std"] is None else each.mean("log_evidence_std"),
        "realizations": each.realizations,
    }


def _summary_table(names: Sequence[str], facts: Mapping[str, Any], samples: int) -> str:
    head = ["method", "realizations", "slope", "variance", "bias²", "sd of log Z", "epochs", "parallel"]
    rows = []
    for name in names:
        label = LABELS[name]
        if name not in facts:
            rows.append([label, 0, *["not run"] * 6])
            continue
        one = facts[name]
        at = one["NP"].index(samples)
        bias = "" if one["squared_bias"] is None else f"{one['squared_bias'][at]:.2g}"
        sd = "" if one["log_evidence_std"] is None else f"{one['log_evidence_std']:.2f}"
        variance = f"{one['variance'][at]:.3g} ± {one['error'][at]:.1g}"
        cost = [f"{one[key][at]:.3g}" for key in ("epochs", "parallel_epochs")]
        rows.append([label, one["realizations"], f"{one['slope']:.2f}", variance, bias, sd, *cost])
    return table(head, rows)


def _variance_table(names: Sequence[str], processes: Sequence[int], facts: Mapping[str, Any]) -> str:
    rows = []
    for name in names:
        found = [number(value) for value in facts[name]["variance"]] if name in facts else ["not run"]
        rows.append([LABELS[name], *found, *[""] * (len(processes) - len(found))])
    return table(["method \\ P", *processes], rows)


def _check(found: Ran) -> str:
    if not found:
        return "Not run."
    least = [min(piece["found"]["ess"]) for piece in found.pieces]
    last = [piece["found"]["cumulative_ess"][-1] for piece in found.pieces]
    whole = [max(round(share * found["N"]), 1) for share in last]
    return (
        f"With {found['N']} particles and {found['steps']} pCN steps at each of Neal's 40 temperings, the ESS of "
        f"the incremental weights is at least {min(least):.2f} N (over {len(least)} runs; the paper: at least N/2 "
        f"at each tempering). The weights that AIS uses are products of these: their ESS at the end is "
        f"{', '.join(map(str, whole))} of {found['N']} particles, since nothing is resampled."
    )


def _draw(figure: Any, *, facts: Mapping[str, Any], n: int) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    for index, (name, one) in enumerate(facts.items()):
        style = {"color": f"C{index}", "marker": "os^vDP<>*"[index], "markersize": 3}
        left.errorbar(one["NP"], one["variance"], one["error"], label=LABELS[name], **style)
        right.plot(one["epochs"], one["variance"], **style)
    left.set(xscale="log", yscale="log", xlabel="samples NP", ylabel="variance of the posterior mean")
    right.set(xscale="log", xlabel="likelihood evaluations of a realization")
    left.secondary_xaxis("top", functions=(lambda x: x / n, lambda x: x * n)).set_xlabel("processes P")
    if facts:
        left.legend(fontsize="x-small")
