"""Deep ensembles beside SMC and HMC on MNIST: scores, what they know of inputs that are no digits, and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from experiments.studies.page import Ran, Story, table, with_error
from experiments.studies.study import Cell

import isles
from isles.weights import island_weights, normalise

EPOCHS = 650  # that a particle of SMC takes here, about
LEAPFROGS = 8  # of a chain's step, about
SCORES = {
    "accuracy": "accuracy, %", "nll": "NLL", "ece": "ECE", "epistemic": "H_ep",
    "epistemic_outside": "H_ep, no digits", "auroc": "AUROC by H_tot", "auroc_epistemic": "AUROC by H_ep",
}  # fmt: skip
ENSEMBLES = ("ensemble", "likelihood-ensemble")


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """One of each kind of ensemble, SMC, and chains of several lengths from two kinds of starts."""
    shared = {"train": sizes["train"], "test": sizes["test"], "realizations": 1}
    climb = {key: sizes[key] for key in ("epochs", "learning_rate", "batch_rows")}
    parts, n, found = sizes["parts"], sizes["N"], list[Cell]()
    for method in sizes["methods"]:
        if method in ENSEMBLES:
            facts = {"method": method, "members": sizes["members"]} | climb | shared
            found.append(Cell(method, facts, parts, max(sizes["members"]) * sizes["epochs"], "ensemble"))
        elif method == "smc":
            facts = {"method": method, "N": n, "trajectory": sizes["trajectory"], "islands": sizes["islands"]}
            facts |= {"max_leapfrogs": sizes["max_leapfrogs"]} | shared
            found.append(Cell(method, facts, parts, n * EPOCHS * max(sizes["islands"]), "smc"))
        else:
            for steps in sizes["steps"]:
                facts = {"method": method, "N": n, "trajectory": sizes["hmc_trajectory"], "steps": steps}
                facts |= (climb if method == "hmc-optimised" else {}) | shared
                found.append(Cell(f"{method}-b{steps}", facts, parts, n * steps * LEAPFROGS, "chains"))
    return found


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """Scores of every size that a method has."""
    data = isles.data.load("mnist", train=facts["train"], test=facts["test"])
    network = isles.models.mnist_cnn()
    prior = isles.Gaussian(like=network.shapes(), std=isles.models.kaiming(network))
    problem = isles.classification(network.apply, prior, data.x_train, data.y_train, classes=10)
    posterior = sample(facts, problem, seed)
    pixels = data.x_test.reshape(len(data.x_test), -1)
    outside = np.random.default_rng(0).permuted(pixels, axis=1).reshape(data.x_test.shape)
    inside, outside = (posterior.predict(x, per_draw=True).probabilities for x in (data.x_test, outside))
    rows = {
        name: score(*(merged(part, weights) for part in (inside, outside)), weights.ravel(), data.y_test)
        | {"island_ess": float(1 / np.sum(weights.sum(axis=1) ** 2))}
        for name, weights in sizes(facts, posterior)
    }
    return {
        "rows": rows, "parallel_epochs": posterior.epochs.parallel, "particle_epochs": posterior.epochs.total
    }  # fmt: skip


def sample(facts: Mapping[str, Any], problem: isles.Problem, seed: int) -> isles.Posterior:
    """The draws, or members."""
    method = facts["method"]
    way = [facts[key] for key in ("epochs", "learning_rate", "batch_rows") if key in facts]
    if method in ENSEMBLES:
        epochs, rate, batch = way
        return isles.baselines.deep_ensemble(
            problem, max(facts["members"]), epochs=epochs, learning_rate=rate, batch_rows=batch, seed=seed,
            prior=method == "ensemble",
        )  # fmt: skip
    if method == "smc":
        kernel = isles.HMC(trajectory=facts["trajectory"], max_leapfrogs=facts["max_leapfrogs"])
        sampler = isles.SMC(kernel, particles=facts["N"], mutations=1)
        return isles.sample(problem, sampler, islands=max(facts["islands"]), seed=seed, progress=False)
    start = isles.Optimised(*way) if way else "prior"
    chains = isles.MCMC(
        isles.HMC(trajectory=facts["trajectory"]), facts["N"], facts["steps"], start=start, tune="alone"
    )
    return isles.sample(problem, chains, seed=seed, progress=False)


def sizes(facts: Mapping[str, Any], posterior: isles.Posterior) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Weights (P, N) of the draws for every row of the table."""
    if facts["method"] in ENSEMBLES:
        for members in facts["members"]:
            yield f"{members}", np.ones((1, members)) / members
    elif facts["method"] == "smc":
        evidence = posterior.island_log_evidence
        assert evidence is not None
        for islands in facts["islands"]:
            within = normalise(posterior.log_weights[:islands])
            for way in ("evidence", "equal") if islands > 1 else ("evidence",):
                shares = island_weights(evidence[:islands]) if way == "evidence" else 1 / islands
                name = f"P = {islands}" + (f", {way}" if islands > 1 else "")
                yield name, within * np.broadcast_to(shares, islands)[:, None]
    else:
        yield f"B = {facts['steps']}", posterior.weights


