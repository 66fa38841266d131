"""What the comparisons of docs/comparison.md share: fits that are kept, tables made from them, and the page.

Every finished fit is a small JSON file, so a comparison can be stopped at any time, goes on where it stopped, and
shows what it has. A file with other settings than those asked for is another fit, and is made anew.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "comparison.md"
MARK = "<!-- figures: written by the commands above, not by hand -->"
COMPARISONS = ("tabular", "bde", "starts")

Row = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """One piece of work: its file's name, what decides its scores, and how it is done."""

    name: str
    settings: Row
    run: Callable[[], Row]


def arguments(about: str) -> argparse.ArgumentParser:
    """The options that all comparisons have."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--max-seconds", type=float, help="begin no fit after this many; call again to go on")
    parser.add_argument("--page", action="store_true", help="fit nothing: only write the tables of what is there")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, into build/quick; the page stays as it is"
    )
    return parser


def main(name: str, options: argparse.Namespace, fits: Iterable[Fit]) -> None:
    """Do what is left of the fits, then print the tables and put them into the page."""
    folder = ROOT / "build" / "quick" / name if options.quick else harness.RESULTS / name
    if not options.page:
        work(folder, fits, options.max_seconds)
    print(importlib.import_module(f"benchmarks.{name}").figures(folder))
    if not options.quick:
        write_page()


def work(folder: Path, fits: Iterable[Fit], max_seconds: float | None = None) -> None:
    """Run those fits that have no file yet."""
    start, left = time.monotonic(), 0
    for fit in fits:
        path = folder / f"{fit.name}.json"
        if path.exists() and json.loads(path.read_text())["settings"] == fit.settings:
            continue
        if max_seconds is not None and time.monotonic() - start >= max_seconds:
            left += 1
            continue
        print(f"{fit.name} ...", end=" ", flush=True)
        scores = fit.run()
        content = {"settings": fit.settings} | scores
        content |= {"machine": harness.machine(), "versions": versions() | scores.get("versions", {})}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content) + "\n")
        os.replace(partial, path)  # a kill leaves no half of a file
        print(f"{scores['seconds']:.1f} s", flush=True)
    if left:
        print(f"{left} fits are left; the same command goes on with them")


def versions() -> dict[str, str]:
    """Of what takes part in every comparison."""
    found = harness.versions()
    return {name: found[name] for name in ("python", "isles", "jax", "jaxlib", "numpy", "scikit-learn")}


def read(folder: Path) -> list[Row]:
    """All finished fits, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def table(head: list[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def shown(values: Any, digits: int = 3) -> str:
    """A mean, with its standard error where there are several values."""
    values = np.asarray(values, float)
    error = f" ± {standard_error(values):.{digits}f}" if values.size > 1 else ""
    return f"{values.mean():.{digits}f}{error}"


def standard_error(values: Any) -> float:
    """Of the mean of independent values."""
    values = np.asarray(values, float)
    return float(values.std(ddof=1) / np.sqrt(values.size))


def provenance(rows: list[Row]) -> str:
    """Machines and versions that fits were made with."""
    machines = sorted({f"{row['machine']['processor']}, {row['machine']['cores']} cores" for row in rows})
    found: dict[str, set[str]] = {}
    for row in rows:
        for library, version in row["versions"].items():
            found.setdefault(library, set()).add(version)
    libraries = ", ".join(f"{library} {' and '.join(sorted(seen))}" for library, seen in found.items())
    return f"On {' and '.join(machines)}; {libraries}.\n"


def figures() -> str:
    """The tables of all comparisons."""
    modules = [importlib.import_module(f"benchmarks.{name}") for name in COMPARISONS]
    return "\n".join(module.figures(harness.RESULTS / module.NAME) for module in modules)


def write_page() -> None:
    """Put the tables into the page, below its words."""
    words = PAGE.read_text().split(MARK)[0]
    PAGE.write_text(f"{words}{MARK}\n\n{figures()}")
