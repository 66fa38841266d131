"""Running an experiment's queue, piece by piece: each a run in its own folder, of which statistics are kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import isles
from isles.cli.settings import build_sampler
from isles.definition import island_numbers
from isles.posterior import Posterior
from isles.reproduce import islands
from isles.reproduce.experiments import NUMBERED, Experiment, Method, Piece, Place
from isles.reproduce.islands import Island
from isles.store.status import read_status
from isles.tasks import define_run

Say = Callable[[str], None]


def run(
    experiment: Experiment,
    budget: str,
    *,
    only: Sequence[str] = (),
    max_seconds: float | None = None,
    say: Say = print,
    **options: Any,
) -> bool:
    """Run what is left of a budget's queue, until it is done or no piece may begin any more.

    Args:
        experiment: what to run.
        budget: "quick", "standard" or "paper".
        only: names of methods; all, if there are none.
        max_seconds: no island begins after so long.
        say: told what is run.
        **options: of `isles.sample`: engine, workers, progress.

    Returns:
        Whether all of it is done.
    """
    pieces = queue(experiment, budget, only)
    test = scored(experiment)
    begun = time.monotonic()
    complete = True
    in_memory = budget == "quick" and not options.get("engine")
    for number, whole in enumerate(pieces, 1):
        for piece, folder in [(left_of(experiment, whole), None)] if in_memory else parts_of(experiment, whole):
            left = None if max_seconds is None else max_seconds - (time.monotonic() - begun)
            if not piece.places:
                continue
            if left is not None and left <= 0:
                return False
            say(f"{experiment.name} {number}/{len(pieces)}: {piece.method.name}, {len(piece.places)} islands")
            complete &= run_piece(experiment, piece, test.x_test, folder, left, options)
    return complete


def queue(experiment: Experiment, budget: str, only: Sequence[str]) -> list[Piece]:
    """The experiment's own, or what of it belongs to some methods."""
    whole = experiment.queue(budget)
    for name in only:
        if all(piece.method.name != name for piece in whole):
            raise ValueError(f"only={name!r}: the budget {budget!r} runs nothing of it; take --budget paper")
    return [piece for piece in whole if not only or piece.method.name in only]


def define(experiment: Experiment, budget: str, only: Sequence[str] = ()) -> list[Path]:
    """Begin what is left of a budget's queue without running it: folders whose blocks others work out."""
    pieces = queue(experiment, budget, only)
    scored(experiment)
    folders = []
    for whole in pieces:
        for piece, folder in parts_of(experiment, whole):
            if not left_of(experiment, piece).places:
                continue
            define_run(
                folder, piece.method.problem, build_sampler(piece.method.sampling),
                islands=[place.number for place in piece.places], seed=experiment.seed(piece.method),
                islands_per_block=piece.method.together,
            )  # fmt: skip
            if read_status(folder).unfinished:
                folders.append(folder)
    return folders


def scored(experiment: Experiment) -> Any:
    """The data, if the islands that are there were scored on the same."""
    data = isles.data.load(experiment.data, test=experiment.test)
    islands.agree(experiment, islands.Scored(len(data.x_train), data.y_test))
    return data


def parts_of(experiment: Experiment, piece: Piece) -> list[tuple[Piece, Path]]:
    """What of a piece has begun, each part in its folder and as a whole, and what has not."""
    method, left = piece.method, list(left_of(experiment, piece).places)
    parts = []
    for folder in sorted((experiment.folder / "unfinished").glob(f"{method.name}-{'?' * 8}")):
        begun = Piece(method, places_in(folder))
        if begun.places and set(begun.places) <= set(piece.places):
            parts.append((begun, folder))
            left = [place for place in left if place not in begun.places]
    rest = Piece(method, tuple(left))
    return [*parts, (rest, work_folder(experiment, rest))] if left else parts


def places_in(folder: Path) -> tuple[Place, ...]:
    """Of the islands of a run that has begun."""
    if not (folder / "run.json").exists():
        return ()
    settings = json.loads((folder / "run.json").read_text())["settings"]
    numbers = island_numbers(settings) or range(settings["islands"])
    return tuple(Place(*divmod(number, NUMBERED)) for number in numbers)


