"""One SMC sampler over several processes against independent islands: accuracy, epochs, seconds, communication."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from experiments.studies import together
from experiments.studies.network import NETWORKS, overhead
from experiments.studies.page import Ran, Story, number, table, with_error
from experiments.studies.study import Cell


class Printed(NamedTuple):
    """A row of the paper's table."""

    seconds: float
    epochs: float
    accuracy: float
    nll: float
    epistemic: float
    entropy: float


PAPER_ONE = {
    128: Printed(136.4, 759.2, 85.40, 0.4578, 0.1538, 0.7916),
    256: Printed(172.5, 813.4, 85.36, 0.4545, 0.1592, 0.7870),
    512: Printed(221.0, 836.0, 85.42, 0.4548, 0.1595, 0.7845),
    1024: Printed(326.1, 834.0, 85.42, 0.4546, 0.1604, 0.7877),
}
PAPER_ISLANDS = {
    (16, 1): Printed(97.62, 514.6, 85.00, 0.4744, 0.1398, 0.7992),
    (16, 2): Printed(97.62, 514.6, 84.84, 0.4708, 0.1522, 0.8156),
    (32, 1): Printed(98.78, 669.3, 84.88, 0.4676, 0.1494, 0.8028),
    (32, 2): Printed(98.78, 669.3, 84.94, 0.4654, 0.1538, 0.8085),
    (32, 4): Printed(98.78, 669.3, 85.14, 0.4626, 0.1566, 0.8067),
    (32, 8): Printed(98.78, 669.3, 85.26, 0.4600, 0.1586, 0.8066),
    (32, 16): Printed(98.78, 669.3, 85.30, 0.4609, 0.1653, 0.8215),
    (32, 32): Printed(98.78, 669.3, 85.40, 0.4597, 0.1631, 0.8167),
}
PRINTED = ("accuracy", "nll", "epistemic", "entropy", "epochs", "seconds")  # in the order of the tables
PRINTED_NAMES = [f"paper's {name}" for name in ("accuracy", "NLL", "H_ep", "H_tot", "epochs", "s")]
ABOUT = (
    (
        "One sampler with NP particles",
        "*communication*: the time of the exchanges of a stage and of a leapfrog, measured alone between the same "
        "processes, times their number, over that of the run; for k = 1 these are copies. *waiting*: the share of "
        "their time in which processes do not compute, for whatever reason. *ms*: of a core, for one epoch of one "
        "particle.",
    ),
    (
        "SMC∥ with P islands of N",
        "The first P islands of a run, weighted by evidence and equally. *island ESS* is that of the evidence "
        "weights, *H_ep* and *H_tot* are mean epistemic and total entropies. *alone*: the slowest island's "
        "seconds, if each has a core of its own.",
    ),
    (
        "What grows with NP",
        "Relative to islands of N = 32: the epochs of a particle, which have nothing to do with communication, "
        "the time of one epoch, and both together. The paper takes the last for communication, and says "
        "40 log₂(P/2) % for NP = 32 P.",
    ),
    (
        "Networks that are not at hand",
        "Communication in per cent of computing, by `experiments/studies/network.py`, for the paper's nodes, "
        "which take 148 ms for an epoch of their 32 particles, and its d = 7890: a process receives all particles "
        "at every stage, and waits for a sum over all at every leapfrog. What of the paper's overhead is beyond "
        "this, and beyond the growth of epochs, has to come from elsewhere, such as waiting for the slowest core.",
    ),
)
SCORES = [f"{name}_{way}" for name in PRINTED[:4] for way in ("evidence", "equal")]
NODE = 32  # particles, and cores, of a node in the paper
EPOCHS = {
    8: 400,
    16: 515,
    32: 669,
    64: 715,
    128: 759,
    256: 813,
    512: 836,
    1024: 834,
}  # that a particle is expected to take
DIMENSION, LEAPFROGS = 7890, 25  # of the CNN; of a stage, as long as none has been run


