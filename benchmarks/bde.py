"""`python -m benchmarks.bde`: isles beside `sklearn-contrib-bde`, on the data and with the settings of its paper.

bde needs an environment of its own, `make .venv-bde/ready`; its data are inside its wheel.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp, ndtr
from sklearn.model_selection import train_test_split

import isles
from benchmarks import fits
from benchmarks.fits import ROOT, Fit, Row

NAME = "bde"
LEVEL = 0.9
SPLIT_SEED = (
    0  # that of its paper: one split, and runs that differ by their own seed; others follow with `--splits`
)
DROPPED = ("cnt", "casual", "registered", "instant", "dteday")  # columns of bike sharing that are no features
FILES = {"airfoil": "airfoil.csv", "bike sharing": "bike_sharing_dataset/hour.csv", "concrete": "concrete.data"}
SHARES = {"airfoil": 1.0, "bike sharing": 0.1, "concrete": 1.0}  # of the training rows, for two cores
HIDDEN = (16, 16, 16, 16)

# what its paper reports: RMSE and NLL, means over five runs on ten cores
PUBLISHED = {
    "airfoil": {"bde": (0.1215, -0.9126), "TabPFN v2": (0.1359, -0.9338), "XGBoost": (0.2025, None)},
    "bike sharing": {"bde": (0.2261, -0.7315), "TabPFN v2": (0.2103, -0.6856), "XGBoost": (0.2143, None)},
}
THEIRS: Row = {
    "n_members": 10, "hidden_layers": list(HIDDEN), "epochs": 1200, "validation_split": 0.15, "lr": 1e-3,
    "weight_decay": 1e-4, "warmup_steps": 50_000, "n_samples": 1000, "n_thinning": 10, "patience": 20,
}  # fmt: skip
# chosen by fits to 960 of airfoil's training rows and scores on the others, as docs/comparison.md tells
OURS: Row = {
    "hidden": list(HIDDEN), "prior_std": 2.0, "bias_prior_std": 1.0, "noise_prior_std": 1.5, "islands": 16,
    "chains": 1, "climb": 3000, "learning_rate": 0.01, "batch_rows": 64, "shrink": 0.4, "anneal": 0.3,
    "burn_in": 260, "draws": 40, "thin": 2, "leapfrogs": 200, "target_acceptance": 0.7, "mass": "fisher",
}  # fmt: skip
QUICK_THEIRS = THEIRS | {"n_members": 2, "epochs": 20, "warmup_steps": 50, "n_samples": 20}
QUICK_OURS = OURS | {
    "hidden": [4], "islands": 2, "chains": 2, "climb": 20, "burn_in": 10, "draws": 5, "thin": 1, "leapfrogs": 5,
}  # fmt: skip

Floats = np.ndarray[Any, Any]


def data_folder(interpreter: Path) -> Path:
    """Where bde's wheel put its data."""
    found = sorted(interpreter.parent.parent.glob("lib/python3*/site-packages/bde/data"))
    if not found:
        sys.exit(f"no bde in the environment of {interpreter}; build it by `make .venv-bde/ready`")
    return found[0]


def load(folder: Path, data: str, rows: int | None = None, split: int = SPLIT_SEED) -> dict[str, Floats]:
    """Rows for training and testing, standardised by those for training; of these a share, where it is said."""
    x, y = read_table(folder / FILES[data])
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=split)
    rows = rows or round(SHARES[data] * len(x_train))  # they are in random order already
    x_train, y_train = x_train[:rows], y_train[:rows]
    (x_mean, x_std), (y_mean, y_std) = ((part.mean(axis=0), part.std(axis=0)) for part in (x_train, y_train))
    x_std = np.where(x_std > 0, x_std, 1.0)
    scaled = lambda x, y: ((x - x_mean) / x_std, (y - y_mean) / y_std)
    (x_train, y_train), (x_test, y_test) = scaled(x_train, y_train), scaled(x_test, y_test)
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


def read_table(path: Path) -> tuple[Floats, Floats]:
    """Features and targets: `cnt` where there is such a column, else the last one."""
    lines = list(csv.reader(path.read_text().splitlines(), delimiter="," if path.suffix == ".csv" else " "))
    if path.suffix != ".csv":
        table = np.array(lines, float)
        return table[:, :-1], table[:, -1]
    names, body = lines[0], lines[1:]
    target = "cnt" if "cnt" in names else names[-1]
    column = lambda name: np.array([line[names.index(name)] for line in body], float)
    return np.column_stack([column(name) for name in names if name not in (target, *DROPPED)]), column(target)


