"""How time grows as particles, islands, rows and parameters double; and with workers."""

# ruff: noqa: E402
from benchmarks import harness

harness.one_core()

import os
import time
from functools import partial
from typing import Any

import numpy as np

import isles
from isles.models import CNN, MLP

TIME = {"particles": 32, "islands": 1, "rows": 2000, "hidden": 16}
DOUBLINGS = 4
INPUTS = 64
GOAL = "≤ 1 (+0.05)"
NAMES = {"particles": "N", "islands": "P", "rows": "n", "hidden": "d"}


def case(particles: int, islands: int, rows: int, hidden: int, *, short: bool) -> tuple[isles.Problem, Any]:
    """A problem with so many rows and hidden units, and a run of SMC on it."""
    rng = np.random.default_rng(0)
    network = MLP(INPUTS, (hidden,), 2)
    x = rng.standard_normal((rows, INPUTS), np.float32)
    problem = isles.classification(network, isles.Gaussian(like=network.shapes(), std=0.1), x, x[:, 0] > 0)
    leapfrogs, mutations, schedule = (1, 1, [1.0]) if short else (2, 4, [0.001, 0.01, 0.1, 1.0])
    sampler = isles.SMC(isles.HMC(leapfrogs=leapfrogs), particles, mutations, schedule=schedule)
    return problem, lambda: isles.sample(problem, sampler, islands=islands, islands_per_block=1)


def exponent(x: list[float], y: list[float]) -> float:
    """The exponent of a power law through the points."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def growth(report: harness.Report) -> None:
    """Four doublings of each size, in turn."""
    for name, symbol in NAMES.items():
        sizes = [TIME[name] << k for k in range(DOUBLINGS + 1)]
        cases = [case(**(TIME | {name: size}), short=False) for size in sizes]
        taken = harness.alternate({str(size): run for size, (_, run) in zip(sizes, cases, strict=True)})
        x = [float(problem.dimension) for problem, _ in cases] if name == "hidden" else list(map(float, sizes))
        each = [exponent(x, list(seconds)) for seconds in zip(*taken.values(), strict=True)]
        spread = {"median": float(np.median(each)), "least": min(each), "most": max(each)}
        # noise of a few per cent in five points moves an exponent by about 0.05
        report.row(
            f"{symbol} from {x[0]:.0f} to {x[-1]:.0f}", "exponent of seconds", harness.shown(spread), GOAL,
            spread["median"] <= 1.05, x=x, seconds=taken,
        )  # fmt: skip
        report.write()  # all of it takes long


def workers(report: harness.Report) -> None:
    """The MNIST network, P = 4 islands: two workers against one.

    Islands of 145 epochs are about as long as the paper's with M = 5, its shortest that are of use. In those of a
    third of that, the two seconds that a worker takes to start can be seen.
    """
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # workers have one thread each; the parent only waits
    rng = np.random.default_rng(0)
    network = CNN()
    x, y = rng.random((1000, 28, 28), np.float32), rng.integers(0, 10, 1000)
    problem = isles.classification(network, isles.Gaussian(like=network.shapes(), std=0.1), x, y)

    def seconds(leapfrogs: int, islands: int, workers: int) -> float:
        kernel = isles.HMC(leapfrogs=leapfrogs, step_size=1e-3)
        sampler = isles.SMC(kernel, particles=32, mutations=4, schedule=[0.01, 0.1, 0.3, 1.0])
        start = time.perf_counter()
        isles.sample(problem, sampler, islands=islands, engine="local", workers=workers)
        return time.perf_counter() - start

    for leapfrogs in (3, 9):
        what = f"MNIST CNN, islands of {1 + 16 * leapfrogs} epochs, worker processes, one thread each"
        cases = {f"P = 4, {k} worker": partial(seconds, leapfrogs, 4, k) for k in (1, 2)}
        if leapfrogs == 3:
            cases["P = 2, 1 worker"] = partial(seconds, leapfrogs, 2, 1)
        taken = harness.alternate(cases)
        share = harness.ratio(taken["P = 4, 2 worker"], taken["P = 4, 1 worker"])
        goal: Any = ("≤ 0.55", share["median"] <= 0.55) if leapfrogs == 9 else ()
        report.row(
            what, "P = 4: time of 2 workers over 1", harness.shown(share), *goal, ratio=share, seconds=taken
        )
        if "P = 2, 1 worker" in taken:
            flat = harness.ratio(taken["P = 4, 2 worker"], taken["P = 2, 1 worker"])
            goal = "≤ 1.1", flat["median"] <= 1.1
            report.row(what, "P = 4 on 2 workers over P = 2 on 1", harness.shown(flat), *goal, ratio=flat)
        report.write()


def main() -> None:
    """All of it."""
    report = harness.Report("growth")
    for part in (growth, workers):  # the last one takes all cores
        part(report)
        report.write()


if __name__ == "__main__":
    main()
