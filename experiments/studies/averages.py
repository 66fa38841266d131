"""Scores of the same draws averaged by probabilities and by logits, and of more stages, beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies.page import Ran, Story, table, with_error
from experiments.studies.study import Cell

import isles
from isles import builtin

METHODS = {"smc": "SMC∥", "smc-denser": "SMC∥, ESS of 2N/3", "hmc-parallel": "HMC∥"}
DENSER = round(2 / 3, 4)  # of N, that the ESS falls to in a stage, where the paper says a half
STAGES = {"smc": 30, "smc-denser": 40, "hmc-parallel": 1}  # that a method takes, about
SCORES = {"accuracy": "accuracy, %", "nll": "NLL", "entropy": "H_tot"}
AVERAGES = {"probabilities": "of probabilities", "logits": "of logits"}
# the paper's table for L = 1, P = 1, by M: accuracy, NLL, H_tot, epochs
PRINTED = {
    ("smc", 1): (71.06, 1.134, 1.731, 35.75),
    ("smc", 5): (76.92, 0.8253, 1.344, 204.87),
    ("smc", 10): (80.14, 0.7024, 1.174, 433.5),
    ("smc", 20): (82.56, 0.6145, 1.07, 892),
    ("hmc-parallel", 1): (73.8, 1.373, 2.071, 40),
    ("hmc-parallel", 5): (79.44, 0.7949, 1.43, 200),
    ("hmc-parallel", 10): (81.72, 0.6834, 1.257, 400),
    ("hmc-parallel", 20): (83.06, 0.608, 1.128, 800),
}


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """Each method and M."""
    found = []
    for method in METHODS:
        for m in sizes["M"]:
            steps = sizes["B"] * m if method == "hmc-parallel" else m
            cost = sizes["N"] * steps * STAGES[method]
            facts = {"method": method, "M": m, "steps": steps}
            facts |= {key: sizes[key] for key in ("N", "train", "test")}
            if method == "smc-denser":
                facts |= {"ess_fraction": DENSER}
            found.append(Cell(f"{method}-m{m}", facts, sizes["parts"], cost, "cnn"))
    return found


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """One island, scored both ways."""
    problem = builtin.problem(data="mnist", model="cnn", kaiming="he", train=facts["train"])
    test = isles.data.load("mnist", test=facts["test"])
    kernel = isles.HMC(leapfrogs=1)
    sampler: Any = isles.MCMC(kernel, chains=facts["N"], burn_in=facts["steps"], draws=1, tune="alone")
    if facts["method"] != "hmc-parallel":
        fraction = facts.get("ess_fraction", 0.5)
        sampler = isles.SMC(kernel, particles=facts["N"], mutations=facts["steps"], ess_fraction=fraction)
    posterior = isles.sample(problem, sampler, seed=seed, progress=False)
    predicted: Any = posterior.predict(test.x_test, per_draw=True)
    each = np.asarray(predicted.probabilities, np.float64).reshape(facts["N"], len(test.x_test), -1)
    scores = scored(each, np.asarray(posterior.weights).ravel(), test.y_test)
    return scores | {"parallel_epochs": posterior.epochs.parallel, "particle_epochs": posterior.epochs.total}


def scored(each: Any, weights: Any, labels: Any) -> dict[str, float]:
    """Of the draws' probabilities (draws, rows, classes) with weights (draws,): both averages, and draws alone."""
    logs = np.log(np.maximum(each, np.finfo(np.float32).tiny))
    logits = np.tensordot(weights, logs, 1)  # up to a constant of each row, which a softmax takes away
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    ways = {"probabilities": np.tensordot(weights, each, 1), "logits": powers / powers.sum(axis=-1, keepdims=True)}
    found = {"nll_draws": float(-weights @ logs[:, np.arange(len(labels)), labels].mean(axis=1))}
    for way, mean in ways.items():
        found |= {
            f"accuracy_{way}": 100 * isles.metrics.accuracy(mean, labels),
            f"nll_{way}": isles.metrics.nll(mean, labels),
            f"entropy_{way}": float(isles.metrics.entropy(mean).mean()),
        }
    return found


def tell(ran: Sequence[Ran]) -> Story:
    """By method and M: both averages beside the paper's."""
    facts: dict[str, Any] = {}
    body = []
    for each in ran:
        method, m = each["method"], each["M"]
        printed = dict(zip([*SCORES, "epochs"], PRINTED[method.replace("-denser", ""), m], strict=True))
        found = {
            f"{score}_{way}": [piece["found"][f"{score}_{way}"] for piece in each.pieces]
            for score in SCORES
            for way in AVERAGES
        }
        row: list[Any] = [METHODS[method], m, len(each.pieces)]
        for score in SCORES:
            shown = [with_error(found[f"{score}_{way}"], 4) if each else "not run" for way in AVERAGES]
            row += [*shown, f"{printed[score]:.4g}"]
        alone, epochs = (
            [piece["found"][name] for piece in each.pieces] for name in ("nll_draws", "parallel_epochs")
        )
        shown = [with_error(values, 4) if each else "not run" for values in (alone, epochs)]
        body.append([*row, *shown, f"{printed['epochs']:.4g}"])
        facts[each.cell.name] = {**found, "nll_draws": alone, "epochs": epochs, "paper": printed}
    head = ["method", "M", "realizations"]
    for label in SCORES.values():
        head += [*(f"{label} {way}" for way in AVERAGES.values()), f"paper's {label}"]
    section = (
        "## Scores\n\n*of probabilities*: of the mean of the draws' probabilities, as everywhere else in isles. "
        "*of logits*: of the mean of their logits. *a draw's NLL*: the mean over draws of their own. Mean ± "
        "standard error over realizations.\n\n" + table([*head, "a draw's NLL", "epochs", "paper's epochs"], body)
    )
    return Story([section], partial(_draw, facts=facts), (8, 3.4), facts)


def _draw(figure: Any, *, facts: Mapping[str, Any]) -> None:
    for axis, score in zip(figure.subplots(1, 2), ("nll", "entropy"), strict=True):
        for index, found in enumerate(facts.values()):
            for way, colour in zip(AVERAGES, ("C0", "C1"), strict=True):
                values = found[f"{score}_{way}"]
                label = AVERAGES[way] if index == 0 else None
                axis.plot([index] * len(values), values, "o", color=colour, markersize=4, alpha=0.7, label=label)
            axis.plot(index, found["paper"][score], "x", color="black", label="paper" if index == 0 else None)
        names = [name.rpartition("-m") for name in facts]
        ticks = [f"{METHODS[method]}, M = {m}" for method, _, m in names]
        axis.set_xticks(range(len(facts)), ticks, fontsize=6, rotation=60, ha="right")
        axis.set_ylabel(SCORES[score])
        axis.legend(fontsize=6)
