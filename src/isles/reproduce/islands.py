"""What is kept of an island: enough for every table, in a small file. A file is written whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isles.reproduce.experiments import Experiment, Method, Place

Array = np.ndarray[Any, Any]
KEPT_BITS = 12  # of a probability's fraction: a relative error of 1/8000, and half the bytes


@dataclass(frozen=True)
class Island:
    """The statistics of one island, or of one part of a chain."""

    probabilities: Array  # (n, K) of the test rows, mean over the island's draws
    draw_entropy: float  # mean over draws and rows of the entropy of a draw's own prediction
    log_evidence: float | None
    epochs: float  # of one particle
    particle_epochs: int  # of all of them
    seconds: float | None  # of its block, shared among its islands; None if that is not known
    seed: int
    number: int
    warnings: tuple[str, ...]


def path_of(experiment: Experiment, method: Method, place: Place) -> Path:
    """Where an island's statistics are kept."""
    return experiment.folder / "islands" / method.name / f"r{place.realization:02}-p{place.island:02}.npz"


def save(path: Path, island: Island) -> None:
    """Write an island's statistics."""
    facts = {name: value for name, value in vars(island).items() if name != "probabilities"}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.npz")
    np.savez_compressed(
        partial, probabilities=_shortened(island.probabilities), facts=np.array(json.dumps(facts, sort_keys=True))
    )
    os.replace(partial, path)


def read(path: Path) -> Island | None:
    """An island's statistics; None if it has not been run."""
    if not path.exists():
        return None
    with np.load(path) as found:
        facts = json.loads(str(found["facts"]))
        probabilities = found["probabilities"].astype(np.float64)
    facts["warnings"] = tuple(facts["warnings"])
    return Island(probabilities=probabilities / probabilities.sum(axis=1, keepdims=True), **facts)


def _shortened(probabilities: Array) -> Array:
    """As float32 with few bits, which compress."""
    drop = 23 - KEPT_BITS
    bits = np.ascontiguousarray(probabilities, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + (1 << (drop - 1))) >> drop) << drop
    return rounded.astype(np.uint32).view(np.float32)
