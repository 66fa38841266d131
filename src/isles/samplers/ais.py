"""Annealed importance sampling: particles that never meet, weighted by the path they took."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import Array

from isles import checks, keys, weights
from isles.kernels import HMC, Kernel
from isles.problem import Problem
from isles.samplers import block as blocks
from isles.samplers import path, tempered
from isles.samplers.block import Output, Plan
from isles.samplers.groups import Static
from isles.samplers.stages import Tempered
from isles.samplers.tempered import Beginning, Outset, TemperedBlock


def neal_schedule() -> tuple[float, ...]:
    """Neal's 40 distributions after the prior: 4 linear to 0.001, 7 geometric to 0.01, 29 geometric to 1.

    >>> schedule = neal_schedule()
    >>> len(schedule), schedule[0], schedule[-1]
    (41, 0.0, 1.0)
    """
    pieces = [
        np.linspace(0, 0.001, 5),
        np.geomspace(0.001, 0.01, 8)[1:],
        np.geomspace(0.01, 1, 30)[1:],
    ]
    return tuple(float(value) for value in np.concatenate(pieces))


@dataclass(frozen=True)
class AIS(Tempered):
    r"""Annealed importance sampling (Neal 2001).

    Every particle starts at a prior draw; before stage j moves it, its log-weight grows by
    (λ_j − λ_{j−1}) ℓ(θ_{j−1}). The evidence is the mean weight. Step sizes and scales, where the kernel
    adapts them, follow the particles of the island; `frozen` runs adapt nothing, and are unbiased.
    Cost: 1 + Σ_j M L epochs a particle.

    Args:
        kernel: how particles move.
        particles: N, of each island.
        schedule: temperings, rising from 0 to 1.
        mutations: steps at each tempering.
    """

    kernel: Kernel = field(default_factory=HMC)
    particles: int = 32
    schedule: Sequence[float] = field(default_factory=neal_schedule)
    mutations: int = 1
    plan: Plan | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        blocks.require_kernel(self.kernel)
        checks.count("particles", self.particles)
        checks.count("mutations", self.mutations)
        object.__setattr__(self, "schedule", tuple(path.check_schedule("schedule", self.schedule)))

    def frozen(self, posterior: Any) -> AIS:
        """This sampler with the step sizes and scales that a pilot run found: nothing is adapted then."""
        return dataclasses.replace(self, plan=blocks.require_plan(posterior))

    @property
    def width(self) -> int:
        """Particles of an island."""
        return self.particles

    @property
    def is_adaptive(self) -> bool:
        """Whether tuning follows the particles."""
        return self.plan is None and (self.kernel.adapts_step_size or self.kernel.scale_from_population)

    def check(self, problem: Problem, output: Output) -> None:
        """Raise if the settings do not fit the problem."""
        blocks.check_kernel(problem, self.kernel, self.particles)
        if self.kernel.partners:
            raise ValueError(
                f"AIS weighs each particle by a path of its own, and {type(self.kernel).__name__} moves "
                f"particles by each other; use isles.SMC, or another kernel"
            )
        path.check_plan(problem, self.kernel, self.plan)

    def _outset(self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output) -> Outset:
        kernel = Static(
            self.kernel,
            self.particles,
            adapt_step=self.kernel.adapts_step_size and self.plan is None,
            adapt_scale=False,
        )
        return Outset(root if self.plan is None else keys.apart(root), islands, kernel, output)

    def _beginning(self, problem: Problem, block: TemperedBlock) -> Beginning:
        """Reweight."""
        moving = block.tempering < 1
        fixed = self.schedule if self.plan is None else self.plan.schedule
        tempering = np.where(moving, float(problem.dtype.type(fixed[block.stage])), 1.0)
        step = weights.increments(block.log_likelihood, tempering - block.tempering)
        log_weights = block.log_weights + step  # method.md (9)
        log_evidence = np.where(moving, weights.log_mean_exp(log_weights), block.log_evidence)
        # scales from the particles without their weights: a heavy particle would tune its own moves, a bias
        equal = np.where(np.isfinite(block.log_likelihood), 0.0, -np.inf)
        tuning = tempered.next_tuning(problem, block, self.plan, weights.normalise(equal))
        record = {
            "ess": np.exp(weights.log_ess(step)),
            "cumulative_ess": np.exp(weights.log_ess(log_weights)),
            "log_evidence": log_evidence,
        }
        stage = tempered.stage_of(
            tempering, self.mutations, record, log_weights=log_weights, log_evidence=log_evidence
        )
        return Beginning(np.arange(step.size, dtype=np.int32), tuning, stage)
