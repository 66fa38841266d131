"""Markov chain Monte Carlo: one long chain, or many short ones side by side."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from isles import ascent, checks, expectations
from isles.ascent import Climb, Optimised
from isles.kernels import HMC, Kernel
from isles.keys import Purpose, particle_keys
from isles.problem import Problem
from isles.samplers import block as blocks
from isles.samplers import burn_in, groups, mutation, pace, read_back, starts
from isles.samplers.block import BlockResult, Output, Record
from isles.samplers.chains import MCMCBlock, Outset
from isles.samplers.groups import Group, Static
from isles.samplers.mutation import Draws, Seen
from isles.samplers.pace import Pace, Pause, never

BUFFER_BYTES = 1 << 26  # of draws held on the device at a time
THINNED_DRAWS = 1000  # kept of each chain by keep="thinned"
PIECES = 20  # groups that burn-in and sampling are cut into at least, so that progress can be seen


@dataclass(frozen=True)
class MCMC:
    r"""Markov chains from prior draws or optima; an island is a group of chains, by default tuned together.

    Draw k of a chain is its state after burn_in + (k − 1) · thin steps. Step size and scales are adapted in
    the first 80 % of burn-in, and frozen from then on. There is no evidence
    estimate. Cost: 1 + (burn_in + (draws − 1) · thin) · L epochs a chain, and the cost of finding starts.

    Args:
        kernel: how chains move.
        chains: N, of each island; 1 for a serial chain.
        burn_in: steps before the first draw.
        draws: draws of each chain.
        thin: steps from one draw to the next.
        shared_start: all chains of an island start at one point, which nested R-hat needs.
        start: `"prior"`, or `"optimised"` for the ends of climbs from prior draws; see `isles.Optimised`.
        anneal: the tempering that burn-in begins at; it rises to 1 in the first half of burn-in, in ten steps of
            equal ratios. Below 1, chains leave the narrow modes that climbs end in for wider ones.
        tune: `"together"`, one step size and one set of scales for all chains of an island; or `"alone"`, each
            chain its own, so that none gets stuck where the others' steps are too long.
    """

    kernel: Kernel = field(default_factory=HMC)
    chains: int = 32
    burn_in: int = 900
    draws: int = 1
    thin: int = 1
    shared_start: bool = False
    start: str | Optimised = "prior"
    anneal: float = 1.0
    tune: str = "together"

    def __post_init__(self) -> None:
        blocks.require_kernel(self.kernel)
        object.__setattr__(self, "start", ascent.check_start(self.start) or "prior")
        checks.count("chains", self.chains)
        checks.count("burn_in", self.burn_in, minimum=0)
        checks.count("draws", self.draws)
        checks.count("thin", self.thin)
        checks.choice("tune", self.tune, ["together", "alone"])
        if checks.positive("anneal", self.anneal) > 1:
            raise ValueError(f"anneal={self.anneal} must be in (0, 1]; 1 for burn-in at the posterior itself")
        if self.burn_in + (self.draws - 1) * self.thin >= 1 << 31:
            raise ValueError(
                f"a chain of {self.burn_in + (self.draws - 1) * self.thin} steps is too long; at most 2³¹ − 1"
            )

    @property
    def width(self) -> int:
        """Chains of an island."""
        return self.chains

    @property
    def tuned_together(self) -> int:
        """Chains that have one step size."""
        return self.chains if self.tune == "together" else 1

    def groups(self, islands: np.ndarray[Any, Any]) -> int:
        """Of chains that have one step size each."""
        return len(islands) * self.chains // self.tuned_together

    @property
    def is_adaptive(self) -> bool:
        """Whether burn-in tunes the kernel."""
        kernel = self.kernel
        return kernel.adapts_step_size or kernel.scale_from_population or kernel.learns_metric

    @property
    def way(self) -> Optimised | None:
        """How chains find their starts; None if they are prior draws."""
        return ascent.check_start(self.start)

    @property
    def adapt_until(self) -> int:
        """Steps during which the kernel is tuned: 80 % of burn-in."""
        return self.burn_in * 4 // 5

    def spacing(self, keep: str) -> int:
        """Draws from one that is kept to the next."""
        return {"all": 1, "thinned": -(-self.draws // THINNED_DRAWS), "none": self.draws}[keep]

    def check(self, problem: Problem, output: Output) -> None:
        """Raise if the settings do not fit the problem."""
        blocks.check_kernel(problem, self.kernel, self.chains, metric=True)
        if self.way is not None:
            self.way.check(problem)
        if self.tune == "alone" and (self.kernel.partners or self.kernel.learns_metric):
            raise ValueError(
                f"{self.kernel} learns from all chains of an island, and tune='alone' leaves it one; set "
                f"tune='together'"
            )
        if self.shared_start and self.kernel.partners:
            raise ValueError(
                f"{type(self.kernel).__name__} moves chains along their differences, and shared_start=True leaves "
                f"none; set shared_start=False"
            )

    def begin(self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output) -> MCMCBlock:
        """Prior draws: one epoch a chain."""
        outset = self._outset(root, islands, output)
        kernel = outset.kernel
        states = groups.draw_prior(problem, kernel, starts.keys(self, root, Purpose.PRIOR, islands))
        alive, nonfinite = blocks.first_states(states, self.chains)
        count = self.groups(islands)
        tuning = groups.broadcast_tuning(self.kernel.tuning(problem), count)
        group = groups.new_group(problem, kernel, states, tuning, np.ones(count, bool))
        return MCMCBlock(
            outset=outset,
            group=group,
            burnt_in=0,
            drawn=0,
            kept=(),
            sums={},
            sum_weights=np.zeros(len(islands)),
            epochs=np.full((len(islands), self.chains), self.kernel.evaluation_epochs(problem)),
            nonfinite=nonfinite.sum(axis=1).astype(np.int64),
            dead=(~alive).sum(axis=1),
            records=(),
            lost=np.zeros((len(islands), self.chains), bool),
            late_steps=0,
            late_acceptance=np.zeros((len(islands), self.chains)),
            rounding=0.0,
            obituary=None if alive.any() else blocks.describe_dead(islands, alive, nonfinite),
            climb=starts.foot(problem, self.way, states),
        )

    def _outset(self, root: Array, islands: np.ndarray[Any, Any], output: Output) -> Outset:
        kernel = Static(
            self.kernel,
            self.tuned_together,
            adapt_step=self.kernel.adapts_step_size,
            adapt_scale=bool(self.kernel.scale_from_population),
        )
        keys = particle_keys(root, Purpose.MUTATION, 0, islands, self.chains)
        climb_keys = starts.keys(self, root, Purpose.OPTIMISATION, islands)
        return Outset(self, keys, islands, kernel, output, climb_keys, Pace())

    def pack(self, block: MCMCBlock) -> dict[str, Any]:
        """What a checkpoint holds: everything but what the block is told; leaves on the host."""
        return {
            field.name: jax.device_get(getattr(block, field.name))
            for field in dataclasses.fields(block)
            if field.name != "outset"
        }

    def unpack(
        self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output, kept: dict[str, Any]
    ) -> MCMCBlock:
        """The block that a checkpoint holds."""
        outset = self._outset(root, islands, output)
        group = kept["group"]
        read_back.check_like("group", group, read_back.due_group(problem, outset.kernel, self.groups(islands)))
        read_back.check_arrays(kept, dict.fromkeys(("sum_weights", "nonfinite", "dead"), (len(islands),)))
        read_back.check_arrays(
            kept, dict.fromkeys(("epochs", "lost", "late_acceptance"), (len(islands), self.chains))
        )
        read_back.check_records(kept["records"], len(islands))
        for draws in kept["kept"]:
            shape = len(islands), self.chains, draws.log_prior.shape[2]
            read_back.check_arrays(draws._asdict(), {"log_prior": shape, "log_likelihood": shape})
            width = 0 if output.keep == "none" else problem.dimension
            read_back.check_arrays(draws._asdict(), {"position": (*shape, width)})
        for leaf in jax.tree.leaves(kept["sums"]):
            read_back.check_arrays({"sums": leaf}, {"sums": (len(islands), *np.shape(leaf)[1:])})
        if kept["buffer"] is not None:
            due = partial(
                mutation.empty_draws, count=self._buffered(problem, islands), rows=self.chains * len(islands)
            )
            read_back.check_like("buffer", kept["buffer"], jax.eval_shape(due, problem))
        if kept["climb"] is not None:
            read_back.check_like("climb", kept["climb"], jax.eval_shape(ascent.foot, group.states.position, 0))
        group, buffer, climb = jax.device_put((group, kept["buffer"], kept["climb"]))
        group = group._replace(states=problem.place(group.states))
        climb = None if climb is None else climb._replace(position=problem.place(climb.position))
        return MCMCBlock(outset, **kept | {"group": group, "buffer": buffer, "climb": climb})

    def _buffered(self, problem: Problem, islands: np.ndarray[Any, Any]) -> int:
        """Draws of each chain that are held on the device at a time."""
        fits = BUFFER_BYTES // (problem.dtype.itemsize * len(islands) * self.chains * (problem.dimension + 2))
        return int(np.clip(fits, 1, -(-self.draws // PIECES)))

    def finished(self, block: MCMCBlock) -> bool:
        """Whether all draws are taken."""
        return block.drawn == self.draws

    def advance(self, problem: Problem, block: MCMCBlock, pause: Pause = never) -> MCMCBlock:
        """One group of steps: a piece of burn-in, or as many draws as the buffer holds; less on a `pause`."""
        if block.climb is not None:
            return self._climb(problem, block, block.climb, pause)
        kernel, keys = block.outset.kernel, block.outset.keys
        tempering = burn_in.flat(problem, self, self.groups(block.islands), block.burnt_in)
        dials = groups.dials(problem, self.kernel, self.adapt_until)
        if block.burnt_in < self.burn_in:
            until = min(self.burn_in, block.burnt_in + -(-self.burn_in // PIECES))
            group = block.group if block.cut else groups.go_on(block.group)
            if not block.cut:
                group, spent = burn_in.learn(problem, self, group, block.burnt_in)
                block = dataclasses.replace(block, epochs=block.epochs + spent)
            done = int(block.group.mutation)
            group, seen = mutation.mutate(problem, kernel, group, None, tempering, keys, dials, done, until, pause)
            if seen is None:
                return dataclasses.replace(block, group=group, cut=True)
            return self._close(block, group, seen, burnt_in=until)
        rows = len(block.islands) * self.chains
        size = self._buffered(problem, block.islands)
        count = min(size, self.draws - block.drawn)
        if block.buffer is None:
            group, buffer, filled = groups.go_on(block.group), mutation.empty_draws(problem, size, rows), 0
        else:
            (group, buffer), filled = groups.copied((block.group, block.buffer)), block.filled
        for piece in pace.pieces(count - filled, kernel.pace(problem, group.active.shape[0], self.thin)):
            group, buffer = mutation.draw_chain(
                problem, kernel, group, buffer, tempering, keys, dials,
                np.int32(self.thin), np.int32(block.drawn + filled), np.int32(filled), np.int32(piece),
            )  # fmt: skip
            filled += piece
            jax.block_until_ready(buffer)
            if filled < count and pause():
                return dataclasses.replace(block, group=group, buffer=buffer, filled=filled, cut=True)
        block = self._record_draws(problem, block, jax.device_get(buffer), count)
        seen = mutation.read(problem, group, self.tuned_together)
        return self._close(block, group, seen, drawn=block.drawn + count)

    def _climb(self, problem: Problem, block: MCMCBlock, climb: Climb, pause: Pause) -> MCMCBlock:
        """Toward where chains start; one whose end has no likelihood starts at its prior draw."""
        way, group, outset = self.way, block.group, block.outset
        assert way is not None
        climb = starts.climb_on(problem, way, climb, outset.climb_keys, outset.climb_pace, pause)
        if climb.step < climb.steps:
            return dataclasses.replace(block, climb=climb)
        states = starts.begin_at(problem, outset.kernel, climb.position, group.states)
        group = groups.new_group(problem, outset.kernel, states, group.tuning, group.active)
        group, looked = burn_in.learn(problem, self, group, 0)
        tempering = burn_in.flat(problem, self, self.groups(block.islands), 0)
        group = starts.settle(problem, outset.kernel, group, outset.climb_keys, starts.settling(self), tempering)
        spent, nonfinite = (count.reshape(-1, self.chains) for count in jax.device_get(group[-2:]))
        return dataclasses.replace(
            block,
            group=groups.new_group(problem, outset.kernel, group.states, group.tuning, group.active),
            climb=None,
            epochs=block.epochs + way.epochs + 1 + looked + spent,
            nonfinite=block.nonfinite + nonfinite.sum(axis=1),
        )

    def result(self, problem: Problem, block: MCMCBlock) -> BlockResult:
        """Chains on the host, equally weighted; draws outside the likelihood's support have no weight."""
        log_likelihood = np.concatenate([draws.log_likelihood for draws in block.kept], axis=2)
        log_prior = np.concatenate([draws.log_prior for draws in block.kept], axis=2)
        islands = len(block.islands)
        flat = lambda x: x.reshape(islands, -1).astype(np.float64)
        positions = None
        if block.outset.output.keep != "none":
            positions = np.concatenate([draws.position for draws in block.kept], axis=2)
            positions = positions.reshape(islands, -1, problem.dimension)
        warnings: tuple[str, ...] = ()
        if block.lost.any():
            warnings = (
                f"{block.lost.sum()} of {block.lost.size} chains have draws where the likelihood is zero or not "
                f"finite; these draws have weight 0: raise burn_in={self.burn_in} or narrow the prior",
            )
        stuck = block.late_acceptance < 0.01 * block.late_steps
        if block.late_steps >= 20 and stuck.any():
            alone = self.tune == "alone" or self.kernel.partners or self.kernel.learns_metric
            remedy = "" if alone else "take tune='alone', "
            warnings += (
                f"{stuck.sum()} of {stuck.size} chains hardly moved once the step size was fixed, so their draws "
                f"stand where they got stuck: {remedy}raise target_acceptance, set a smaller step_size or use SMC",
            )
        return BlockResult(
            positions=positions,
            log_prior=flat(log_prior),
            log_likelihood=flat(log_likelihood),
            log_weights=np.where(np.isfinite(flat(log_likelihood)), 0.0, -np.inf),
            log_evidence=None,
            epochs=block.epochs,
            nonfinite=block.nonfinite,
            dead=block.dead,
            records=list(block.records),
            sums=block.sums,
            sum_weights=block.sum_weights,
            plan=None,
            rounding=block.rounding,
            warnings=warnings,
        )

    def _record_draws(self, problem: Problem, block: MCMCBlock, buffer: Draws, count: int) -> MCMCBlock:
        """Add a group of draws to the collected sums, and keep those that were asked for."""
        by_chain = lambda x: np.moveaxis(x[:count].reshape(count, -1, self.chains, *x.shape[2:]), 0, 2)
        draws = Draws(*map(by_chain, buffer))  # (I, chains, count, ...)
        usable = np.isfinite(draws.log_likelihood).reshape(len(block.islands), -1).astype(np.float64)
        lost = block.lost | ~np.isfinite(draws.log_likelihood).all(axis=2)
        rounding = max(block.rounding, blocks.rounding(problem, np.asarray(draws.log_likelihood), 1.0))
        positions = np.asarray(draws.position).reshape(len(block.islands), -1, problem.dimension)
        sums = dict(block.sums)
        for name, function in block.outset.output.collect.items():
            total = expectations.island_sums(problem.layout, function, positions, usable)
            sums[name] = jax.tree.map(np.add, sums[name], total) if name in sums else total
        every = self.spacing(block.outset.output.keep)
        wanted = [k for k in range(count) if (block.drawn + k) % every == 0]
        kept = block.kept
        if wanted:
            chosen = Draws(*(x[:, :, wanted] for x in draws))
            if block.outset.output.keep == "none":
                chosen = chosen._replace(position=chosen.position[..., :0])
            kept = (*kept, chosen)
        total_weight = block.sum_weights + usable.sum(axis=1)
        return dataclasses.replace(
            block, kept=kept, sums=sums, sum_weights=total_weight, lost=lost, rounding=rounding
        )

    def _close(self, block: MCMCBlock, group: Group, seen: Seen, **changes: Any) -> MCMCBlock:
        """Write down what the group of steps showed."""
        islands = len(block.islands)
        by_island = lambda values: values.reshape(islands, -1)
        evaluations, nonfinite = by_island(seen.evaluations), by_island(seen.nonfinite)
        late = block.burnt_in >= self.adapt_until
        late_acceptance = block.late_acceptance + late * by_island(seen.acceptance.astype(np.float64))
        record: Record = {
            "step": np.full(islands, float(group.mutation)),
            "acceptance": by_island(blocks.mean_acceptance(seen.acceptance, seen.moved)).mean(axis=1),
            "step_size": np.median(by_island(seen.step_size), axis=1),
            "epochs": evaluations.max(axis=1).astype(np.float64),
            "capped": by_island(seen.capped).max(axis=1).astype(np.float64),
            "nonfinite": nonfinite.sum(axis=1).astype(np.float64),
            "log_likelihood": by_island(seen.log_likelihood).mean(axis=1),
        }
        return dataclasses.replace(
            block,
            group=group,
            epochs=block.epochs + evaluations,
            nonfinite=block.nonfinite + nonfinite.sum(axis=1),
            late_steps=block.late_steps + late * int(seen.moved.max()),
            late_acceptance=late_acceptance,
            records=(*block.records, record),
            cut=False,
            buffer=None,
            filled=0,
            **changes,
        )