def all_fits(options: Any) -> Iterator[Fit]:
    """Seed by seed, so that what is cut short still has both libraries."""
    interpreter, cores = Path(options.bde_python), options.cores
    folder = data_folder(interpreter)
    for seed, split in itertools.product(range(options.seeds), range(SPLIT_SEED, SPLIT_SEED + options.splits)):
        for data in options.data:
            rows = load(folder, data, 100 if options.quick else None, split)
            shared = {"data": data, "train": len(rows["y_train"]), "test": len(rows["y_test"]), "seed": seed}
            shared |= {"cores": cores} | ({"split": split} if split != SPLIT_SEED else {})
            theirs, ours = (QUICK_THEIRS, QUICK_OURS) if options.quick else (THEIRS, OURS)
            for method, settings, run in (
                ("bde", theirs | {"seed": seed}, partial(fit_bde, interpreter, cores)),
                ("isles", ours | {"seed": seed}, partial(fit_isles, cores)),
            ):
                if method in options.only:
                    name = f"{data}-{method}-{seed}".replace(" ", "_")
                    name += f"-split-{split}" if split != SPLIT_SEED else ""
                    yield Fit(name, shared | {"method": method, "model": settings}, partial(run, settings, rows))


def fit_bde(interpreter: Path, cores: int, settings: Row, data: dict[str, Floats]) -> Row:
    """bde in a process of its own. The seconds are of fit and predictions, with compilation, without imports."""
    with tempfile.TemporaryDirectory() as scratch:
        given, written = Path(scratch) / "data.npz", Path(scratch) / "draws.npz"
        np.savez(given, **data)
        # isolated: of the two modules that are named bde, the one of its wheel is meant
        command = [str(interpreter), "-I", str(Path(__file__).with_name("bde_peer.py"))]
        asked = json.dumps(settings | {"devices": cores})
        child = subprocess.run([*command, asked, str(given), str(written)], capture_output=True, text=True)
        if child.returncode:
            sys.exit(f"bde ended with exit code {child.returncode}: {child.stderr[-2000:]}")
        with np.load(written) as found:
            means, stds, seconds, trained = (found[name] for name in ("means", "stds", "seconds", "trained"))
            versions = dict(entry.rsplit(" ", 1) for entry in str(found["versions"]).split(", "))
    steps = 1 + settings["warmup_steps"] + settings["n_samples"]
    evaluations = trained * (1 - settings["validation_split"]) + 2 * steps * settings["n_members"]
    scores = score(means, stds, np.full(len(means), 1 / len(means)), data["y_test"])
    return scores | {
        "draws": len(means), "seconds": float(seconds), "evaluations": round(float(evaluations)),
        "versions": {f"bde's {name}" if name == "jax" else name: version for name, version in versions.items()},
    }  # fmt: skip


def estimator(settings: Row, cores: int) -> isles.IslesRegressor:
    """isles' regressor with chains that start at optima."""
    names = "leapfrogs", "target_acceptance", "mass"
    sampler = isles.MCMC(
        isles.HMC(**{name: settings[name] for name in names}),
        chains=settings["chains"],
        burn_in=settings["burn_in"],
        draws=settings["draws"],
        thin=settings["thin"],
        start=isles.Optimised(
            settings["climb"], settings["learning_rate"], settings["batch_rows"], settings["shrink"]
        ),
        anneal=settings["anneal"],
    )
    return isles.IslesRegressor(
        settings["hidden"], noise="predicted", noise_prior_std=settings["noise_prior_std"],
        prior_std=settings["prior_std"], bias_prior_std=settings["bias_prior_std"], sampler=sampler,
        islands=settings["islands"], engine="local" if cores > 1 else None, workers=cores if cores > 1 else None,
        standardise=False, random_state=settings["seed"],
    )  # fmt: skip


def fit_isles(cores: int, settings: Row, data: dict[str, Floats]) -> Row:
    """isles in a worker process for each core. The seconds hold their start and, by `main`, compilation."""
    start = time.perf_counter()
    model = estimator(settings, cores).fit(data["x_train"], data["y_train"])
    found = model.posterior_.predict(data["x_test"].astype(np.float32), per_draw=True)
    seconds = time.perf_counter() - start
    rows = len(data["y_test"])
    means, stds = (part.reshape(-1, rows) for part in (found.means, found.stds))
    diagnostics = model.posterior_.diagnostics()
    return score(means, stds, found.weights.ravel(), data["y_test"]) | {
        "draws": len(means), "seconds": seconds, "evaluations": model.posterior_.epochs.total,
        "warnings": list(diagnostics.warnings),
    }  # fmt: skip


def score(means: Floats, stds: Floats, weights: Floats, y: Floats) -> Row:
    """Scores of the mixture of Gaussians that draws (draws, rows) predict.

    `nll` is bde's formula: one Gaussian with the mixture's mean and variance. `mixture_nll` is the mixture's.
    """
    mean = weights @ means
    variance = weights @ (stds**2 + (means - mean) ** 2)
    gaussian = 0.5 * (np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance)
    z = (y - means) / stds
    parts = -0.5 * z * z - np.log(stds) - 0.5 * np.log(2 * np.pi)
    below = weights @ ndtr(z)  # the predictive distribution function at y: inside the interval, or in a tail
    tail = 0.5 * (1 - LEVEL)
    return {
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "nll": float(gaussian.mean()),
        "mixture_nll": float(-logsumexp(parts, b=weights[:, None], axis=0).mean()),
        "coverage": float(np.mean((below >= tail) & (below <= 1 - tail))),
    }


