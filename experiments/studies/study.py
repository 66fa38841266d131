"""What a study is: cells of settings that are run in pieces, a queue, and the small files that pieces leave."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import time
import tomllib
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUDGETS = ("quick", "standard", "paper")
# in the order of a reader's interest
NAMES = (
    "credit", "free-parameters", "exchange", "singletons", "theory", "evidence",
    "subsets", "rows", "averages", "ensembles", "communication", "speed",
)  # fmt: skip
COMPILING, STARTING = 5.0, 0.5  # seconds that the first piece of a cell and the others take before they compute


@dataclass(frozen=True)
class Cell:
    """One setting of a method."""

    name: str  # of its file
    facts: Mapping[str, Any]  # all that its numbers depend on, besides the part and the seed
    parts: int  # pieces that a budget wants of it
    epochs: float  # expected particle-epochs of a piece
    kind: str  # cells of a kind take about the same time for an epoch


@dataclass(frozen=True)
class Study:
    """Cells, and the folder where their pieces are kept."""

    name: str
    folder: Path
    title: str
    about: str
    left_out: str
    rates: Mapping[str, float]  # kind -> particle-epochs a second of one core, measured once
    cells: tuple[Cell, ...]
    module: str  # that runs and tells it
    alone: bool  # whether a piece uses all cores, and is timed

    def seed(self, cell: Cell, part: int) -> int:
        """Another one for every piece."""
        return zlib.crc32(f"{self.name}/{cell.name}/{part}".encode()) & 0x7FFFFFFF

    def path(self, cell: Cell) -> Path:
        """Where the pieces of a cell are kept, a line each."""
        return self.folder / "pieces" / f"{cell.name}.jsonl"

    def queue(self) -> list[tuple[Cell, int]]:
        """All pieces: the first part of every cell, then the second, so that tables are whole early."""
        most = max((cell.parts for cell in self.cells), default=0)
        return [(cell, part) for part in range(most) for cell in self.cells if part < cell.parts]

    def left(self) -> list[tuple[Cell, int]]:
        """Pieces that have not been run."""
        done = {cell.name: {piece["part"] for piece in self.pieces(cell)} for cell in self.cells}
        return [(cell, part) for cell, part in self.queue() if part not in done[cell.name]]

    def pieces(self, cell: Cell) -> list[dict[str, Any]]:
        """What has been run of a cell, by any budget."""
        path = self.path(cell)
        lines = path.read_text().splitlines() if path.exists() else []
        found = [piece for line in lines if (piece := _read(line)) is not None]
        kept = sorted({piece["part"]: piece for piece in found}.values(), key=lambda piece: piece["part"])
        for piece in kept:
            if piece["facts"] != _plain(cell.facts):
                raise ValueError(
                    f"{self.name}: pieces of {cell.name} were run with {piece['facts']}, the settings are now "
                    f"{_plain(cell.facts)}; remove pieces/{cell.name}.jsonl, or change study.toml back"
                )
        return kept


def load(name: str, budget: str = "standard", folder: Path = ROOT) -> Study:
    """The study of that name; with the budget "quick" a small one of the same kind, in a folder of its own."""
    if name not in NAMES:
        raise ValueError(f"study {name!r} is none of {', '.join(NAMES)}")
    if budget not in BUDGETS:
        raise ValueError(f"budget {budget!r} is none of {', '.join(BUDGETS)}")
    facts = tomllib.loads((folder / name / "study.toml").read_text())
    module = f"experiments.studies.{name.replace('-', '_')}"
    sizes = facts["sizes"] | facts[budget]
    quick = budget == "quick"
    return Study(
        name=name,
        folder=folder / name / "quick" if quick else folder / name,
        title=facts["title"] + (": a quick trial, whose figures mean nothing" if quick else ""),
        about=facts["about"].strip(),
        left_out=facts["left_out"].strip(),
        rates=facts["rates"],
        cells=tuple(importlib.import_module(module).cells(sizes)),
        module=module,
        alone=facts.get("alone", False),
    )


def run(
    study: Study, *, max_seconds: float | None = None, workers: int = 1, say: Callable[[str], None] = print
) -> bool:
    """Run what is left, until all is done or no piece may begin any more; whether all is done.

    Args:
        study: what to run.
        max_seconds: no piece begins after so long.
        workers: processes, each with one thread; 1 is this process, which runs pieces that want to be alone.
        say: told what is finished.
    """
    begun, left = time.monotonic(), study.left()
    total = len(left)
    late = lambda: max_seconds is not None and time.monotonic() - begun >= max_seconds
    if workers == 1 or study.alone:
        for number, (cell, part) in enumerate(left, 1):
            if late():
                return False
            say(f"{study.name} {number}/{total}: {run_piece(study, cell, part)}")
        return True
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        under_way, number = set[Future[str]](), 0
        while under_way or (left and not late()):
            while left and len(under_way) < workers and not late():
                under_way.add(pool.submit(run_piece, study, *left.pop(0)))
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                number += 1
                say(f"{study.name} {number}/{total}: {future.result()}")
    return not left


def _cpu_seconds() -> float:
    """Of this process and of children that have ended; others may use the machine too."""
    return sum(os.times()[:4])


def _one_thread() -> None:
    os.environ["NPROC"] = "1"  # read when JAX is imported, later: sums are rounded alike on every machine


def run_piece(study: Study, cell: Cell, part: int) -> str:
    """Run one piece and keep what it found; what to say of it."""
    import isles

    begun, seed = _cpu_seconds(), study.seed(cell, part)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", isles.IslesWarning)
        found = importlib.import_module(study.module).run(cell.facts, part, seed)
    seconds = _cpu_seconds() - begun
    kept = {
        "cell": cell.name,
        "facts": cell.facts,
        "part": part,
        "seed": seed,
        "particle_epochs": int(found.pop("particle_epochs")),
        "seconds": round(seconds, 2),
        "commit": commit(),
        "warnings": sorted({str(each.message) for each in caught if each.category is isles.IslesWarning}),
        "found": found,
    }
    path = study.path(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(kept, default=short, separators=(",", ":"))
    with open(path, "ab", buffering=0) as file:  # one write, so that lines of several processes do not mix
        file.write(f"\n{line}\n".encode() if _is_cut(path) else f"{line}\n".encode())
    return f"{cell.name}, part {part}, {seconds:.1f} s of CPU"


def commit() -> str | None:
    """Of the code, if it is in a repository."""
    call = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(call, cwd=ROOT, check=False, capture_output=True, text=True)
    return found.stdout.strip() or None


def _is_cut(path: Path) -> bool:
    """Whether a process was killed while it wrote the last line."""
    content = path.read_bytes()
    return bool(content) and not content.endswith(b"\n")


def _read(line: str) -> dict[str, Any] | None:
    """A piece; None for a line that was cut short."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def short(values: Any) -> Any:
    """Arrays and numbers of NumPy as JSON has them, in seven digits."""
    import numpy as np

    rounded = np.asarray(values, np.float64)
    flat = [None if not np.isfinite(value) else float(f"{value:.7g}") for value in rounded.ravel()]
    return np.array(flat, object).reshape(rounded.shape).tolist()


def hours(study: Study, pieces: Sequence[tuple[Cell, int]]) -> float:
    """Core hours that pieces take: as once measured, times what those of their kind that were run took of that."""
    ran: dict[str, list[tuple[float, float]]] = {}
    for cell in study.cells:
        for piece in study.pieces(cell):
            ran.setdefault(cell.kind, []).append((piece["seconds"], _expected(study, cell, piece["part"])))
    pace = {kind: sum(took for took, _ in found) / sum(due for _, due in found) for kind, found in ran.items()}
    return sum(pace.get(cell.kind, 1.0) * _expected(study, cell, part) for cell, part in pieces) / 3600


def _expected(study: Study, cell: Cell, part: int) -> float:
    return (COMPILING if part == 0 else STARTING) + cell.epochs / study.rates[cell.kind]


def _plain(facts: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(facts, default=short))
