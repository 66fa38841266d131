"""Studies with the committed settings, and pieces of them as if they had been run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from experiments.studies import study

ROOT = Path(__file__).parent.parent / "experiments"


def without_pieces(folder: Path) -> Path:
    """The settings that are committed, and nothing that was run."""
    for name in study.NAMES:
        (folder / name).mkdir()
        shutil.copy(ROOT / name / "study.toml", folder / name)
    return folder


def keep(
    chosen: study.Study, cell: study.Cell, part: int, found: dict[str, Any], particle_epochs: int = 10
) -> None:
    """A piece as if it had been run."""
    path = chosen.path(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    piece = {
        "cell": cell.name, "facts": cell.facts, "part": part, "seed": 1, "particle_epochs": particle_epochs,
        "seconds": 1.0,
        "warnings": [], "found": found,
    }  # fmt: skip
    with open(path, "a") as file:
        file.write(json.dumps(piece, default=study.short) + "\n")
