"""Engines: each maps `run_block` over the blocks of a run. What a block computes lives in `samplers`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from isles import keys
from isles.checks import DeadIslandsError
from isles.problem import Problem
from isles.samplers.block import BlockResult, Output, Sampler

Show = Callable[[float], None]  # takes the share of the work done: of a block in [0, 1], of a run in blocks


@dataclass(frozen=True)
class Work:
    """Everything that decides what the blocks of a run give, and nothing about where they run."""

    problem: Problem
    sampler: Sampler
    output: Output
    seed: int
    blocks: tuple[np.ndarray[Any, Any], ...]  # the islands of each


def run_block(work: Work, number: int, show: Show, *, life_seen: bool) -> BlockResult | str:
    """Run one block to its end.

    If all its first draws are dead and no other block has shown life, return why they are dead: there may be
    nothing to sample from, and chains that start without a likelihood are long to run.
    """
    sampler, problem = work.sampler, work.problem
    block = sampler.start(problem, keys.root(work.seed), work.blocks[number], work.output)
    if block.all_dead and not life_seen:
        return str(block.obituary)
    show(0.0)
    while not sampler.finished(block):
        block = sampler.advance(problem, block)
        show(block.progress)
    return sampler.result(problem, block)


def run_here(work: Work, show: Show) -> list[BlockResult]:
    """Run all blocks in this process, one after another."""
    ledger = Ledger(len(work.blocks), show)
    while ledger.todo:
        number = ledger.todo.popleft()
        report = lambda share, number=number: ledger.report(number, share)
        ledger.close(number, run_block(work, number, report, life_seen=ledger.life_seen))
    return ledger.finish()


class Ledger:
    """Which blocks are still to run, how far the others are, and what they gave."""

    def __init__(self, blocks: int, show: Show) -> None:
        self.todo = deque(range(blocks))
        self._dead: dict[int, str] = {}  # wait until another block shows life
        self._shares: dict[int, float] = {}
        self._results: dict[int, BlockResult] = {}
        self._done = 0.0
        self._show = show

    @property
    def life_seen(self) -> bool:
        """Whether some block has a live particle."""
        return bool(self._shares)

    def report(self, number: int, share: float) -> None:
        """A live block has come this far."""
        self._done += share - self._shares.get(number, 0.0)
        self._shares[number] = share
        self.todo.extend(self._dead)
        self._dead.clear()
        self._show(self._done)

    def close(self, number: int, outcome: BlockResult | str) -> None:
        """A block is done, or has said why all its first draws are dead."""
        if isinstance(outcome, BlockResult):
            self._results[number] = outcome
            self.report(number, 1.0)
        elif self.life_seen:
            self.todo.append(number)
        else:
            self._dead[number] = outcome

    def finish(self) -> list[BlockResult]:
        """The results of all blocks, in order."""
        if self._dead:
            raise DeadIslandsError(self._dead[min(self._dead)])
        return [self._results[number] for number in sorted(self._results)]
