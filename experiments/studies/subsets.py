"""Scores of MNIST's CNN over the choice of training and test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies.page import Ran, Story, table
from experiments.studies.study import Cell

import isles

STAGES = 31  # that the adaptive tempering takes here, about
LABELS = {"smc": "SMC, M = 5", "hmc-parallel": "HMC∥, B = 200"}
# the paper's table for L = 1, P = 1
PRINTED = {"smc": {"accuracy": 76.92, "nll": 0.8253}, "hmc-parallel": {"accuracy": 79.44, "nll": 0.7949}}


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """Every method on every subset; number 0 is the first images."""
    shared = {key: sizes[key] for key in ("N", "pool", "train", "test", "tests")}
    found = []
    for method in sizes["methods"]:
        steps = sizes["M"] if method == "smc" else sizes["B"]
        cost = sizes["N"] * steps * (STAGES if method == "smc" else 1)
        for subset in range(sizes["subsets"]):
            facts = {"method": method, "steps": steps, "subset": subset} | shared | {"realizations": 1}
            found.append(Cell(f"{method}-{subset}", facts, sizes["parts"], cost, method))
    return found


def rows(subset: int, count: int, pool: int) -> np.ndarray[Any, Any]:
    """Which of the pool are trained on: the first ones, or a random choice."""
    if subset == 0:
        return np.arange(count)
    return np.random.default_rng(subset).choice(pool, count, replace=False)


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """Accuracy in per cent and NLL on consecutive blocks of test images."""
    size, tests = facts["test"], facts["tests"]
    data = isles.data.load("mnist", train=facts["pool"], test=size * tests)
    chosen = rows(facts["subset"], facts["train"], facts["pool"])
    network = isles.models.mnist_cnn()
    prior = isles.Gaussian(like=network.shapes(), std=isles.models.kaiming(network))
    problem = isles.classification(network.apply, prior, data.x_train[chosen], data.y_train[chosen], classes=10)
    kernel = isles.HMC(leapfrogs=1)
    sampler: Any = isles.MCMC(kernel, chains=facts["N"], burn_in=facts["steps"])
    if facts["method"] == "smc":
        sampler = isles.SMC(kernel, particles=facts["N"], mutations=facts["steps"])
    posterior = isles.sample(problem, sampler, seed=seed, progress=False)
    probabilities = np.asarray(posterior.predict(data.x_test).probabilities)
    blocks = [slice(size * block, size * (block + 1)) for block in range(tests)]
    score = lambda measure: [measure(probabilities[block], data.y_test[block]) for block in blocks]
    return {
        "accuracy": 100 * np.array(score(isles.metrics.accuracy)), "nll": score(isles.metrics.nll),
        "parallel_epochs": posterior.epochs.parallel, "particle_epochs": posterior.epochs.total,
    }  # fmt: skip


def scores(found: Ran, name: str) -> np.ndarray[Any, Any]:
    """(tests,) mean over the realizations of one subset."""
    return np.mean([piece["found"][name] for piece in found.pieces], axis=0)


def tell(ran: Sequence[Ran]) -> Story:
    """By method: the first images, other training images, other test images, both."""
    facts: dict[str, Any] = {}
    body = []
    for method in dict.fromkeys(each["method"] for each in ran):
        for metric, unit in (("accuracy", "accuracy, %"), ("nll", "NLL")):
            done = {each["subset"]: scores(each, metric) for each in ran if each["method"] == method and each}
            kept = {"first": float(done[0][0])} if 0 in done else {}
            others = np.array([done[subset] for subset in sorted(done) if subset > 0])
            ways = {
                "other training images": others[:, 0] if len(others) else np.array([]),
                "other test images": done[0][1:] if 0 in done else np.array([]),
                "both": others.mean(axis=1) if len(others) else np.array([]),
            }
            first = f"{kept['first']:.4g}" if kept else "not run"
            shown = [first, *(_spread(values) for values in ways.values()), PRINTED[method][metric]]
            body.append([LABELS[method], unit, *shown])
            facts[f"{method}, {metric}"] = kept | {way: values.tolist() for way, values in ways.items()}
    count = sum(1 for each in ran if each and each["subset"] > 0 and each["method"] == ran[0]["method"])
    section = (
        f"## Scores\n\n*first*: trained on the first thousand, scored on the first thousand. Elsewhere mean ± "
        f"standard deviation over the choice (not its error): of {count} random training sets, scored on the "
        "first thousand test images; of the other thousands of test images, with the first training set; *both*: "
        "random training sets, scored on all test images.\n\n"
        + table(["method", "score", "first", *list(ways), "paper"], body)
    )
    return Story([section], partial(_draw, ran=ran), (8, 3.4), facts)


def _spread(values: np.ndarray[Any, Any]) -> str:
    if values.size == 0:
        return "not run"
    spread = f" ± {values.std(ddof=1):.2g}" if values.size > 1 else ""
    return f"{values.mean():.4g}{spread}"


def _draw(figure: Any, *, ran: Sequence[Ran]) -> None:
    for axis, metric in zip(figure.subplots(1, 2), ("accuracy", "nll"), strict=True):
        for index, method in enumerate(dict.fromkeys(each["method"] for each in ran)):
            for each in ran:
                if each and each["method"] == method:
                    values = scores(each, metric)
                    at = each["subset"] + 0.25 * index
                    axis.plot([at] * len(values), values, ".", color=f"C{index}", alpha=0.4, markersize=4)
                    axis.plot(at, values[0], "D", color=f"C{index}", markersize=4)
            axis.axhline(PRINTED[method][metric], color=f"C{index}", linewidth=0.8, label=LABELS[method])
        axis.set(
            xlabel="training subset (0: the first images)", ylabel="accuracy, %" if metric == "accuracy" else "NLL"
        )
        axis.legend(fontsize=6, title="lines: the paper's; diamonds: the first test images", title_fontsize=5)
