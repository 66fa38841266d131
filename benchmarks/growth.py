"""How time and memory grow as particles, islands, rows and parameters double; and with workers."""

# ruff: noqa: E402
from benchmarks import harness

harness.one_core()

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import isles
from isles.models import CNN, MLP

# for seconds, and for memory: there the sizes are such that what grows is more than the libraries themselves
TIME = {"particles": 32, "islands": 1, "rows": 2000, "hidden": 16}
MEMORY = {"particles": 64, "islands": 2, "rows": 2000, "hidden": 256}
MEMORY_OF = {  # where what is held while the program is compiled would hide the first doublings
    "islands": MEMORY | {"islands": 8},
    "rows": {"particles": 8, "islands": 1, "rows": 50_000, "hidden": 16},
}
DOUBLINGS = 4
INPUTS = 64
GOAL = "≤ 1 (+0.05)"
NAMES = {"particles": "N", "islands": "P", "rows": "n", "hidden": "d"}


REAL = {
    "MNIST CNN, n = 1,000": (CNN(), 1000, 10, 1),
    "IMDb head, n = 25,000": (MLP(768, (128,), 2), 25_000, 2, 2),
    "CIFAR-10 head, n = 50,000": (MLP(2048, (128,), 10), 50_000, 10, 4),
}


def case(particles: int, islands: int, rows: int, hidden: int, *, short: bool) -> tuple[isles.Problem, Any]:
    """A problem with so many rows and hidden units, and a run of SMC on it."""
    rng = np.random.default_rng(0)
    network = MLP(INPUTS, (hidden,), 2)
    x = rng.standard_normal((rows, INPUTS), np.float32)
    problem = isles.classification(network, isles.Gaussian(like=network.shapes(), std=0.1), x, x[:, 0] > 0)
    leapfrogs, mutations, schedule = (1, 1, [1.0]) if short else (2, 4, [0.001, 0.01, 0.1, 1.0])
    sampler = isles.SMC(isles.HMC(leapfrogs=leapfrogs), particles, mutations, schedule=schedule)
    return problem, lambda: isles.sample(problem, sampler, islands=islands, islands_per_block=1)


def run_short(**sizes: int) -> dict[str, float]:
    """Peak memory of a short run."""
    case(**sizes, short=True)[1]()
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
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.growth", json.dumps(name or sizes)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def exponent(x: list[float], y: list[float]) -> float:
    """The exponent of a power law through the points."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def growth(report: harness.Report) -> None:
    """Four doublings of each size: seconds, sizes in turn; and memory that is added to the smallest run's."""
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

        base = MEMORY_OF.get(name, MEMORY)
        sizes = [base[name] << k for k in range(DOUBLINGS + 1)]
        mib = [in_child(**(base | {name: size}))["mib"] for size in sizes]
        x = [float(INPUTS * h + h + 2 * h + 2) for h in sizes] if name == "hidden" else list(map(float, sizes))
        # at least a MiB: noise of the allocator may make a run that needs no more look smaller
        added = [max(later - mib[0], 1.0) for later in mib[1:]]
        value = exponent([later - x[0] for later in x[1:]], added)
        report.row(
            f"{symbol} from {x[0]:.0f} to {x[-1]:.0f}", "exponent of added memory", f"{value:.2f}", GOAL,
            value <= 1.05, x=x, mib=mib,
        )  # fmt: skip
        report.write()  # all of it takes long


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

    # 49 epochs a particle: a third of the paper's shortest useful runs, and long beside the start of a process
    kernel = isles.HMC(leapfrogs=3, step_size=1e-3)
    sampler = isles.SMC(kernel, particles=32, mutations=4, schedule=[0.01, 0.1, 0.3, 1.0])

    def seconds(islands: int, workers: int) -> float:
        start = time.perf_counter()
        isles.sample(problem, sampler, islands=islands, engine="local", workers=workers)
        return time.perf_counter() - start

    cases: dict[str, Any] = {
        "P = 4, 1 worker": lambda: seconds(4, 1),
        "P = 4, 2 workers": lambda: seconds(4, 2),
        "P = 2, 1 worker": lambda: seconds(2, 1),
    }
    taken = harness.alternate(cases)
    what = "MNIST CNN, islands of 49 epochs, worker processes, one thread each"
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
        print(json.dumps(run_real(asked) if isinstance(asked, str) else run_short(**asked)))
        return
    report = harness.Report("growth")
    for part in (memory, growth, workers):  # the last one takes all cores
        part(report)
        report.write()


if __name__ == "__main__":
    main()
