"""Scores of IMDb's head with the likelihood of the rows at hand, and with one as strong as that of all rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies.page import Ran, Story, table
from experiments.studies.study import Cell

import isles

STAGES = {"at hand": 12, "as all": 50}  # that the adaptive tempering takes, about
METHODS = {"smc": "SMC∥", "hmc-parallel": "HMC∥"}
SCORES = {
    "accuracy": "accuracy, %",
    "nll": "NLL",
    "epistemic": "H_ep",
    "entropy": "H_tot",
    "parallel_epochs": "epochs",
}
# the paper's tables for L = 1, P = 1, by M: accuracy, NLL, H_ep, H_tot, epochs
PRINTED = {
    ("smc", 1): (79.15, 0.624, 8.42e-05, 0.6857, 39.55),
    ("hmc-parallel", 1): (82.47, 0.638, 0.001598, 0.6894, 45),
    ("smc", 5): (86.15, 0.348, 0.000625, 0.4507, 358.1),
    ("hmc-parallel", 5): (85.64, 0.3792, 0.005858, 0.5102, 225),
}


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """Each method and M with either likelihood."""
    found = []
    for m in sizes["M"]:
        for method in METHODS:
            for strength in STAGES:
                steps = m if method == "smc" else sizes["B"] * m
                cost = sizes["N"] * steps * (STAGES[strength] if method == "smc" else 1)
                facts = {"method": method, "M": m, "steps": steps, "strength": strength} | {
                    key: sizes[key] for key in ("N", "whole", "train", "test", "hidden")
                }
                found.append(
                    Cell(f"{method}-m{m}-{strength.replace(' ', '-')}", facts, sizes["parts"], cost, "head")
                )
    return found


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """Scores on the test reviews, and the rows that the likelihood is made of."""
    data = isles.data.load("imdb", train=facts["train"] or None, test=facts["test"] or None)
    network = isles.models.MLP(data.x_train.shape[1], (facts["hidden"],), 2)
    prior = isles.Gaussian(like=network.shapes(), std=isles.models.stds(network, weights=0.1, biases=0.01))
    plain = isles.classification(network.apply, prior, data.x_train, data.y_train, classes=2)
    rows = len(data.x_train)
    power = facts["whole"] / rows if facts["strength"] == "as all" else 1.0
    weighed = lambda params, batch: power * plain.log_likelihood(params, batch)
    kernel = isles.HMC(leapfrogs=1)
    sampler: Any = isles.MCMC(kernel, chains=facts["N"], burn_in=facts["steps"], draws=1, tune="alone")
    if facts["method"] == "smc":
        sampler = isles.SMC(kernel, particles=facts["N"], mutations=facts["steps"])
    posterior = isles.sample(isles.Problem(prior, weighed, plain.data), sampler, seed=seed, progress=False)
    predicted: Any = dataclasses.replace(posterior, likelihood=plain.log_likelihood).predict(data.x_test)
    return {
        "accuracy": 100 * isles.metrics.accuracy(predicted, data.y_test),
        "nll": isles.metrics.nll(predicted, data.y_test),
        "epistemic": predicted.epistemic.mean(), "entropy": predicted.entropy.mean(), "rows": rows, "power": power,
        "parallel_epochs": posterior.epochs.parallel, "particle_epochs": posterior.epochs.total,
    }  # fmt: skip


def tell(ran: Sequence[Ran]) -> Story:
    """By method and M: both likelihoods beside the paper's."""
    facts: dict[str, Any] = {}
    body = []
    for m, method in dict.fromkeys((each["M"], each["method"]) for each in ran):
        for place, (score, label) in enumerate(SCORES.items()):
            by_strength = {
                each["strength"]: [piece["found"][score] for piece in each.pieces]
                for each in ran
                if (each["M"], each["method"]) == (m, method) and each
            }
            printed = PRINTED[method, m][place]
            shown = [_shown(by_strength.get(strength, [])) for strength in STAGES]
            body.append([f"{METHODS[method]}, M = {m}", label, *shown, f"{printed:.4g}"])
            facts[f"{method}, M = {m}, {score}"] = by_strength | {"paper": printed}
    powers = {piece["found"]["power"] for each in ran for piece in each.pieces if each["strength"] == "as all"}
    power = f" (here {powers.pop():.3g})" if powers else ""
    section = (
        f"## Scores\n\n*at hand*: the likelihood of the reviews at hand. *as all*: to the power{power} that makes "
        "it as strong as that of the paper's 25,000 reviews, as if each came so often. One island each; mean ± "
        "standard error over realizations.\n\n"
        + table(["method", "score", *STAGES, "paper"], body)
    )  # fmt: skip
    return Story([section], partial(_draw, facts=facts), (8, 3.4), facts)


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "not run"
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.4g}{error}"


def _draw(figure: Any, *, facts: Mapping[str, Any]) -> None:
    settings = list(PRINTED)
    for axis, score in zip(figure.subplots(1, 2), ("accuracy", "nll"), strict=True):
        for index, (method, m) in enumerate(settings):
            found = facts.get(f"{method}, M = {m}, {score}", {})
            for strength, colour in zip(STAGES, ("C0", "C1"), strict=True):
                values = found.get(strength, [])
                axis.plot([index] * len(values), values, "o", color=colour, markersize=4, alpha=0.7,
                          label=strength if index == 0 else None)  # fmt: skip
            if found:
                axis.plot(index, found["paper"], "x", color="black", label="paper" if index == 0 else None)
        axis.set_xticks(
            range(len(settings)), [f"{METHODS[method]}\nM = {m}" for method, m in settings], fontsize=7
        )
        axis.set_ylabel(SCORES[score])
        axis.legend(fontsize=6)
