"""What SMC and AIS do alike as samplers. The block of islands that they advance is in `tempered`."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import Array

from isles.problem import Problem
from isles.samplers import tempered
from isles.samplers.block import BlockResult, Output
from isles.samplers.pace import Pause, never
from isles.samplers.tempered import Beginning, Outset, TemperedBlock


class Tempered:
    """A sampler of stages: what SMC and AIS do alike. Each says how a block sets out, and how a stage begins."""

    def begin(self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output) -> TemperedBlock:
        """Prior draws."""
        return tempered.start(problem, self._outset(problem, root, islands, output))

    def finished(self, block: TemperedBlock) -> bool:
        """Whether every island has reached tempering 1."""
        return bool((block.tempering >= 1).all())

    def advance(self, problem: Problem, block: TemperedBlock, pause: Pause = never) -> TemperedBlock:
        """One stage of every island that is not done, or the part of it that `pause` leaves time for."""
        if block.under_way is None:
            return tempered.begin(problem, block, self._beginning(problem, block), pause)
        return tempered.go_on(problem, block, pause)

    def pack(self, block: TemperedBlock) -> dict[str, Any]:
        """What a checkpoint holds."""
        return tempered.pack(block)

    def unpack(
        self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output, kept: dict[str, Any]
    ) -> TemperedBlock:
        """The block that a checkpoint holds."""
        return tempered.unpack(problem, self._outset(problem, root, islands, output), kept)

    def result(self, problem: Problem, block: TemperedBlock) -> BlockResult:
        """Particles at tempering 1, with their weights."""
        return tempered.result(problem, block)

    def _outset(self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output) -> Outset:
        raise NotImplementedError

    def _beginning(self, problem: Problem, block: TemperedBlock) -> Beginning:
        raise NotImplementedError
