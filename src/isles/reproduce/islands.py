"""What is kept of an island: enough for every table, in a small file. A file is written whole or not at all.

Beside the islands of an experiment lie the labels that they are scored by, so that pages follow from files alone.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isles import files
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
    settings: dict[str, Any]  # of its method
    versions: dict[str, str | None]  # of what it was made with, and the commit


class Scored(NamedTuple):
    """What all islands of an experiment were trained on and are scored by."""

    train: int  # rows at hand; a method's own settings may take fewer
    labels: Array  # (n,) of the test rows

    @property
    def test(self) -> int:
        """Test rows."""
        return len(self.labels)


def path_of(experiment: Experiment, method: Method, place: Place) -> Path:
    """Where an island's statistics are kept."""
    return experiment.folder / "islands" / method.name / f"r{place.realization:02}-p{place.island:02}.npz"


def scored(experiment: Experiment) -> Scored | None:
    """What the islands that are there are scored by; None if there are none yet."""
    path = experiment.folder / "islands" / "labels.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    return Scored(found["train"], np.array(found["labels"]))


def agree(experiment: Experiment, at_hand: Scored) -> None:
    """Keep what islands are scored by, or see that the data at hand are those of the islands that are there."""
    kept, path = scored(experiment), experiment.folder / "islands" / "labels.json"
    if kept is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"train": at_hand.train, "labels": np.asarray(at_hand.labels).tolist()})
        with files.whole(path) as file:
            file.write(content.encode() + b"\n")
    elif kept.train != at_hand.train or not np.array_equal(kept.labels, at_hand.labels):
        raise ValueError(
            f"the islands in {path.parent} are of {kept.train} training and {kept.test} test rows of "
            f"{experiment.data}, and the data at hand have {at_hand.train} and {at_hand.test}, or others: move "
            f"{path.parent} away to begin anew with these"
        )


def is_done(experiment: Experiment, method: Method, place: Place) -> bool:
    """Whether an island's statistics are there, of the settings that its method has now."""
    if not path_of(experiment, method, Place(place.realization, place.island + method.parts - 1)).exists():
        return False  # the last part of a chain is written last
    path = path_of(experiment, method, place)
    found = read(path)
    assert found is not None
    if found.settings != method.settings:
        raise ValueError(
            f"{path} was made with {found.settings}, and {method.name} has {method.settings} now: move "
            f"{path.parent} away to begin anew, or restore the settings"
        )
    return True


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
