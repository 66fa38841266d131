"""Runs that were stopped halfway, for tests of what may happen to their folders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import isles
import targets
from isles.engines.local import Here

PILOT = isles.SMC(isles.PCN(), particles=8, mutations=3, schedule=[0.01, 0.03, 0.1, 0.2, 0.5, 0.7, 1.0])
CHAINS = isles.MCMC(isles.PCN(), chains=4, burn_in=60, draws=60)
SETTINGS: dict[str, Any] = {"islands": 6, "islands_per_block": 2, "collect": {"sum": jnp.sum}}


def problem() -> isles.Problem:
    """A small Gaussian."""
    return targets.conjugate(dimension=3, rows=6, seed=2).problem


class Half:
    """A run of three blocks: one finished, one with two checkpoints, one not begun; and its end."""

    def __init__(self, folder: Path, sampler: Any) -> None:
        whole = isles.sample(problem(), sampler, folder=folder / "whole", engine=Here(), **SETTINGS)
        limit = whole.epochs.total // 2  # halfway through the second block
        part = isles.sample(
            problem(), sampler, folder=folder / "half", engine=Here(), max_epochs=limit, finish_started=False,
            checkpoint_seconds=1e-9, **SETTINGS,
        )  # fmt: skip
        assert part.missing == (2, 3, 4, 5) and len(list(folder.glob("half/blocks/0001/state-*"))) == 4
        self.whole, self.folder = whole, folder / "half"

    def copy(self, to: Path) -> Path:
        """A folder to do things to."""
        shutil.copytree(self.folder, to)
        return to


def resume(folder: Path) -> isles.Posterior:
    """Go on with it."""
    return isles.resume(folder, problem(), collect=SETTINGS["collect"])
