"""Sequential Monte Carlo: reweight, resample, mutate, from the prior to the posterior."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import Array

from isles import checks, keys, weights
from isles.adapt import Decorrelate
from isles.kernels import HMC, Kernel
from isles.keys import Purpose
from isles.problem import Problem
from isles.samplers import block as blocks
from isles.samplers import path, tempered
from isles.samplers.block import Output, Plan
from isles.samplers.groups import Static
from isles.samplers.stages import Tempered
from isles.samplers.tempered import Beginning, Outset, TemperedBlock


@dataclass(frozen=True)
class SMC(Tempered):
    r"""Sequential Monte Carlo samplers (Del Moral, Doucet and Jasra 2006) with adaptive tempering.

    Stage j of an island with particles θ^i and log-likelihoods ℓ^i:

    1. choose λ_j so that the weights w^i ∝ exp((λ_j − λ_{j−1}) ℓ^i) have ESS = `ess_fraction` · N;
    2. log Z += log mean_i exp((λ_j − λ_{j−1}) ℓ^i);
    3. resample N particles by w, then move each by `mutations` steps of the kernel for prior × likelihood^{λ_j}.

    It ends with N equally weighted particles at λ = 1. Cost: 1 + Σ_j M_j L epochs a particle.

    Waste-free (Dau and Chopin 2022), a stage resamples N/(M + 1) particles only, moves each M times, and keeps all
    M + 1 states of each such chain as its N particles. Cost: N + Σ_j N M/(M + 1) L epochs an island, M of them one
    after another. Particles of a chain are correlated, so errors come from islands, never from N.

    Args:
        kernel: how particles move.
        particles: N, of each island.
        mutations: M, the steps of a stage; or a rule, `Decorrelate(0.05, max=200)`.
        ess_fraction: α in ESS = αN.
        schedule: fixed temperings instead, rising to 1.
        resampling: `"systematic"`, `"stratified"`, `"multinomial"` or `"residual"`.
        max_stages: an error after so many, since the tempering then hardly moves.
        waste_free: whether the states on the way of M mutations are particles too; N is a multiple of M + 1 then.
    """

    kernel: Kernel = field(default_factory=HMC)
    particles: int = 32
    mutations: int | Decorrelate = 20
    ess_fraction: float = 0.5
    schedule: Sequence[float] | None = None
    resampling: str = "systematic"
    max_stages: int = 10_000
    waste_free: bool = False
    plan: Plan | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        blocks.require_kernel(self.kernel)
        checks.count("particles", self.particles)
        path.check_mutations(self.mutations)
        checks.fraction("ess_fraction", self.ess_fraction)
        if self.schedule is not None and self.ess_fraction != SMC.ess_fraction:
            raise ValueError(
                f"ess_fraction={self.ess_fraction} chooses temperings, and schedule= gives them; leave one out"
            )
        if self.schedule is not None:
            object.__setattr__(self, "schedule", tuple(path.check_schedule("schedule", self.schedule)))
        checks.choice("resampling", self.resampling, weights.RESAMPLING)
        checks.count("max_stages", self.max_stages)
        if self.waste_free:
            self._check_chains()

    def _check_chains(self) -> None:
        if isinstance(self.mutations, Decorrelate):
            raise ValueError(
                f"waste_free=True keeps the states of chains of one length, so mutations={self.mutations} must be "
                f"a number"
            )
        if self.particles % (self.mutations + 1):
            length = self.mutations + 1
            raise ValueError(
                f"particles={self.particles} must be a multiple of mutations + 1 = {length} with waste_free=True, "
                f"since each chain leaves so many; take particles={-(-self.particles // length) * length}"
            )

    @property
    def chain(self) -> int:
        """Particles that come from one ancestor by design: M + 1 in waste-free SMC, else 1."""
        return self.mutations + 1 if self.waste_free and isinstance(self.mutations, int) else 1

    def frozen(self, posterior: Any) -> SMC:
        """This sampler with the schedule, step sizes, scales and mutations that a pilot run found.

        Nothing is adapted then, so the evidence estimate is exactly unbiased. Its random numbers are not the
        pilot's, whatever the seeds.
        """
        return dataclasses.replace(self, plan=blocks.require_plan(posterior))

    @property
    def width(self) -> int:
        """Particles of an island."""
        return self.particles

    @property
    def is_adaptive(self) -> bool:
        """Whether schedule, tuning, number of mutations or moves follow the particles."""
        if self.kernel.partners:
            return True
        if self.plan is not None:
            return False
        tuned = self.kernel.adapts_step_size or self.kernel.scale_from_population
        return self.schedule is None or tuned or isinstance(self.mutations, Decorrelate)

    def check(self, problem: Problem, output: Output) -> None:
        """Raise if the settings do not fit the problem."""
        blocks.check_kernel(problem, self.kernel, self.particles // self.chain)
        path.check_plan(problem, self.kernel, self.plan)

    def _outset(self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output) -> Outset:
        frozen = self.plan is not None
        kernel = Static(
            self.kernel,
            self.particles,
            adapt_step=self.kernel.adapts_step_size and not frozen,
            adapt_scale=False,
            decorrelate=type(self.mutations) if isinstance(self.mutations, Decorrelate) and not frozen else None,
            keep_start=self.particles > 1 and self.chain == 1,
            chain=self.chain,
        )
        root = keys.apart(root) if frozen else root
        needed = 1 if self.resampling == "systematic" else self.particles // self.chain
        uniforms = keys.Uniforms(root, Purpose.RESAMPLING, islands, needed)
        return Outset(root, islands, kernel, output, uniforms)

    def _beginning(self, problem: Problem, block: TemperedBlock) -> Beginning:
        """Reweight and resample."""
        if block.stage >= self.max_stages:
            raise RuntimeError(
                f"tempering reached only {block.tempering.min():.3g} after max_stages={self.max_stages} stages; "
                f"lower ess_fraction={self.ess_fraction}, raise mutations, or raise max_stages"
            )
        # reweight
        moving = block.tempering < 1
        tempering = self._next_tempering(problem, block)
        log_weights = weights.increments(block.log_likelihood, tempering - block.tempering)
        within, gain = weights.reweigh(log_weights)
        log_evidence = block.log_evidence + np.where(moving, gain, 0.0)  # method.md (3)
        tuning = tempered.next_tuning(problem, block, self.plan, within)
        # resample
        count = self.particles // self.chain
        assert block.outset.uniforms is not None
        uniforms = block.outset.uniforms.at(block.stage)
        ancestors = weights.resample(self.resampling, within[moving], uniforms[moving], count)
        if self.chain > 1:
            ancestors = np.tile(ancestors, self.chain)
        if not moving.all():
            drawn, ancestors = ancestors, np.tile(np.arange(self.particles), (len(moving), 1))
            ancestors[moving] = drawn
        rows = (ancestors + self.particles * np.arange(len(ancestors))[:, None]).astype(np.int32)
        # mutate
        first = ancestors[:, :count]
        record = {
            "ess": weights.island_ess(within),
            "log_evidence": log_evidence,
            "rise": weights.mean(within, block.log_likelihood),  # until the stage is closed
            "unique_ancestors": 1 + (first[:, 1:] > first[:, :-1]).sum(axis=1),
        }
        changes = {"log_evidence": log_evidence}
        if block.founders is not None:
            changes["founders"] = np.take_along_axis(block.founders, ancestors, axis=1)
            record["unrelated"] = weights.unrelated(changes["founders"])
        stage = tempered.stage_of(tempering, self._mutations(block.stage), record, **changes)
        return Beginning(rows.ravel(), tuning, stage)

    def _next_tempering(self, problem: Problem, block: TemperedBlock) -> np.ndarray[Any, Any]:
        fixed = self.plan.schedule if self.plan is not None else self.schedule
        dtype = problem.dtype.type
        solved: Any = None if fixed is None else float(dtype(fixed[block.stage]))
        if fixed is None:
            solved = weights.next_tempering(
                block.log_likelihood, block.tempering, ess_fraction=self.ess_fraction, dtype=dtype
            )
        return np.where(block.tempering < 1, solved, 1.0)

    def _mutations(self, stage: int) -> int | Decorrelate:
        return self.mutations if self.plan is None or self.waste_free else int(self.plan.mutations[stage])