def cells(sizes: Mapping[str, Any]) -> list[Cell]:
    """One sampler over k processes, for several k and NP; islands of several N, as many as the largest NP has."""
    found, keys = list[Cell](), ("problem", "trajectory", "max_leapfrogs", "M")
    common = {key: sizes[key] for key in keys} | {"test": sizes.get("test"), "realizations": 1}
    for k, samples in sizes["processes"].items():
        for n in samples:
            facts = {"what": "one", "N": n, "processes": int(k)} | common
            found.append(Cell(f"one-n{n}-k{k}", facts, sizes["parts"], expected_epochs(n), "one"))
    for n in sizes["islands_N"]:
        counts = [samples // n for samples in sizes["samples"]]
        facts = {"what": "islands", "N": n, "P": counts, "workers": sizes["workers"]} | common
        cost = counts[-1] * expected_epochs(n)
        found.append(Cell(f"islands-n{n}", facts, sizes["parts"], cost, "islands"))
    return found


def expected_epochs(particles: int) -> float:
    """Of all particles of one sampler."""
    return particles * EPOCHS.get(particles, 100)


def run(facts: Mapping[str, Any], part: int, seed: int) -> dict[str, Any]:
    """One realization."""
    if facts["what"] == "islands":
        return run_islands(facts, seed)
    job = {**facts, "seed": seed, "shared": True}
    found = together.launch(job, facts["processes"], epochs=expected_epochs(facts["N"]))
    cores = len(os.sched_getaffinity(0))
    cpu = sum(each["cpu_seconds"] for each in found)
    return found[0] | {
        "cpu_seconds": cpu,
        "seconds": max(each["seconds"] for each in found),
        "oversubscribed": facts["processes"] > cores,
    }


def run_islands(facts: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """All islands on the local engine; of every number of them, the first ones are scored."""
    import isles
    from isles import builtin
    from isles.weights import island_weights

    problem = builtin.problem(**facts["problem"])
    sampler = together.sampler_of(facts)
    with warnings.catch_warnings():  # compiled programs are kept on disk, for all workers
        warnings.simplefilter("ignore", isles.IslesWarning)
        isles.sample(problem, together.short_of(sampler), engine="local", workers=1)
    begun = time.perf_counter()
    posterior = isles.sample(
        problem, sampler,
        islands=max(facts["P"]), seed=seed, engine="local", workers=facts["workers"], islands_per_block=1,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    test = isles.data.load(facts["problem"]["data"], test=facts["test"])
    predicted: list[Any] = [posterior.select(island).predict(test.x_test) for island in range(max(facts["P"]))]
    probabilities = np.stack([np.asarray(one.probabilities) for one in predicted])
    own = np.array([float(one.aleatoric.mean()) for one in predicted])
    log_evidence = np.asarray(posterior.island_log_evidence)
    epochs = 1 + np.nansum(posterior.trace["epochs"], axis=0)  # of every island: the prior draw and the stages
    shares = {
        "evidence": [island_weights(log_evidence[:count]) for count in facts["P"]],
        "equal": [np.full(count, 1 / count) for count in facts["P"]],
    }
    return {
        "particle_epochs": posterior.epochs.total,
        "seconds": seconds,
        "epochs": epochs,
        "stages": np.isfinite(posterior.trace["tempering"]).sum(axis=0).mean(),
        "log_evidence": log_evidence,
        "island_ess": [1 / np.sum(weights**2) for weights in shares["evidence"]],
        **{
            f"{name}_{way}": [score(probabilities, own, weights, test)[name] for weights in each]
            for way, each in shares.items()
            for name in ("accuracy", "nll", "epistemic", "entropy")
        },
    }


def score(probabilities: Any, own: Any, weights: Any, test: Any) -> dict[str, float]:
    """Of the first islands as one: probabilities (P, rows, classes), mean entropies (P,) of draws, and weights."""
    import isles

    mixed = np.tensordot(weights, probabilities[: len(weights)], 1)
    total = float(isles.metrics.entropy(mixed).mean())
    return {
        "accuracy": 100 * isles.metrics.accuracy(mixed, test.y_test),
        "nll": isles.metrics.nll(mixed, test.y_test),
        "epistemic": total - float(weights @ own[: len(weights)]),
        "entropy": total,
    }


# ---- what follows from pieces ----


def core_milliseconds(found: Ran) -> float:
    """That a core takes for one epoch of one particle, waiting included."""
    cores = found["workers"] if found["what"] == "islands" else found["processes"]
    return float(np.mean([1e3 * cores * p["found"]["seconds"] / p["particle_epochs"] for p in found.pieces]))


def communication_share(found: Mapping[str, Any]) -> float:
    """Of the time of one sampler: what it exchanges at stages and leapfrogs, at the pace it takes alone."""
    stages = found["stages"] * (found["resample_seconds"] + found["read_seconds"])
    return float((stages + found["epochs"] * found["reduce_seconds"]) / found["seconds"])


def waiting_share(found: Mapping[str, Any], processes: int) -> float:
    """Of the time of all processes: when they did not compute."""
    return float(max(1 - found["cpu_seconds"] / found["seconds"] / processes, 0.0))


def paper_growth(samples: int) -> tuple[float, float, float, float]:
    """Time, epochs and seconds an epoch over those of islands with N = 32; and its formula, all in per cent."""
    one, island = PAPER_ONE[samples], PAPER_ISLANDS[NODE, 1]
    time, epochs = one.seconds / island.seconds, one.epochs / island.epochs
    formula = 40 * np.log2(samples / NODE / 2)
    return 100 * (time - 1), 100 * (epochs - 1), 100 * (time / epochs - 1), float(formula)


def growth(one: Ran, islands: Ran) -> tuple[float, float, float]:
    """The same of ours: core time of a sample, epochs, and core time of a particle's epoch, in per cent."""
    epochs = one.mean("epochs") / island_epochs(islands)
    pace = core_milliseconds(one) / core_milliseconds(islands)
    return 100 * (epochs * pace - 1), 100 * (epochs - 1), 100 * (pace - 1)


def island_epochs(islands: Ran) -> float:
    """Mean over islands."""
    return float(np.mean(np.concatenate([piece["found"]["epochs"] for piece in islands.pieces])))


def tell(ran: Sequence[Ran]) -> Story:
    """Both kinds beside the paper's table, what grows with NP, and networks that are not at hand."""
    one = [each for each in ran if each["what"] == "one"]
    islands = [each for each in ran if each["what"] == "islands"]
    tables = _one_table(one), _islands_table(islands), _growth_table(one, islands), _network_table(one)
    sections = [f"## {title}\n\n{about}\n\n{made}" for (title, about), made in zip(ABOUT, tables, strict=True)]
    return Story(sections, partial(_draw, one=one, islands=islands), (9, 3.4), _facts(one, islands))


def _values(each: Ran, name: str, place: int | None = None) -> list[float]:
    found = [piece["found"][name] for piece in each.pieces]
    return found if place is None else [values[place] for values in found]


def _one_table(one: Sequence[Ran]) -> str:
    rows = []
    for each in sorted(one, key=lambda each: (each["N"], each["processes"])):
        paper = _said(PAPER_ONE.get(each["N"]))
        if not each:
            rows.append([each["N"], each["processes"], 0, *["not run"] * 10, *paper])
            continue
        k, found = each["processes"], [piece["found"] for piece in each.pieces]
        mark = " (oversubscribed)" if found[0]["oversubscribed"] else ""
        scores = [with_error(_values(each, name), 4) for name in PRINTED[:5]]
        shares = [np.mean([communication_share(f) for f in found]), np.mean([waiting_share(f, k) for f in found])]
        cost = [f"{each.mean('stages'):.0f}", f"{each.mean('seconds'):.4g}", number(core_milliseconds(each))]
        shown = [f"{share:.2%}" for share in shares]
        rows.append([each["N"], f"{k}{mark}", len(each.pieces), *scores, *cost, *shown, *paper])
    head = ["NP", "k", "realizations", "accuracy", "NLL", "H_ep", "H_tot", "epochs", "stages", "seconds", "ms"]
    return table([*head, "communication", "waiting", *PRINTED_NAMES], rows)


def _said(printed: Printed | None) -> list[str]:
    return ["" if printed is None else f"{getattr(printed, name):.4g}" for name in PRINTED]


def _islands_table(islands: Sequence[Ran]) -> str:
    rows = []
    for each in islands:
        for place, count in enumerate(each["P"]):
            paper = _said(PAPER_ISLANDS.get((each["N"], count)))
            if not each:
                rows.append([each["N"], count, 0, *["not run"] * 12, *paper])
                continue
            scores = [with_error(_values(each, name, place), 4) for name in SCORES]
            scores.append(f"{np.mean(_values(each, 'island_ess', place)):.2f}")
            epochs = np.array([f["epochs"][:count] for f in (piece["found"] for piece in each.pieces)])
            alone = epochs.max(axis=1).mean() * each["N"] * core_milliseconds(each) / 1e3
            cost = [f"{epochs.mean():.4g}", f"{alone:.4g}", number(core_milliseconds(each))]
            rows.append([each["N"], count, len(each.pieces), *scores, *cost, *paper])
    there = {(each["N"], count) for each in islands for count in each["P"]}
    for n, count in sorted(PAPER_ISLANDS.keys() - there):
        rows.append([n, count, 0, *["not run"] * 12, *_said(PAPER_ISLANDS[n, count])])
    both = [title for name in ("accuracy", "NLL", "H_ep", "H_tot") for title in (name, "equal weights")]
    return table(["N", "P", "realizations", *both, "island ESS", "epochs", "alone, s", "ms", *PRINTED_NAMES], rows)


def _reference(islands: Sequence[Ran]) -> Ran | None:
    return next((each for each in islands if each and each["N"] == NODE), None)


def _growth_table(one: Sequence[Ran], islands: Sequence[Ran]) -> str:
    reference, rows = _reference(islands), []
    for samples in sorted({each["N"] for each in one} | PAPER_ONE.keys()):
        said = [f"{value:.0f} %" for value in paper_growth(samples)] if samples in PAPER_ONE else [""] * 4
        paper = [said[1], said[2], said[0], said[3]]
        there = [each for each in one if each["N"] == samples and each["processes"] <= 2]
        best = max((each for each in there if each), key=lambda each: each["processes"], default=None)
        if best is None or reference is None:
            rows.append([samples, *["not run"] * 4, *paper])
            continue
        both, epochs, pace = growth(best, reference)
        shown = [f"{value:.1f} %" for value in (epochs, pace, both)]
        rows.append([samples, best["processes"], *shown, *paper])
    ours = ["k", "more epochs", "more time an epoch", "more time"]
    printed = ["more epochs", "more time an epoch", "more time", "40 log₂(P/2)"]
    return table(["NP", *ours, *(f"paper's {name}" for name in printed)], rows)


def _network_table(one: Sequence[Ran]) -> str:
    there = [each for each in one if each]
    leapfrogs = np.mean([each.mean("epochs") / each.mean("stages") for each in there]) if there else LEAPFROGS
    node = PAPER_ISLANDS[NODE, 1]
    rows = []
    for processes in (2, 4, 8, 16, 32):
        model = partial(overhead, NODE * processes, DIMENSION, processes, leapfrogs=leapfrogs)
        shares = [model(network, epoch_seconds=node.seconds / node.epochs / NODE) for network in NETWORKS]
        said = f"{40 * np.log2(processes / 2):.0f} %"
        rows.append([processes, NODE * processes, *(f"{share:.2g} %" for share in shares), said])
    seen = "as measured above" if there else "assumed, since nothing has been run"
    head = ["nodes", "NP", *(network.name for network in NETWORKS), "paper's 40 log₂(P/2)"]
    return f"{table(head, rows)}\n\nStages have {leapfrogs:.0f} leapfrogs, {seen}."


def _facts(one: Sequence[Ran], islands: Sequence[Ran]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    reference = _reference(islands)
    for each in one:
        if each:
            found = [piece["found"] for piece in each.pieces]
            facts[each.cell.name] = {
                **{name: each.mean(name) for name in (*PRINTED, "stages")},
                "core_milliseconds": core_milliseconds(each),
                "communication": float(np.mean([communication_share(f) for f in found])),
                "waiting": float(np.mean([waiting_share(f, each["processes"]) for f in found])),
                "oversubscribed": found[0]["oversubscribed"],
                "growth": None if reference is None else growth(each, reference),
            }
    for each in islands:
        if each:
            scores = {name: np.mean(_values(each, name), axis=0).tolist() for name in (*SCORES, "island_ess")}
            cost = {"epochs": island_epochs(each), "core_milliseconds": core_milliseconds(each)}
            facts[each.cell.name] = {"P": each["P"], **scores, **cost}
    return facts


def _draw(figure: Any, *, one: Sequence[Ran], islands: Sequence[Ran]) -> None:
    scores, epochs, time = figure.subplots(1, 3)
    for each in islands:
        if each:
            values = np.mean(_values(each, "nll_evidence"), axis=0)
            scores.plot(each["N"] * np.array(each["P"]), values, marker=".", label=f"SMC∥, N = {each['N']}")
    points = sorted((each["N"], each.mean("nll")) for each in one if each)
    if points:
        scores.plot(*np.transpose(points), "k.", label="SMC")
    paper = sorted(PAPER_ONE)
    scores.plot(paper, [PAPER_ONE[n].nll for n in paper], "k+", label="SMC, paper")
    scores.set(xscale="log", xlabel="NP", ylabel="NLL")
    epochs.plot([NODE, *paper], [PAPER_ISLANDS[NODE, 1].epochs, *(PAPER_ONE[n].epochs for n in paper)], "k+-",
                label="paper")  # fmt: skip
    points = sorted([(each["N"], each.mean("epochs")) for each in one if each]
                    + [(each["N"], island_epochs(each)) for each in islands if each])  # fmt: skip
    if points:
        epochs.plot(*np.transpose(points), ".", label="isles")
    epochs.set(xscale="log", xlabel="particles of a sampler", ylabel="epochs")
    time.plot(paper, [paper_growth(n)[0] for n in paper], "k+-", label="paper, more time")
    time.plot(paper, [paper_growth(n)[2] for n in paper], "kx:", label="paper, more time an epoch")
    reference = _reference(islands)
    points = [(each["N"], growth(each, reference)[2]) for each in one
              if each and reference is not None and each["processes"] == 2]  # fmt: skip
    if points:
        time.plot(*np.transpose(sorted(points)), ".", label="isles, k = 2, an epoch")
    time.set(xscale="log", xlabel="NP", ylabel="%")
    for axis in (scores, epochs, time):
        axis.legend(fontsize="x-small")