def merged(probabilities: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Per-draw probabilities (draws, rows, classes) of the draws that have weights."""
    islands, draws = weights.shape
    return probabilities[:islands, :draws].reshape(islands * draws, *probabilities.shape[2:])


def score(inside: Any, outside: Any, weights: Any, labels: Any) -> dict[str, float]:
    """Of the mixture of draws, for digits and for inputs that are none."""
    mixed, strange = (np.tensordot(weights, part, 1) for part in (inside, outside))
    flags = np.repeat([False, True], [len(mixed), len(strange)])
    own, theirs = (isles.metrics.epistemic_entropy(part, weights) for part in (inside, outside))
    total = np.concatenate([isles.metrics.entropy(mixed), isles.metrics.entropy(strange)])
    return {
        "accuracy": 100 * isles.metrics.accuracy(mixed, labels),
        "nll": isles.metrics.nll(mixed, labels),
        "ece": isles.metrics.ece(mixed, labels),
        "epistemic": float(own.mean()),
        "epistemic_outside": float(theirs.mean()),
        "auroc": isles.metrics.auroc(total, flags),
        "auroc_epistemic": isles.metrics.auroc(np.concatenate([own, theirs]), flags),
    }


def label(each: Ran, row: str) -> str:
    """Of a row of the table."""
    if each["method"] in ENSEMBLES:
        kind = "posterior density" if each["method"] == "ensemble" else "likelihood alone"
        return f"{row} member{'s' * (row != '1')}, {kind}"
    if each["method"] == "smc":
        return f"SMC∥, {row}"
    return f"HMC∥ from {'the prior' if each['method'] == 'hmc-prior' else 'optima'}, {row}"


def tell(ran: Sequence[Ran]) -> Story:
    """One row for each size of each method."""
    facts: dict[str, Any] = {}
    body = []
    for each in ran:
        if not each:
            body.append([each.cell.name, 0, *["not run"] * (len(SCORES) + 3)])
            continue
        for row in each.pieces[0]["found"]["rows"]:
            values = {name: [piece["found"]["rows"][row][name] for piece in each.pieces] for name in SCORES}
            count = int(row) if each["method"] in ENSEMBLES else None
            parallel = each.mean("parallel_epochs")
            width = count or each["N"] * (int(row.split(",")[0].removeprefix("P = ")) if "P" in row else 1)
            shown = [with_error(values[name]) for name in SCORES]
            ess = [piece["found"]["rows"][row]["island_ess"] for piece in each.pieces]
            shown.append(f"{np.mean(ess):.2f}" if each["method"] == "smc" else "")
            body.append(
                [label(each, row), each.realizations, *shown, f"{parallel:.4g}", f"{parallel * width:.3g}"]
            )
            facts[label(each, row)] = values | {"parallel_epochs": parallel, "total_epochs": parallel * width}
    head = ["method", "realizations", *SCORES.values(), "island ESS", "epochs", "in all"]
    section = (
        "## Scores\n\nMeans ± standard error over realizations. *H_ep* is the epistemic entropy, on digits and on "
        "inputs that are none; AUROC tells how well an entropy separates the two. *epochs* are those that one "
        "particle or member takes, *in all* those of all of them.\n\n" + table(head, body)
    )
    return Story([section], partial(_draw, facts=facts), (8, 3.6), facts)


def _draw(figure: Any, *, facts: Mapping[str, Any]) -> None:
    for axis, name in zip(figure.subplots(1, 2), ("nll", "ece"), strict=True):
        for title, one in facts.items():
            mark = "o" if "member" in title else "s" if title.startswith("SMC") else "^"
            colour = {"o": "C0" if "density" in title else "C1", "s": "C2", "^": "C3"}[mark]
            if "optima" in title:
                colour = "C4"
            axis.plot(one["total_epochs"], np.mean(one[name]), mark, color=colour, markersize=4)
            axis.annotate(title, (one["total_epochs"], np.mean(one[name])), fontsize=4, xytext=(3, 2),
                          textcoords="offset points")  # fmt: skip
        axis.set(xscale="log", xlabel="epochs of all members or particles", ylabel=name.upper())
