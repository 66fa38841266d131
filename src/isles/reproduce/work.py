"""Running an experiment's queue, piece by piece: each a run in its own folder, of which statistics are kept."""

from __future__ import annotations

import shutil
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import isles
from isles.cli.settings import build_sampler
from isles.posterior import Posterior
from isles.reproduce import islands
from isles.reproduce.experiments import Experiment, Method, Piece, Place
from isles.reproduce.islands import Island
from isles.store.status import read_status

Say = Callable[[str], None]


def run(
    experiment: Experiment,
    budget: str,
    *,
    max_seconds: float | None = None,
    say: Say = print,
    **options: Any,
) -> bool:
    """Run what is left of a budget's queue, until it is done or no piece may begin any more.

    Args:
        experiment: what to run.
        budget: "quick", "standard" or "paper".
        max_seconds: no island begins after so long.
        say: told what is run.
        **options: of `isles.sample`: engine, workers, progress.

    Returns:
        Whether all of it is done.
    """
    test = isles.data.load(experiment.data, test=experiment.test)
    begun = time.monotonic()
    pieces = experiment.queue(budget)
    complete = True
    for number, piece in enumerate(pieces, 1):
        piece = left_of(experiment, piece)
        left = None if max_seconds is None else max_seconds - (time.monotonic() - begun)
        if not piece.places:
            continue
        if left is not None and left <= 0:
            return False
        say(f"{experiment.name} {number}/{len(pieces)}: {piece.method.name}, {len(piece.places)} islands")
        here = budget == "quick" and not options.get("engine")
        folder = None if here else work_folder(experiment, piece)
        complete &= run_piece(experiment, piece, test.x_test, folder, left, options)
    return complete


def left_of(experiment: Experiment, piece: Piece) -> Piece:
    """What of a piece is still to run."""
    return Piece(
        piece.method, tuple(place for place in piece.places if not is_done(experiment, piece.method, place))
    )


def is_done(experiment: Experiment, method: Method, place: Place) -> bool:
    """Whether an island's statistics are there."""
    return islands.path_of(experiment, method, place).exists()


def work_folder(experiment: Experiment, piece: Piece) -> Path:
    """Where a piece is worked out, so that the same piece finds its checkpoints."""
    numbers = [place.number for place in piece.places]
    return experiment.folder / "unfinished" / f"{piece.method.name}-{zlib.crc32(repr(numbers).encode()):08x}"


def run_piece(
    experiment: Experiment,
    piece: Piece,
    x: Any,
    folder: Path | None,
    max_seconds: float | None,
    options: Mapping[str, Any],
) -> bool:
    """Run islands and keep their statistics; whether all were finished. Without a folder, in this process."""
    method, numbers = piece.method, [place.number for place in piece.places]
    begun = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = isles.sample(
            method.problem, build_sampler(method.sampling),
            islands=numbers, seed=experiment.seed(method), islands_per_block=method.together,
            folder=folder, max_seconds=max_seconds, allow_partial=True, **options,
        )  # fmt: skip
    said = tuple(dict.fromkeys(str(each.message) for each in caught if each.category is isles.IslesWarning))
    present = [place for place in piece.places if place.number not in posterior.missing]
    alone = [(time.monotonic() - begun) / len(numbers)] * len(numbers)
    seconds = alone if folder is None else block_seconds(folder)
    for index, place in enumerate(present):
        position = numbers.index(place.number)
        for part, island in enumerate(
            statistics(method, posterior, index, x, experiment.seed(method), place.number, seconds[position], said)
        ):
            kept = Place(place.realization, place.island + part)
            islands.save(islands.path_of(experiment, method, kept), island)
    if folder is not None and not posterior.missing:
        shutil.rmtree(folder)
    return not posterior.missing


def block_seconds(folder: Path) -> Sequence[float | None]:
    """For each island, its share of the time that its block took."""
    shares = list[float | None]()
    for block in read_status(folder).blocks:
        shares += [None if block.seconds is None else block.seconds / block.size] * block.size
    return shares


def statistics(
    method: Method,
    posterior: Posterior,
    index: int,
    x: Any,
    seed: int,
    number: int,
    seconds: float | None,
    said: tuple[str, ...],
) -> list[Island]:
    """Of one island, or of the parts of one chain."""
    epochs = 1 + float(np.nansum(posterior.trace["epochs"][:, index]))
    evidence = posterior.island_log_evidence
    draws = posterior.log_weights.shape[1]
    size = draws // method.parts
    found = []
    for first in range(0, draws, size):
        alone = posterior.select(index, slice(first, first + size))
        predicted: Any = alone.predict(x)
        found.append(
            Island(
                probabilities=predicted.probabilities,
                draw_entropy=float(predicted.aleatoric.mean()),
                log_evidence=None if evidence is None else float(evidence[index]),
                epochs=epochs / method.parts,
                particle_epochs=round(epochs * method.width / method.parts),
                seconds=None if seconds is None else seconds / method.parts,
                seed=seed,
                number=number,
                warnings=said,
            )
        )
    return found
