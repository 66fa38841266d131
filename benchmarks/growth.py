"""How time and memory grow as particles, islands, rows and parameters double; and with workers."""

# ruff: noqa: E402
from benchmarks import harness

harness.one_core()

import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

import isles
from isles.models import CNN, MLP

BASE = {"particles": 32, "islands": 1, "rows": 2000, "hidden": 16}
GROWTH = {
    "particles": [32, 64, 128, 256, 512],
    "islands": [1, 2, 4, 8, 16],
    "rows": [2000, 4000, 8000, 16000, 32000],
    "hidden": [16, 32, 64, 128, 256],
}
INPUTS = 64
NAMES = {"particles": "N", "islands": "P", "rows": "n", "hidden": "d"}


REAL = {
    "MNIST CNN, n = 1,000": (CNN(), 1000, 10, 1),
    "IMDb head, n = 25,000": (MLP(768, (128,), 2), 25_000, 2, 2),
    "CIFAR-10 head, n = 50,000": (MLP(2048, (128,), 10), 50_000, 10, 4),
}


def run(particles: int, islands: int, rows: int, hidden: int) -> dict[str, float]:
    """Seconds and peak memory of an SMC run without compilation: the second of two in this process."""
    rng = np.random.default_rng(0)
    network = MLP(INPUTS, (hidden,), 2)
    x = rng.standard_normal((rows, INPUTS), np.float32)
    problem = isles.classification(network, isles.Gaussian(like=network.shapes(), std=0.1), x, x[:, 0] > 0)
    sampler = isles.SMC(isles.HMC(leapfrogs=2), particles=particles, mutations=4, schedule=[0.001, 0.01, 0.1, 1.0])
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        isles.sample(problem, sampler, islands=islands, islands_per_block=1, keep="all")
        seconds.append(time.perf_counter() - start)
    return {"seconds": float(np.median(seconds[1:])), "mib": peak_mib(), "parameters": problem.dimension}


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
    """Peak resident memory of this process."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_child(name: str | None = None, **sizes: int) -> dict[str, float]:
    """A run in a process of its own, so that its peak of memory is its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.growth", json.dumps(name or sizes)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def slope(x: list[float], y: list[float]) -> float:
    """The exponent of a power law through the points."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def growth(report: harness.Report) -> None:
    """Four doublings of each size. Memory is counted beyond what the smallest run needs."""
    floor = in_child(particles=1, islands=1, rows=16, hidden=1)["mib"]
    for name, sizes in GROWTH.items():
        points = [in_child(**(BASE | {name: size})) for size in sizes]
        x = [point["parameters"] for point in points] if name == "hidden" else [float(size) for size in sizes]
        seconds, mib = [p["seconds"] for p in points], [max(p["mib"] - floor, 1.0) for p in points]
        what = f"{NAMES[name]} from {x[0]:.0f} to {x[-1]:.0f}"
        # noise of a few per cent in five points moves the exponent by about 0.05
        report.row(
            what,
            "exponent of seconds",
            f"{slope(x, seconds):.2f}",
            "≤ 1 (+0.05)",
            slope(x, seconds) <= 1.05,
            x=x,
            seconds=seconds,
        )
        report.row(
            what,
            "exponent of memory beyond the program",
            f"{slope(x, mib):.2f}",
            "≤ 1 (+0.05)",
            slope(x, mib) <= 1.05,
            x=x,
            mib=mib,
        )


def memory(report: harness.Report) -> None:
    """Peak resident memory at the paper's sizes, program and libraries included."""
    for name, (*_, limit) in REAL.items():
        gib = in_child(name)["mib"] / 1024
        report.row(
            f"{name}, SMC with N = 32", "peak memory, GiB", f"{gib:.2f}", f"< {limit}", gib < limit, gib=gib
        )


def workers(report: harness.Report) -> None:
    """The MNIST network, P = 4 islands: two workers against one."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # workers have one thread each; the parent only waits
    rng = np.random.default_rng(0)
    network = CNN()
    x, y = rng.random((1000, 28, 28), np.float32), rng.integers(0, 10, 1000)
    problem = isles.classification(network, isles.Gaussian(like=network.shapes(), std=0.1), x, y)

    def seconds(islands: int, workers: int, mutations: int = 8) -> float:
        sampler = isles.SMC(
            isles.HMC(leapfrogs=4, step_size=1e-3),
            particles=32,
            mutations=mutations,
            schedule=[0.001, 0.01, 0.1, 1.0],
        )
        start = time.perf_counter()
        isles.sample(problem, sampler, islands=islands, engine="local", workers=workers)
        return time.perf_counter() - start

    cases: dict[str, Any] = {
        "P = 4, 1 worker": lambda: seconds(4, 1),
        "P = 4, 2 workers": lambda: seconds(4, 2),
        "P = 2, 1 worker": lambda: seconds(2, 1),
    }
    taken = harness.alternate(cases)
    what = "MNIST CNN, worker processes, one thread each"
    share = harness.ratio(taken["P = 4, 2 workers"], taken["P = 4, 1 worker"])
    report.row(
        what,
        "P = 4: time of 2 workers over 1",
        harness.shown(share),
        "≤ 0.55",
        share["median"] <= 0.55,
        ratio=share,
        seconds=taken,
    )
    flat = harness.ratio(taken["P = 4, 2 workers"], taken["P = 2, 1 worker"])
    report.row(
        what, "P = 4 on 2 workers over P = 2 on 1", harness.shown(flat), "≤ 1.1", flat["median"] <= 1.1, ratio=flat
    )


def main() -> None:
    """All of it, or one run for `in_child`."""
    if len(sys.argv) > 1:
        asked = json.loads(sys.argv[1])
        print(json.dumps(run_real(asked) if isinstance(asked, str) else run(**asked)))
        return
    report = harness.Report("growth")
    growth(report)
    memory(report)
    workers(report)
    report.write()


if __name__ == "__main__":
    main()
