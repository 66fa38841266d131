"""How far a run is, by what its folder says: read from small files, without JAX and without disturbing it."""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import dataclass
from typing import Any

from isles.checks import FolderError
from isles.store import files
from isles.store.folder import BlockFolder, RunFolder

FINISHED, UNDER_WAY, STARTING, NOT_BEGUN = "finished", "under way", "starting", "not begun"


@dataclass(frozen=True)
class BlockStatus:
    """How far one block is; None where there is nothing to know."""

    number: int
    islands: tuple[int, int]  # the first and the last
    state: str  # "finished", "under way", "starting" (before its first checkpoint) or "not begun"
    share: float  # of the work, as far as one can tell
    stage: int | None = None  # stages done, or steps of every chain
    tempering: float | None = None  # the lowest of its islands
    acceptance: float | None = None
    epochs: int | None = None  # of all particles
    age: float | None = None  # seconds since the checkpoint
    seconds: float | None = None  # that the last process to work on it took, up to what it saved last

    @property
    def size(self) -> int:
        """Its number of islands."""
        return self.islands[1] - self.islands[0] + 1


@dataclass(frozen=True)
class RunStatus:
    """How far a run is."""

    folder: str
    problem: str | None
    sampler: str
    islands: int
    blocks: tuple[BlockStatus, ...]
    merged: bool  # whether the posterior is there

    def count(self, state: str) -> int:
        """Blocks in a state."""
        return sum(block.state == state for block in self.blocks)

    @property
    def unfinished(self) -> list[int]:
        """Numbers of the blocks that are still to run, or under way."""
        return [block.number for block in self.blocks if block.state != FINISHED]


def read_status(folder: str | os.PathLike[str]) -> RunStatus:
    """How far the run in a folder is."""
    place = RunFolder(folder)
    facts = place.definition().facts
    try:
        settings, problem = facts["settings"], facts["problem"]["reference"]
        islands, size, sampler = (
            int(settings["islands"]),
            int(settings["islands_per_block"]),
            settings["sampler_text"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FolderError(
            f"run.json lacks or garbles a setting: {error!r}; it was not written by isles"
        ) from error
    ranges = [(first, min(first + size, islands) - 1) for first in range(0, islands, size)]
    blocks = tuple(_read_block(place, number, islands) for number, islands in enumerate(ranges))
    return RunStatus(os.fspath(folder), problem, sampler, islands, blocks, place.posterior_path.exists())


def _read_block(place: RunFolder, number: int, islands: tuple[int, int]) -> BlockStatus:
    block = place.block(number)
    if block.has_result:
        return BlockStatus(number, islands, FINISHED, 1.0, epochs=_epochs(block), seconds=block.seconds)
    found, saved_at = block.status(), block.saved_at
    if found is None or saved_at is None:
        return BlockStatus(number, islands, STARTING if block.is_locked else NOT_BEGUN, 0.0)
    return BlockStatus(
        number, islands, UNDER_WAY,
        share=_finite(found.get("share")) or 0.0,
        stage=found.get("stage"),
        tempering=_finite(found.get("tempering")),
        acceptance=_finite(found.get("acceptance")),
        epochs=found.get("epochs"),
        age=max(time.time() - saved_at, 0.0),
        seconds=block.seconds,
    )  # fmt: skip


def _epochs(block: BlockFolder) -> int | None:
    """Of a finished block; None if its file does not say."""
    with contextlib.suppress(FolderError, FileNotFoundError):
        return int(files.read_tensor(block.result_path, "value/epochs").sum())
    return None


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
