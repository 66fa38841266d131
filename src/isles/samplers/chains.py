"""A block of Markov chains as it stands between two groups of steps, or inside one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import Array

from isles.ascent import Climb
from isles.samplers import block as blocks
from isles.samplers import burn_in
from isles.samplers.block import Output, Record, Status
from isles.samplers.groups import Group, Static
from isles.samplers.mutation import Draws
from isles.samplers.pace import Pace

if TYPE_CHECKING:
    from isles.samplers.mcmc import MCMC


class Outset(NamedTuple):
    """What a block is told, and a checkpoint need not hold."""

    sampler: MCMC
    keys: Array  # (I·N,)
    islands: np.ndarray[Any, Any]  # (I,) their numbers in the run
    kernel: Static
    output: Output
    climb_keys: Array  # (I·N,)
    climb_pace: Pace


@dataclass(frozen=True)
class MCMCBlock(blocks.Chained):
    """Chains between two groups of steps, or inside one."""

    outset: Outset
    group: Group
    burnt_in: int  # steps of burn-in done
    drawn: int  # draws taken of each chain
    kept: tuple[Draws, ...]  # leaves (I, chains, draws, ...)
    sums: dict[str, Any]
    sum_weights: np.ndarray[Any, Any]  # (I,)
    epochs: np.ndarray[Any, Any]  # (I, chains)
    nonfinite: np.ndarray[Any, Any]  # (I,)
    dead: np.ndarray[Any, Any]  # (I,)
    records: tuple[Record, ...]
    lost: np.ndarray[Any, Any]  # (I, chains) bool: has draws of likelihood zero
    late_steps: int  # since adaptation ended
    late_acceptance: np.ndarray[Any, Any]  # (I, chains) sums since then
    rounding: float
    obituary: str | None
    cut: bool = False  # inside a group of steps
    buffer: Draws | None = None  # draws of the group of steps under way
    filled: int = 0  # how many
    climb: Climb | None = None  # toward starts, while it lasts

    @property
    def at_landmark(self) -> bool:
        """Whether starts are found, or burn-in ends. Time decides on other checkpoints: they hold all draws."""
        burnt_in = self.burnt_in in (0, self.outset.sampler.burn_in)
        return burnt_in and self.drawn == 0 and not self.cut and self.climb is None

    @property
    def status(self) -> Status:
        """Where the block stands."""
        sampler = self.outset.sampler
        steps = int(self.group.mutation)
        total = sampler.burn_in + (sampler.draws - 1) * sampler.thin + 1
        last = self.records[-1] if self.records else {}
        made = int(self.group.evaluations.sum()) if self.cut else 0
        uphill = 0 if sampler.way is None else sampler.way.epochs
        climbed = uphill if self.climb is None else int(uphill * (self.climb.step / self.climb.steps))
        made += 0 if self.climb is None else climbed * self.epochs.size
        return Status(
            share=(climbed + steps + (self.drawn > 0)) / (uphill + total),
            stage=steps,
            tempering=burn_in.tempering(sampler, self.burnt_in),
            ess=math.nan,
            acceptance=blocks.last_mean(last, "acceptance"),
            epochs=int(self.epochs.sum()) + made,
        )
