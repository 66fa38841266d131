"""Peak memory at the paper's sizes, and how it grows as particles, islands, rows and parameters double."""

# ruff: noqa: E402
from benchmarks import growth as times  # before JAX: it holds this process to one core
from benchmarks import harness

GOAL = times.GOAL

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import isles
from isles.models import CNN, MLP

# sizes at which what grows is more than the libraries themselves
USUAL = {"particles": 64, "islands": 2, "rows": 2000, "hidden": 256}
SIZES = {  # where others are needed for that
    "particles": USUAL | {"particles": 128},
    "islands": USUAL | {"islands": 16},
    "rows": {"particles": 8, "islands": 1, "rows": 50_000, "hidden": 16},
}
REAL = {
    "MNIST CNN, n = 1,000": (CNN(), 1000, 10, 1),
    "IMDb head, n = 25,000": (MLP(768, (128,), 2), 25_000, 2, 2),
    "CIFAR-10 head, n = 50,000": (MLP(2048, (128,), 10), 50_000, 10, 4),
}


def run_short(**sizes: int) -> dict[str, float]:
    """Peak memory of a short run."""
    times.case(**sizes, short=True)[1]()
    return {"mib": peak_mib()}


def run_real(name: str) -> dict[str, float]:
    """Peak memory of a short SMC run with 32 particles on a network and data of the paper's sizes."""
    network, rows, classes, _ = REAL[name]
    shape = network.image if isinstance(network, CNN) else (network.inputs,)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, *shape), np.float32)
    prior = isles.Gaussian(like=network.shapes(), std=0.01)
    problem = isles.classification(network, prior, x, rng.integers(0, classes, rows))
    isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=1), particles=32, mutations=1, schedule=[1.0]))
    return {"mib": peak_mib()}


def peak_mib() -> float:
    """Peak resident memory of this process; `getrusage` would add that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def in_child(name: str | None = None, **sizes: Any) -> dict[str, float]:
    """A run in a process of its own, so that its peak of memory is its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", json.dumps(name or sizes)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def at_real_sizes(report: harness.Report) -> None:
    """Program and libraries included; compilation too, if the programs are not on disk yet."""
    for name, (*_, limit) in REAL.items():
        gib = in_child(name)["mib"] / 1024
        report.row(
            f"{name}, SMC with N = 32", "peak memory, GiB", f"{gib:.2f}", f"< {limit}", gib < limit, gib=gib
        )


def growth(report: harness.Report) -> None:
    """Four doublings of each size: memory that is added to the smallest run's."""
    for name, symbol in times.NAMES.items():
        base = SIZES.get(name, USUAL)
        sizes = [base[name] << k for k in range(times.DOUBLINGS + 1)]
        runs = [base | {name: size} for size in sizes]
        for run in runs:  # leaves programs on disk: to compile takes more memory than the smallest runs
            in_child(**run)
        mib = [in_child(**run)["mib"] for run in runs]
        x = (
            [float(times.INPUTS * h + h + 2 * h + 2) for h in sizes]
            if name == "hidden"
            else list(map(float, sizes))
        )
        # at least a MiB: noise of the allocator may make a run that needs no more look smaller
        added = [max(later - mib[0], 1.0) for later in mib[1:]]
        value = times.exponent([later - x[0] for later in x[1:]], added)
        report.row(
            f"{symbol} from {x[0]:.0f} to {x[-1]:.0f}", "exponent of added memory", f"{value:.2f}", GOAL,
            value <= 1.05, x=x, mib=mib,
        )  # fmt: skip
        report.write()  # all of it takes long


def main() -> None:
    """All of it, or one run for `in_child`."""
    if len(sys.argv) > 1:
        asked = json.loads(sys.argv[1])
        print(json.dumps(run_real(asked) if isinstance(asked, str) else run_short(**asked)))
        return
    report = harness.Report("memory")
    at_real_sizes(report)
    growth(report)


if __name__ == "__main__":
    main()