def left_of(experiment: Experiment, piece: Piece) -> Piece:
    """What of a piece is still to run."""
    todo = (place for place in piece.places if not islands.is_done(experiment, piece.method, place))
    return Piece(piece.method, tuple(todo))


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isles.IslesWarning)  # they are kept
        posterior = isles.sample(
            method.problem, build_sampler(method.sampling),
            islands=numbers, seed=experiment.seed(method), islands_per_block=method.together,
            folder=folder, max_seconds=max_seconds, allow_partial=True, **options,
        )  # fmt: skip
    alone = [(time.monotonic() - begun) / len(numbers)] * len(numbers)
    keep(experiment, piece, posterior, x, alone if folder is None else block_seconds(folder))
    if folder is not None and not posterior.missing:
        shutil.rmtree(folder)
    return not posterior.missing


def harvest(experiment: Experiment) -> None:
    """Keep the statistics of islands that are finished inside pieces that are not."""
    x = None
    methods = {method.name: method for method in experiment.methods}
    for folder in sorted((experiment.folder / "unfinished").glob("*")):
        method, places = methods.get(folder.name.rpartition("-")[0]), places_in(folder)
        if method is None or not places:
            continue
        try:
            posterior = isles.merge(folder, allow_partial=True)
        except isles.PartialRunError:  # none is finished
            continue
        if x is None:
            x = isles.data.load(experiment.data, test=experiment.test).x_test
        keep(experiment, Piece(method, places), posterior, x, block_seconds(folder))


def keep(
    experiment: Experiment,
    piece: Piece,
    posterior: Posterior,
    x: Any,
    seconds: Sequence[float | None],
) -> None:
    """Write the statistics of those islands of a piece that a posterior has."""
    method, seed = piece.method, experiment.seed(piece.method)
    said = (
        posterior.warnings[1:] if posterior.missing else posterior.warnings
    )  # the first is that some are missing
    present = [place for place in piece.places if place.number not in posterior.missing]
    waited = sum(sum(epochs_of_parts(method, posterior, index)) for index in range(len(present)))
    particles = posterior.epochs.total / waited  # fewer than there are where some wait for the slowest
    for index, place in enumerate(present):
        if islands.is_done(experiment, method, place):
            continue
        took = seconds[piece.places.index(place)]
        for part, island in enumerate(
            statistics(method, posterior, index, x, seed, place.number, took, said, particles)
        ):
            kept = Place(place.realization, place.island + part)
            islands.save(islands.path_of(experiment, method, kept), island)


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
    particles: float,
) -> list[Island]:
    """Of one island, or of the parts of one chain; so many `particles` are at work in the mean."""
    evidence = posterior.island_log_evidence
    draws = posterior.log_weights.shape[1]
    size = draws // method.parts
    spent = epochs_of_parts(method, posterior, index)
    total = sum(spent)
    found = []
    for part, epochs in enumerate(spent):
        alone = posterior.select(index, slice(part * size, (part + 1) * size))
        predicted: Any = alone.predict(x)
        found.append(
            Island(
                probabilities=predicted.probabilities,
                draw_entropy=float(predicted.aleatoric.mean()),
                log_evidence=None if evidence is None else float(evidence[index]),
                epochs=epochs,
                particle_epochs=round(epochs * particles),
                seconds=None if seconds is None else seconds * epochs / total,
                seed=seed,
                number=number,
                warnings=said,
                settings=method.settings,
                versions=versions(),
            )
        )
    return found


def epochs_of_parts(method: Method, posterior: Posterior, index: int) -> list[float]:
    """Of one particle; of the parts that a chain is cut into, the first has burn-in, too."""
    spent = 1 + np.nancumsum(posterior.trace["epochs"][:, index])
    if method.parts == 1:
        return [float(spent[-1])]
    burn_in, thin = (int(method.sampling.get(name, 1)) for name in ("burn_in", "thin"))
    last = np.arange(1, method.parts + 1) * posterior.log_weights.shape[1] // method.parts - 1
    ends = np.interp(burn_in + last * thin, posterior.trace["step"][:, index], spent)
    return np.diff(ends, prepend=0.0).tolist()


@cache
def versions() -> dict[str, str | None]:
    """Of what an island is made with, and the commit of its code, if it is in a repository."""
    found: dict[str, str | None] = {name: version(name) for name in ("isles", "jax", "jaxlib", "numpy")}
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=Path(isles.__file__).parent,
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return found | {"commit": None}
    return found | {"commit": asked.stdout.strip()}
