"""What all benchmarks share: measurements taken in turn, ratios with their spread, a table and a JSON file.

These are ratios of times taken alternately in one process, on one core, because other work on a machine
disturbs all of them alike. Import this before JAX: it fixes the threads.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
ROUNDS = 5
RESULTS = Path(__file__).parent / "results"
LIBRARIES = [
    "isles",
    "jax",
    "jaxlib",
    "numpy",
    "scikit-learn",
    "torch",
    "blackjax",
    "numpyro",
    "pymc",
    "particles",
]


def one_core() -> None:
    """Hold this process, and everything it imports from now on, to one core and one thread."""
    if "jax" in sys.modules or "torch" in sys.modules:
        raise RuntimeError("call one_core() before jax or torch is imported: they read the number of threads once")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {CORE})
    for name in ["NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]:
        os.environ[name] = "1"


def alternate(cases: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of each case in each round, after one call of each that is not counted.

    A case waits for its own result (`jax.block_until_ready`).
    """
    for case in cases.values():
        case()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(over: list[float], under: list[float]) -> dict[str, float]:
    """Median, smallest and largest ratio of two measurements taken in turn."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    return {"median": median(ratios), "least": min(ratios), "most": max(ratios)}


def shown(ratio: dict[str, float]) -> str:
    """A ratio with its spread."""
    return f"{ratio['median']:.3g} ({ratio['least']:.3g} to {ratio['most']:.3g})"


class Report:
    """Rows of one benchmark: printed as they come, written as JSON at the end."""

    def __init__(self, name: str) -> None:
        self.name, self.rows = name, list[dict[str, Any]]()

    def row(self, what: str, figure: str, value: str, goal: str = "", met: bool | None = None, **raw: Any) -> None:
        """One line: what was measured, which figure, its value, the goal and whether it was met; raw numbers."""
        self.rows.append({"what": what, "figure": figure, "value": value, "goal": goal, "met": met, "raw": raw})
        verdict = {True: "met", False: "OPEN", None: ""}[met]
        print(f"{what:48s} {figure:44s} {value:26s} {goal:14s} {verdict}", flush=True)

    def write(self) -> None:
        """Put the rows into `benchmarks/results`, with machine and versions."""
        RESULTS.mkdir(exist_ok=True)
        content = {"benchmark": self.name, "machine": machine(), "versions": versions(), "rows": self.rows}
        (RESULTS / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """The processor and its number of cores."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {"processor": model, "cores": os.cpu_count(), "system": platform.system()}


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that are installed."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
