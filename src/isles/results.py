"""Results of blocks, gathered into one posterior: all of them, or those that are there."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from isles import posterior as posteriors
from isles.checks import DamagedFileError, FolderError, PartialRunError
from isles.definition import STRANGE, check_format, digest, island_numbers, read_sampler, split
from isles.engines.blocks import Work, read_result
from isles.layout import Layout, Params
from isles.likelihoods import Apply, Likelihood, known
from isles.posterior import Posterior
from isles.problem import Problem
from isles.samplers.block import BlockResult, Sampler
from isles.saving import check_problem, rebuild
from isles.store.folder import RunFolder
from isles.store.trees import read_layout


def merge(
    folder: str | os.PathLike[str],
    *,
    allow_partial: bool = False,
    sampler: Sampler | None = None,
    problem: Problem | None = None,
    apply: Apply | None = None,
    like: Params = None,
) -> Posterior:
    """The posterior of the islands that are finished in a run folder. A run that is going on is not disturbed.

    Args:
        folder: of the run.
        allow_partial: whether islands may be missing. `posterior.missing` names them.
        sampler: needed only if it is of a class of your own, or has a kernel that is.
        problem: the one that the run was begun with, or
        apply: its network; needed to predict, where the network is not one of `isles.models`.
        like: parameters of the same structure; needed where they are not made of dicts, lists and tuples.
    """
    place = RunFolder(folder)
    saved = place.definition()
    check_format(saved)
    sampler = sampler or read_sampler(saved)
    if sampler is None:
        raise ValueError("the run uses a sampler or kernel of your own; pass it as sampler=")
    settings = saved.facts["settings"]
    try:
        layout = problem.layout if problem is not None else read_layout(saved.facts["layout"], like)
        likelihood = known(problem) if problem is not None else rebuild(saved.facts["likelihood"], apply)
    except (KeyError, IndexError, AttributeError, RecursionError) as error:
        raise FolderError(f"run.json describes no parameters ({error!r}): {STRANGE}") from error
    blocks = split(settings["islands"], settings["islands_per_block"], island_numbers(settings))
    name = digest(saved.facts)
    found = {number: read_result(place, name, number, len(islands)) for number, islands in enumerate(blocks)}
    missing = name_islands(blocks, [number for number, result in found.items() if result is None])
    if missing and not allow_partial:
        raise PartialRunError(
            f"islands {list(missing)[:10]}{' ...' if len(missing) > 10 else ''} of {settings['islands']} are not "
            f"finished; isles.resume({os.fspath(folder)!r}, ...) finishes them, allow_partial=True does without"
        )
    results = [result for result in found.values() if result is not None]
    posterior = merge_found(
        layout, likelihood, sampler, results, settings["keep"], seed=settings["seed"], missing=missing
    )
    if problem is not None:
        check_problem(posterior, problem)
    return posterior


def load(
    path: str | os.PathLike[str],
    *,
    problem: Problem | None = None,
    apply: Apply | None = None,
    like: Params = None,
) -> Posterior:
    """Read a posterior: a file that `Posterior.save` wrote, or the folder of a finished run.

    Args:
        path: the file or folder.
        problem: the one that was sampled from, or
        apply: its network; needed to predict, where the network is not one of `isles.models`.
        like: parameters of the same structure; needed where they are not made of dicts, lists and tuples.
    """
    place = RunFolder(path)
    if not place.path.is_dir():
        return posteriors.load(path, problem=problem, apply=apply, like=like)
    if place.holds_run and place.posterior_path.exists():
        with contextlib.suppress(DamagedFileError):  # it can be merged anew
            return posteriors.load(place.posterior_path, problem=problem, apply=apply, like=like)
    return merge(path, problem=problem, apply=apply, like=like)


def merge_found(
    layout: Layout,
    likelihood: Likelihood | None,
    sampler: Sampler,
    results: Sequence[BlockResult],
    keep: str,
    *,
    seed: int,
    missing: tuple[int, ...],
    fast_only: bool = False,
) -> Posterior:
    """One posterior of finished blocks, which says what is missing."""
    if not results:
        raise PartialRunError("no island is finished yet; go on with isles.resume, or give a larger budget")
    merged = posteriors.merge(layout, likelihood, sampler, results, keep, seed=seed)
    if not missing:
        return merged
    present = merged.log_weights.shape[0]
    message = f"{len(missing)} of {present + len(missing)} islands are missing: the result is partial"
    if fast_only:
        message += "; fast islands only, biased: slow ones were stopped, and may differ from fast ones"
    return dataclasses.replace(merged, missing=missing, warnings=(message, *merged.warnings))


def read(place: RunFolder, work: Work, number: int) -> BlockResult:
    """The result of a block that is finished."""
    result = read_result(place, work.digest, number, len(work.blocks[number]))
    if result is None:
        raise FolderError(
            f"the result of block {number} was written, and can no longer be read; look after the disk of "
            f"{place.path}, then resume"
        )
    return result


def finished(place: RunFolder, work: Work) -> tuple[set[int], int]:
    """Blocks that need not be run again, and the epochs they took."""
    epochs = {
        number: int(result.epochs.sum())
        for number, islands in enumerate(work.blocks)
        if (result := read_result(place, work.digest, number, len(islands))) is not None
    }
    return set(epochs), sum(epochs.values())


def name_islands(blocks: Sequence[np.ndarray[Any, Any]], chosen: Sequence[int]) -> tuple[int, ...]:
    """The islands of some blocks."""
    return tuple(int(island) for number in chosen for island in blocks[number])