def ahead(rows: list[Row]) -> str:
    """Who has the smaller mean, figure by figure."""
    names = {"rmse": "RMSE", "nll": "NLL", "mixture_nll": "NLL of the mixture", "seconds": "seconds"}
    mean = lambda method, name: np.mean([row[name] for row in rows if row["settings"]["method"] == method])
    if {row["settings"]["method"] for row in rows} != {"isles", "bde"}:
        return ""
    theirs = [label for name, label in names.items() if mean("bde", name) < mean("isles", name)]
    ours = [label for label in names.values() if label not in theirs]
    return (
        f"bde is ahead in: {', '.join(theirs) or 'nothing'}. isles is ahead in: {', '.join(ours) or 'nothing'}.\n"
    )


def by_split(first: list[Row], others: list[Row]) -> str:
    """RMSE and NLL on each way to split the data into rows for training and testing."""
    if not others:
        return ""
    found: dict[int, dict[str, Row]] = {}
    for row in [*first, *others]:
        if row["settings"]["seed"] == 0:
            found.setdefault(row["settings"].get("split", SPLIT_SEED), {})[row["settings"]["method"]] = row
    head = ["split", *(f"{label}, {method}" for label in ("RMSE", "NLL") for method in ("isles", "bde"))]
    shown = lambda both, name: [
        f"{both[method][name]:.4f}" if method in both else "" for method in ("isles", "bde")
    ]
    lines = [[split, *shown(both, "rmse"), *shown(both, "nll")] for split, both in sorted(found.items())]
    return "The same on other random splits of the data (that of its paper is 0):\n\n" + fits.table(head, lines)


def figures(folder: Path) -> str:
    """A table for each data set: isles, bde here, and what bde's paper says."""
    rows = fits.read(folder)
    others = [row for row in rows if "split" in row["settings"]]
    rows = [row for row in rows if row not in others]
    parts = ["## Beside bde\n"]
    head = ["method", "runs", "RMSE", "NLL", "NLL of the mixture", "coverage", "draws", "gradients", "seconds"]
    for data in FILES:
        lines, here = [], [row for row in rows if row["settings"]["data"] == data]
        if not here:
            continue
        for method in ("isles", "bde"):
            found = [row for row in here if row["settings"]["method"] == method]
            if found:
                of = lambda name, found=found: [row[name] for row in found]
                scores = [fits.shown(of(name), 4) for name in ("rmse", "nll", "mixture_nll")]
                cost = [f"{np.mean(of('evaluations')):,.0f}", f"{np.mean(of('seconds')):.0f}"]
                drawn = f"{np.mean(of('draws')):.0f}"
                lines.append([method, len(found), *scores, f"{np.mean(of('coverage')):.3f}", drawn, *cost])
        published = PUBLISHED.get(data, {}).items()
        blank = [""] * 5
        lines += [
            [f"{name}, published", 5, rmse, "" if nll is None else nll, *blank] for name, (rmse, nll) in published
        ]
        sizes = here[0]["settings"]
        share = "" if SHARES[data] == 1 else f" ({SHARES[data]:.0%} of them; the published figures are of all)"
        parts.append(f"{data}: {sizes['train']} training rows{share}, {sizes['test']} test rows.\n")
        parts.append(fits.table(head, lines))
        parts.append(ahead(here))
        parts.append(by_split(here, [row for row in others if row["settings"]["data"] == data]))
    if not rows:
        parts.append("Not run.\n")
    else:
        parts.append(f"`python -m benchmarks.{NAME}`. {fits.provenance(rows)}")
    return "\n".join(parts)


def main() -> None:
    """What is left to be done, then the tables."""
    parser = fits.arguments("isles beside sklearn-contrib-bde")
    parser.add_argument("--bde-python", default=ROOT / ".venv-bde" / "bin" / "python", help="its interpreter")
    parser.add_argument("--data", nargs="+", choices=list(FILES), default=["airfoil", "bike sharing"])
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    parser.add_argument(
        "--splits", type=int, default=1, help="ways to split the data, the first that of its paper"
    )
    parser.add_argument("--cores", type=int, default=2, help="devices of bde, workers of isles")
    parser.add_argument("--only", nargs="+", choices=["bde", "isles"], default=["bde", "isles"])
    options = parser.parse_args()
    # both sides compile in every run: bde keeps no programs
    jax.config.update("jax_enable_compilation_cache", False)
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # of worker processes
    fits.main(NAME, options, all_fits(options))


if __name__ == "__main__":
    main()
