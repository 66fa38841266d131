"""One block of islands, from its newest checkpoint to its end: the function that every engine maps over blocks.

It is told nothing about where it runs, and says what happens as a stream of events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isles import keys
from isles.ascent import Climb
from isles.checks import DamagedFileError
from isles.kernels.base import Tuning
from isles.problem import Problem, State
from isles.samplers.block import BlockResult, Output, Plan, Record, Sampler, Status
from isles.samplers.groups import Group
from isles.samplers.mutation import Draws
from isles.samplers.proposals import Chains, Points
from isles.samplers.read_back import check_result
from isles.samplers.tempered import UnderWay
from isles.store import codec
from isles.store.folder import BlockFolder, RunFolder, Saved, warn_of_damage

CHECKPOINT_SECONDS = 60.0
CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (State, Tuning, Group, Draws, Climb, Chains, Points, UnderWay, Plan, BlockResult)
}


@dataclass(frozen=True)
class Work:
    """Everything that decides what the blocks of a run give, and nothing about where they run."""

    problem: Problem
    sampler: Sampler
    output: Output
    seed: int
    blocks: tuple[np.ndarray[Any, Any], ...]  # the islands of each
    digest: str  # of the run's definition
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    every_stage: bool = True  # a checkpoint after each stage as well

    def named(self, number: int) -> str:
        """What to call a block before a user."""
        islands = self.blocks[number]
        which = f"island {islands[0]}" if len(islands) == 1 else f"islands {islands[0]} to {islands[-1]}"
        return f"block {number} ({which})"


class Reached(NamedTuple):
    """The block has come this far."""

    status: Status


class Kept(NamedTuple):
    """A checkpoint to be kept, and the records of all stages so far."""

    saved: Saved
    status: Status
    records: tuple[Record, ...]
    new: int  # of the records, since the last checkpoint


class Dead(NamedTuple):
    """No first draw has a usable likelihood; the block waits until another has shown life."""

    why: str


class Halted(NamedTuple):
    """The block was asked to stop; its checkpoint is kept."""


class Done(NamedTuple):
    """The block is finished."""

    result: BlockResult


Event = Reached | Kept | Dead | Halted | Done


def never() -> bool:
    """Nobody asks to stop."""
    return False


def follow(
    work: Work,
    number: int,
    checkpoints: Iterable[Saved] = (),
    *,
    life_seen: bool,
    halt: Callable[[], bool] = never,
    keep: bool = True,
) -> Iterator[Event]:
    """Run one block from the first checkpoint that is good, and say what happens.

    If all its first draws are dead and no other block has shown life, the block ends with why they are dead: there
    may be nothing to sample from, and chains that start without a likelihood are long to run.
    """
    sampler, problem, islands = work.sampler, work.problem, work.blocks[number]
    root = keys.root(work.seed)
    block = _reopen(work, number, checkpoints)
    if block is None:
        block = sampler.begin(problem, root, islands, work.output)
        if block.all_dead and not life_seen:
            yield Dead(str(block.obituary))
            return
    written, last = len(block.records), time.monotonic()
    due = lambda: halt() or (keep and time.monotonic() - last >= work.checkpoint_seconds)
    yield Reached(block.status)
    while not sampler.finished(block):
        block = sampler.advance(problem, block, due)
        if sampler.finished(block):
            break
        halted = halt()
        if keep and (halted or due() or (work.every_stage and block.at_landmark)):
            yield Kept(_checkpoint(work, number, block), block.status, block.records, len(block.records) - written)
            written, last = len(block.records), time.monotonic()
        yield Reached(block.status)
        if halted:
            yield Halted()
            return
    yield Done(sampler.result(problem, block))


def follow_in_folder(
    work: Work, folder: RunFolder, number: int, *, life_seen: bool, halt: Callable[[], bool] = never
) -> Iterator[Event]:
    """`follow`, with checkpoints, trace and result in a run folder. A result that is there is not made again."""
    place = folder.block(number)
    with place.locked():
        result = read_result(folder, work.digest, number, len(work.blocks[number]))
        if result is not None:
            yield Done(result)
            return
        fresh = True
        for event in follow(work, number, place.newest(), life_seen=life_seen, halt=halt):
            keep_event(place, work, number, event, fresh=fresh)
            fresh = fresh and not isinstance(event, Kept)
            yield event


def keep_event(place: BlockFolder, work: Work, number: int, event: Event, *, fresh: bool) -> None:
    """Write down what an event holds. A `fresh` block has written no trace since its process began."""
    if isinstance(event, Kept):
        place.path.mkdir(parents=True, exist_ok=True)
        if fresh:  # stages that a killed process wrote after its last checkpoint are made again
            place.write_trace(event.records)
        else:
            place.add_to_trace(event.records[len(event.records) - event.new :])
        place.save(event.saved, event.status._asdict())
    elif isinstance(event, Done):
        place.path.mkdir(parents=True, exist_ok=True)
        place.write_trace(event.result.records)
        place.save_result(encode_result(work, number, event.result))


def encode_result(work: Work, number: int, result: BlockResult) -> Saved:
    """A result as a file holds it."""
    return _encode(work, number, result)


def decode_result(saved: Saved, islands: int) -> BlockResult:
    """The inverse of `encode_result`, for so many islands."""
    try:
        result = codec.decode(saved.facts.get("content"), saved.tensors, CLASSES)
        check_result(result, islands)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedFileError(f"the file holds no result of {islands} islands: {error}") from error
    return result


def read_result(folder: RunFolder, digest: str, number: int, islands: int) -> BlockResult | None:
    """A finished block's result; None if there is none of this run that can be read."""
    saved = folder.block(number).result()
    if saved is None or not _belongs(digest, number, saved):
        return None
    try:
        return decode_result(saved, islands)
    except DamagedFileError as error:
        warn_of_damage(error, "the block has to be run again")
        return None


def _reopen(work: Work, number: int, checkpoints: Iterable[Saved]) -> Any:
    """The block of the first checkpoint that is good; None if there is none."""
    for saved in checkpoints:
        if not _belongs(work.digest, number, saved):
            continue
        try:
            kept = codec.decode(saved.facts.get("content"), saved.tensors, CLASSES)
            return work.sampler.unpack(work.problem, keys.root(work.seed), work.blocks[number], work.output, kept)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
            warn_of_damage(error, f"a checkpoint of {work.named(number)} is not used")
    return None


def _checkpoint(work: Work, number: int, block: Any) -> Saved:
    return _encode(work, number, work.sampler.pack(block))


def _encode(work: Work, number: int, value: Any) -> Saved:
    saved = Saved({}, {"run": work.digest, "block": number})
    saved.facts["content"] = codec.encode(value, saved.tensors, CLASSES)
    return saved


def _belongs(digest: str, number: int, saved: Saved) -> bool:
    found = saved.facts.get("run"), saved.facts.get("block")
    if found == (digest, number):
        return True
    error = DamagedFileError(f"a file of block {number} belongs to block {found[1]} of run {found[0]}")
    warn_of_damage(error, "it is not used")
    return False
