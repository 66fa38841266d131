"""`python -m experiments.choosing`: the tables of docs/choosing.md, from what studies have found."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from experiments.studies.page import number, table

from isles.reproduce.page import one_of_each_kind

ROOT = Path(__file__).parent
NETWORKS = {  # experiments of `isles reproduce`, and what they are called here
    "mnist-short": "MNIST, a convolutional network, 1000 training images, one leapfrog a step",
    "mnist-trajectory": "The same network, trajectories of fixed length",
    "imdb-short": "IMDb, a head of 98,690 parameters on frozen sentence embeddings, one leapfrog a step",
    "imdb-trajectory": "The same head, trajectories of length 0.1",
    "cifar10-short": "CIFAR-10, a head of 263,562 parameters on frozen features, one leapfrog a step",
}
PAGE = ROOT.parent / "docs" / "choosing.md"
MARK = "<!-- tables: written by `python -m experiments.choosing`, not by hand -->"


def found(name: str) -> Any:
    """The tables of a study that was run; nothing for one that was not."""
    path = ROOT / name / "results.json"
    return json.loads(path.read_text())["tables"] if path.exists() else {}


def spread(one: Any) -> str:
    """Variance of log Z over islands."""
    value = one["log_evidence_variance"]
    return "" if value is None or np.isnan(value) else f"{value:.2g}"


def how_long() -> str:
    """M at N = 32 on the Gaussian of the exchange study."""
    cells = found("exchange")["mse"]
    of = {m: cells[f"trade-n32-m{m}"] for m in (1, 2, 4, 8, 16, 32, 64)}
    rows = [[m, number(one["evidence"]), number(one["equal"]), spread(one)] for m, one in of.items()]
    return (
        "## Mutations, measured\n\n32 islands of 32 particles, pCN, a Gaussian in 16 dimensions with precise "
        "data: MSE.\n\n" + table(["M", "evidence weights", "equal weights", "Var log Z"], rows)
    )


def how_many() -> str:
    """N against P at NP = 65,536."""
    cells = found("exchange")["mse"]
    rows = []
    for p in (1, 16, 64, 256, 1024, 2048, 4096, 8192, 16384):
        one = cells[f"large-n{65_536 // p}-m16"]
        rows.append([65_536 // p, p, number(one["median"]), spread(one)])
    return (
        "## Particles and islands, measured\n\nThe same Gaussian, 65,536 particles in all, M = 16: median "
        "error.\n\n" + table(["N", "P", "evidence weights", "Var log Z"], rows)
    )


def which() -> str:
    """One mode, several modes."""
    labels = {
        "smc-hmc": "SMC∥-HMC",
        "smc-pcn": "SMC∥-pCN",
        "hmc-parallel": "HMC∥",
        "pcn-parallel": "pCN∥",
        "ais": "AIS",
    }
    credit = [[label, number(found("credit")[name]["variance"][-1])] for name, label in labels.items()]
    mixture = found("singletons")
    names = {
        "mixture-smc-m4-n512": "SMC, M = 4, N = 512",
        "mixture-smc-m16-n512": "SMC, M = 16, N = 512",
        "mixture-parallel-b128-l65536": "HMC chains of 128 steps",
        "mixture-hmc-l65536": "HMC, one chain",
    }
    two = [[label, number(mixture[name]["mse"]), number(mixture[name]["epochs"])] for name, label in names.items()]
    return (
        "## SMC∥ and MCMC∥, measured\n\nOne mode: logistic regression, 64 processes of 32 particles or chains, "
        "about 2000 evaluations a particle.\n\n"
        + table(["method", "variance of the posterior mean"], credit)
        + "\n\nTwo modes: a mixture of Gaussians in 16 dimensions.\n\n"
        + table(["method", "MSE", "epochs"], two)
    )


def networks() -> str:
    """For every length, each method with one island and with the most that all its realizations have."""
    parts = []
    for name, title in NETWORKS.items():
        path = ROOT / name / "results.json"
        if not path.exists():
            continue
        methods = {
            one["name"]: one for one in tomllib.loads((ROOT / name / "settings.toml").read_text())["method"]
        }
        rows = []
        for method, about in methods.items():
            ran = [cell for cell in json.loads(path.read_text())["cells"] if cell["method"] == method]
            ran = [cell for cell in ran if cell["realizations"]]
            ends = {cell["P"] for cell in ran}
            for cell in ran:
                one = cell["P"] == 1 and cell["weights"] == "evidence"  # with one island all weights are equal
                if cell["P"] in {min(ends), max(ends)} and not one:
                    scores = [f"{np.mean(cell['values'][kind]):.3g}" for kind in ("accuracy", "nll", "epistemic")]
                    weights = cell["weights"] if about["sampler"] == "smc" and cell["P"] > 1 else ""
                    share = f"{cell['P']}/{about['parts']} of the chain" if about.get("shares") else cell["P"]
                    rows.append(
                        [about["group"], about["column"], share, weights, *scores, f"{cell['epochs']:.3g}"]
                    )
        headings = ["length", "method", "P", "weights", "accuracy, %", "NLL", "H_ep", "epochs"]
        parts.append(f"{title} ([all of it](../experiments/{name})):\n\n{table(headings, rows)}")
    return "\n\n".join(["## Networks, measured", *parts]) if parts else ""


def ensembles() -> str:
    """Scores over cost; nothing as long as the study was not run."""
    rows = []
    for label, one in found("ensembles").items():
        scores = [number(float(np.mean(one[name]))) for name in ("accuracy", "nll", "ece", "auroc")]
        rows.append([label, *scores, f"{one['total_epochs']:.3g}"])
    if not rows:
        return ""
    body = table(["method", "accuracy", "NLL", "ECE", "AUROC", "epochs"], rows)
    return "## Deep ensembles, measured\n\nMNIST, a convolutional network, 1000 training images.\n\n" + body


def warnings() -> Iterator[str]:
    """What runs said that were too short, one message of each kind."""
    paths = [ROOT / name / "results.json" for name in ("exchange", "singletons", "credit", *NETWORKS)]
    said = [json.loads(path.read_text())["warnings"] for path in paths if path.exists()]
    messages = [message for each in said for message in each if not message[0].isdigit()]
    return (f"- {message}" for message in one_of_each_kind(messages))


def tables() -> str:
    """All of them."""
    said = "## What runs say\n\n" + "\n".join(warnings())
    return "\n\n".join(filter(None, [how_long(), how_many(), which(), networks(), ensembles(), said])) + "\n"


def main() -> None:
    """Put them into the page."""
    words = PAGE.read_text().split(MARK)[0]
    PAGE.write_text(f"{words}{MARK}\n\n{tables()}")


if __name__ == "__main__":
    main()
