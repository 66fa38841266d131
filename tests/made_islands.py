"""Experiments with the committed settings, and islands of them as if they had been run."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np

from isles.reproduce import experiments, islands
from isles.reproduce.islands import Island, Scored

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
NAMES = experiments.names(EXPERIMENTS)


def without_islands(folder: Path) -> Path:
    """The settings that are committed, and nothing that was run."""
    for name in NAMES:
        (folder / name).mkdir()
        shutil.copy(EXPERIMENTS / name / "settings.toml", folder / name)
    return folder


def made_up(rng: np.random.Generator, rows: int = 40, classes: int = 3) -> Island:
    """An island of numbers at random."""
    return Island(
        probabilities=rng.dirichlet(np.ones(classes), rows),
        draw_entropy=float(rng.random()),
        log_evidence=float(rng.normal()),
        epochs=10.0,
        particle_epochs=320,
        seconds=1.0,
        seed=1,
        number=2,
        warnings=("too short",),
        settings={"sampler": "smc"},
        versions={"isles": "0.1.0", "commit": None},
    )


def fill(experiment: experiments.Experiment, counts: dict[str, int], rng: np.random.Generator) -> None:
    """Made-up islands of one realization, so many of each method, and labels to score them by."""
    found = {method.name: method for method in experiment.methods}
    islands.agree(experiment, Scored(100, rng.integers(0, 10, 40)))
    for name, count in counts.items():
        for number in range(count):
            island = dataclasses.replace(
                made_up(rng, classes=10), epochs=found[name].epochs, settings=found[name].settings
            )
            islands.save(islands.path_of(experiment, found[name], experiments.Place(0, number)), island)
