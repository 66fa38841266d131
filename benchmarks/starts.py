"""`python -m benchmarks.starts`: what `start="optimised"` saves of burn-in.

For several budgets of epochs, chains from prior draws and chains from optima spend all of it, the climb included,
on one draw each; the test NLL of these draws together is compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import isles
from benchmarks import bde, fits
from benchmarks.fits import Fit, Row
from isles import padding
from isles.models import MLP

NAME = "starts"
CHAINS = 16
# epochs of a chain; the climb takes half of a budget at most
BUDGETS = {"airfoil": [500, 1000, 2000, 4000, 8000, 16_000], "mnist": [100, 200, 400, 800, 1600]}
CLIMBS = {"airfoil": 1000, "mnist": 100}
BATCH_ROWS = 50
SHRINK = {"airfoil": bde.OURS["shrink"], "mnist": 1.0}
LEAPFROGS = {"airfoil": 50, "mnist": 10}
STARTS = ("prior", "optimised")


def airfoil(interpreter: Path, quick: bool) -> tuple[isles.Problem, Any, Any]:
    """The problem of `benchmarks.bde`, and test rows."""
    data = bde.load(bde.data_folder(interpreter), "airfoil", 100 if quick else None)
    model = padding.build(MLP(5, (4,) if quick else bde.HIDDEN, 2), bde.OURS["prior_std"], "predicted")
    x_train, x_test = (data[name].astype(np.float32) for name in ("x_train", "x_test"))
    problem = isles.regression(model.network, model.prior, x_train, data["y_train"], noise_std="predicted")
    return problem, x_test, data["y_test"]


def mnist(interpreter: Path, quick: bool) -> tuple[isles.Problem, Any, Any]:
    """1000 images for training, 1000 for testing, and a convolutional network."""
    data = isles.data.load("mnist", train=50, test=50) if quick else isles.data.load("mnist")
    network = isles.models.mnist_cnn()
    prior = isles.Gaussian(network.shapes(), std=isles.models.kaiming(network))
    classes = {"classes": 10} if quick else {}
    return isles.classification(network, prior, data.x_train, data.y_train, **classes), data.x_test, data.y_test


PROBLEMS = {"airfoil": airfoil, "mnist": mnist}


def sampler(data: str, start: str, budget: int) -> isles.MCMC:
    """Chains that spend about `budget` epochs each."""
    climb, settle = (min(CLIMBS[data], budget // 2), min(64, budget // 8)) if start == "optimised" else (0, 0)
    kernel = isles.HMC(leapfrogs=LEAPFROGS[data], target_acceptance=0.8)
    steps = (budget - climb - settle) // LEAPFROGS[data]
    way = isles.Optimised(max(climb, 1), batch_rows=BATCH_ROWS, shrink=SHRINK[data], settle=settle)
    return isles.MCMC(kernel, CHAINS, burn_in=steps, start=way if climb else "prior")


def all_fits(options: Any) -> Iterator[Fit]:
    """Cheap budgets first."""
    budgets = {data: BUDGETS[data][: 2 if options.quick else None] for data in options.data}
    for place in range(max(map(len, budgets.values()))):
        for data in options.data:
            if place >= len(budgets[data]):
                continue
            for start in STARTS:
                budget = budgets[data][place]
                settings = {
                    "data": data,
                    "start": start,
                    "budget": budget,
                    **({"prior_std": bde.OURS["prior_std"]} if data == "airfoil" else {}),
                    "sampler": repr(sampler(data, start, budget)),
                }
                problem = partial(PROBLEMS[data], Path(options.bde_python), options.quick)
                yield Fit(
                    f"{data}-{start}-{budget:05d}", settings, partial(fit, problem, sampler(data, start, budget))
                )


def fit(make: Any, chains: isles.MCMC) -> Row:
    """The test NLL of one draw of each chain, and how far the chains got."""
    problem, x, y = make()
    start = time.perf_counter()
    posterior = isles.sample(problem, chains, seed=0)
    seconds = time.perf_counter() - start
    each = posterior.log_likelihood[np.isfinite(posterior.log_likelihood)]
    return {
        "nll": -float(posterior.log_predictive(x, y).mean()),
        "log_likelihood": float(each.mean()) if each.size else None,
        "lost": int(posterior.log_likelihood.size - each.size),
        "epochs": posterior.epochs.parallel,
        "seconds": seconds,
    }


def figures(folder: Path) -> str:
    """Test NLL and mean log-likelihood of the chains, budget by budget."""
    rows = fits.read(folder)
    if not rows:
        return "## Starting at optima\n\nNot run.\n"
    lines = []
    for data in BUDGETS:
        for budget in sorted({row["settings"]["budget"] for row in rows if row["settings"]["data"] == data}):
            found = {
                row["settings"]["start"]: row
                for row in rows
                if (row["settings"]["data"], row["settings"]["budget"]) == (data, budget)
            }
            cell = lambda start, key, digits, found=found: (
                f"{found[start][key]:.{digits}f}" if start in found and found[start][key] is not None else ""
            )
            scores = [cell(start, "nll", 3) for start in STARTS]
            lines.append([data, f"{budget:,}", *scores, *(cell(start, "log_likelihood", 0) for start in STARTS)])
    head = ["data", "epochs", *(f"test NLL, {start}" for start in STARTS)]
    head += [f"log-likelihood, {start}" for start in STARTS]
    origin = f"`python -m benchmarks.{NAME}`. {fits.provenance(rows)}"
    return f"## Starting at optima\n\n{fits.table(head, lines)}\n{origin}"


def main() -> None:
    """What is left to be done, then the table."""
    parser = fits.arguments("burn-in from prior draws and from optima")
    default = fits.ROOT / ".venv-bde" / "bin" / "python"
    parser.add_argument("--bde-python", default=default, help="whose environment holds the airfoil data")
    parser.add_argument("--data", nargs="+", choices=list(BUDGETS), default=list(BUDGETS))
    options = parser.parse_args()
    fits.main(NAME, options, all_fits(options))


if __name__ == "__main__":
    main()
