"""Multiple-proposal Markov chain Monte Carlo: every point that a step proposes is used, with its weight."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import checks, expectations
from isles.keys import Purpose, island_keys, particle_keys
from isles.problem import Problem
from isles.samplers import block as blocks
from isles.samplers import groups, mutation, proposals, read_back
from isles.samplers.block import BlockResult, Output, Record, Status
from isles.samplers.pace import Pace, Pause, never, pieces
from isles.samplers.proposals import Chains, Dials, Points

BUFFER_BYTES = 1 << 26  # of points held on the device at a time
THINNED_POINTS = 10_000  # kept of each island by keep="thinned", about
PIECES = 20  # groups that burn-in and sampling are cut into at least, so that progress can be seen
MOST_LEARNED = 4096  # parameters whose covariance can be learned: more need too much memory and time a step


@dataclass(frozen=True)
class MPMCMC:
    r"""Rao-Blackwellised multiple-proposal MCMC (Calderhead 2014; Schwedes and Calderhead 2021).

    An island is one chain. From its current point x_0, a step draws an auxiliary point z and K proposals,

        z ~ N(x_0, ε²Σ/2),   x_k ~ N(z, ε²Σ/2),   k = 1..K.

    Given z, any of the K + 1 points could have been the current one, so their stationary probabilities are
    p_j ∝ π(x_j). The estimate of E[φ] is the mean over steps of Σ_j p_j φ(x_j), which uses every point, and the
    next state is drawn from p. Cost: 1 + K · (burn_in + steps) epochs an island, K of them side by side, without
    gradients.

    Σ holds the prior's variances. With `adaptive`, it is the covariance of the weighted points so far, learned
    with their mean by gains (1 + m)^{−0.7} after step m: the past decides the next proposal, and changes diminish.

    A posterior has all K + 1 points of a step as weighted draws, and no evidence: steps · (K + 1) · d numbers with
    `keep="all"`; with `keep="thinned"`, the points of evenly spaced steps, some 10,000 an island. `collect=` sees
    the points of all steps, whatever is kept.

    Args:
        proposals: K, of each step, evaluated together.
        steps: after burn-in, whose points are used.
        burn_in: steps whose points are not.
        adaptive: learn Σ from the weighted past (ARB-MP-MCMC); needs d² numbers an island.
        step_size: ε, fixed; adapted in the first 80 % of burn-in when None, starting at 2.38/√d.
        target_acceptance: mean probability of leaving the current point that adaptation aims at, as a share of
            K/(K + 1), which tiny steps would have.
    """

    proposals: int = 32
    steps: int = 1000
    burn_in: int = 500
    adaptive: bool = False
    step_size: float | None = None
    target_acceptance: float = 0.5

    def __post_init__(self) -> None:
        checks.count("proposals", self.proposals)
        checks.count("steps", self.steps)
        checks.count("burn_in", self.burn_in, minimum=0)
        if not isinstance(self.adaptive, bool):
            raise TypeError(f"adaptive={self.adaptive!r} must be True or False")
        if self.step_size is not None:
            checks.positive("step_size", self.step_size)
        checks.fraction("target_acceptance", self.target_acceptance)
        if self.burn_in + self.steps >= 1 << 31:
            raise ValueError(f"a chain of {self.burn_in + self.steps} steps is too long; at most 2³¹ − 1")

    @property
    def width(self) -> int:
        """Points of an island that are evaluated together."""
        return self.proposals

    @property
    def is_adaptive(self) -> bool:
        """Whether proposals follow the points."""
        return self.adaptive or (self.step_size is None and self.burn_in > 0)

    @property
    def adapt_until(self) -> int:
        """Steps during which the step size is tuned: 80 % of burn-in."""
        return self.burn_in * 4 // 5 if self.step_size is None else 0

    def spacing(self, keep: str) -> int:
        """Steps from one whose points are kept to the next."""
        fits = max(THINNED_POINTS // (self.proposals + 1), 1)
        return {"all": 1, "thinned": -(-self.steps // fits), "none": self.steps}[keep]

    def check(self, problem: Problem, output: Output) -> None:
        """Raise if the settings do not fit the problem."""
        if self.adaptive and problem.dimension > MOST_LEARNED:
            raise ValueError(
                f"adaptive=True learns a covariance of {problem.dimension} parameters; at most {MOST_LEARNED}: "
                f"set adaptive=False, or use a gradient kernel"
            )

    def begin(self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output) -> MPBlock:
        """A prior draw of every chain: one epoch."""
        outset = self._outset(problem, root, islands, output)
        states = proposals.draw_prior(problem, particle_keys(root, Purpose.PRIOR, 0, islands, 1))
        alive, nonfinite = blocks.first_states(states, 1)
        size = problem.dtype.type(self.step_size or 2.38 / math.sqrt(problem.dimension))
        epochs = np.zeros((len(islands), self.proposals), np.int64)
        epochs[:, 0] = 1
        return MPBlock(
            outset=outset,
            chains=proposals.new_chains(problem, states, outset.dials, size, self.proposals, self.adaptive),
            burnt_in=0,
            drawn=0,
            kept=(),
            sums={},
            sum_weights=np.zeros(len(islands)),
            epochs=epochs,
            nonfinite=nonfinite.sum(axis=1).astype(np.int64),
            dead=(~alive).sum(axis=1),
            lost=np.zeros(len(islands), np.int64),
            records=(),
            rounding=0.0,
            obituary=None if alive.any() else blocks.describe_dead(islands, alive, nonfinite),
        )

    def _outset(self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output) -> Outset:
        number = problem.dtype.type
        target = number(self.target_acceptance * self.proposals / (self.proposals + 1))
        stds = np.sqrt(problem.prior.variances()).astype(problem.dtype)
        dials = Dials(target, np.int32(self.adapt_until), jnp.asarray(stds))
        return Outset(self, island_keys(root, Purpose.MUTATION, 0, islands), islands, dials, output, Pace())

    def pack(self, block: MPBlock) -> dict[str, Any]:
        """What a checkpoint holds: everything but what the block is told; leaves on the host."""
        return {
            field.name: jax.device_get(getattr(block, field.name))
            for field in dataclasses.fields(block)
            if field.name != "outset"
        }

    def unpack(
        self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output, kept: dict[str, Any]
    ) -> MPBlock:
        """The block that a checkpoint holds."""
        outset, count, points = self._outset(problem, root, islands, output), len(islands), self.proposals + 1
        states = jax.eval_shape(proposals.draw_prior, problem, outset.keys)
        due = partial(proposals.new_chains, proposals=self.proposals, adaptive=self.adaptive)
        due = jax.eval_shape(due, problem, states, outset.dials, problem.dtype.type(1))
        read_back.check_like("chains", kept["chains"], due)
        read_back.check_arrays(kept, dict.fromkeys(("sum_weights", "nonfinite", "dead", "lost"), (count,)))
        read_back.check_arrays(kept, {"epochs": (count, self.proposals)})
        read_back.check_records(kept["records"], count)
        width = 0 if output.keep == "none" else problem.dimension
        for some in kept["kept"]:
            shape = (count, some.weight.shape[1], points)
            names = ("log_prior", "log_likelihood", "weight")
            read_back.check_arrays(some._asdict(), dict.fromkeys(names, shape) | {"position": (*shape, width)})
        for leaf in jax.tree.leaves(kept["sums"]):
            read_back.check_arrays({"sums": leaf}, {"sums": (count, *np.shape(leaf)[1:])})
        if kept["buffer"] is not None:
            room = partial(proposals.empty_points, steps=self._buffered(problem, islands), islands=count)
            due_points = jax.eval_shape(partial(room, points=points), problem)
            read_back.check_like("buffer", kept["buffer"], due_points)
        chains, buffer = jax.device_put((kept["chains"], kept["buffer"]))
        return MPBlock(outset, **kept | {"chains": chains, "buffer": buffer})

    def _buffered(self, problem: Problem, islands: np.ndarray[Any, Any]) -> int:
        """Steps whose points are held on the device at a time."""
        step_bytes = problem.dtype.itemsize * len(islands) * (self.proposals + 1) * (problem.dimension + 3)
        return int(np.clip(BUFFER_BYTES // step_bytes, 1, -(-self.steps // PIECES)))

    def finished(self, block: MPBlock) -> bool:
        """Whether all steps are made."""
        return block.drawn == self.steps

    def advance(self, problem: Problem, block: MPBlock, pause: Pause = never) -> MPBlock:
        """One group of steps: a piece of burn-in, or as many as the buffer holds points of; less on a `pause`."""
        burning = block.burnt_in < self.burn_in
        size = self._buffered(problem, block.islands)
        if burning:
            count = min(-(-self.burn_in // PIECES), self.burn_in - block.burnt_in)
        else:
            count = min(size, self.steps - block.drawn)
        if block.filled:
            (chains, buffer), filled = groups.copied((block.chains, block.buffer)), block.filled
        else:
            chains, buffer, filled = proposals.go_on(block.chains), None, 0
            if not burning:
                buffer = proposals.empty_points(problem, size, len(block.islands), self.proposals + 1)
        for piece in pieces(count - filled, block.outset.pace):
            chains, buffer = proposals.walk(
                problem, chains, buffer, block.outset.keys, block.outset.dials,
                np.int32(filled), np.int32(piece), self.proposals,
            )  # fmt: skip
            filled += piece
            jax.block_until_ready(chains)
            if filled < count and pause():
                return dataclasses.replace(block, chains=chains, buffer=buffer, filled=filled)
        if burning:
            return self._close(block, chains, count, burnt_in=block.burnt_in + count)
        block = self._record_points(problem, block, jax.device_get(buffer), count)
        return self._close(block, chains, count, drawn=block.drawn + count)

    def _record_points(self, problem: Problem, block: MPBlock, buffer: Any, count: int) -> MPBlock:
        """Add the points of a group of steps to the collected sums, and keep those that were asked for."""
        points: Any = Points(*(np.moveaxis(leaf[:count], 0, 1) for leaf in buffer))  # (I, count, K + 1, ...)
        islands, keep = len(block.islands), block.outset.output.keep
        weights = points.weight.reshape(islands, -1).astype(np.float64)
        positions = points.position.reshape(islands, -1, problem.dimension)
        sums = dict(block.sums)
        for name, function in block.outset.output.collect.items():
            total = expectations.island_sums(problem.layout, function, positions, weights)
            sums[name] = jax.tree.map(np.add, sums[name], total) if name in sums else total
        every = self.spacing(keep)
        wanted = [k for k in range(count) if (block.drawn + k) % every == 0]
        kept = block.kept
        if wanted:
            chosen = Points(*(leaf[:, wanted] for leaf in points))
            if keep == "none":
                chosen = chosen._replace(position=chosen.position[..., :0])
            kept = (*kept, chosen)
        used = points.log_likelihood[points.weight > 0]
        return dataclasses.replace(
            block,
            kept=kept,
            sums=sums,
            sum_weights=block.sum_weights + weights.sum(axis=1),
            rounding=max(block.rounding, blocks.rounding(problem, used, 1.0)),
        )

    def _close(self, block: MPBlock, chains: Chains, steps: int, **changes: Any) -> MPBlock:
        """Write down what the group of steps showed."""
        small = chains._replace(mean=None, covariance=None)
        seen = jax.device_get(small)
        islands = len(block.islands)
        nonfinite = seen.nonfinite.astype(np.int64).sum(axis=1)
        record: Record = {
            "step": np.full(islands, float(seen.step)),
            "acceptance": seen.left.astype(np.float64) / steps,
            "effective_points": seen.effective.astype(np.float64) / steps,
            "step_size": seen.step_size.astype(np.float64),
            "epochs": np.full(islands, float(steps)),
            "capped": np.zeros(islands),
            "nonfinite": nonfinite.astype(np.float64),
            "log_likelihood": mutation.host_log_likelihood(seen.states, 1)[:, 0],
        }
        lost = seen.lost.astype(np.int64) if block.burnt_in == self.burn_in else 0
        return dataclasses.replace(
            block,
            chains=chains,
            epochs=block.epochs + steps,
            nonfinite=block.nonfinite + nonfinite,
            lost=block.lost + lost,
            records=(*block.records, record),
            buffer=None,
            filled=0,
            **changes,
        )

    def result(self, problem: Problem, block: MPBlock) -> BlockResult:
        """The points of all kept steps on the host, weighted."""
        islands = len(block.islands)
        join = lambda name: np.concatenate([getattr(some, name) for some in block.kept], axis=1)
        flat = lambda name: join(name).reshape(islands, -1).astype(np.float64)
        positions = None
        if block.outset.output.keep != "none":
            positions = join("position").reshape(islands, -1, problem.dimension)
        with np.errstate(divide="ignore"):
            log_weights = np.log(flat("weight"))
        warnings: tuple[str, ...] = ()
        if block.lost.any():
            warnings = (
                f"{block.lost.sum()} of {self.steps * islands} steps have no point with a likelihood, and count "
                f"for nothing: raise burn_in={self.burn_in} or proposals={self.proposals}, or narrow the prior",
            )
        return BlockResult(
            positions=positions,
            log_prior=flat("log_prior"),
            log_likelihood=flat("log_likelihood"),
            log_weights=log_weights,
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


class Outset(NamedTuple):
    """What a block is told, and a checkpoint need not hold."""

    sampler: MPMCMC
    keys: Array  # (I,)
    islands: np.ndarray[Any, Any]  # (I,) their numbers in the run
    dials: Dials
    output: Output
    pace: Pace


@dataclass(frozen=True)
class MPBlock(blocks.Chained):
    """Chains between two groups of steps, or inside one."""

    outset: Outset
    chains: Chains
    burnt_in: int  # steps of burn-in done
    drawn: int  # steps done since
    kept: tuple[Points, ...]  # leaves (I, steps, K + 1, ...)
    sums: dict[str, Any]
    sum_weights: np.ndarray[Any, Any]  # (I,)
    epochs: np.ndarray[Any, Any]  # (I, K)
    nonfinite: np.ndarray[Any, Any]  # (I,)
    dead: np.ndarray[Any, Any]  # (I,)
    lost: np.ndarray[Any, Any]  # (I,) steps after burn-in none of whose points has a likelihood
    records: tuple[Record, ...]
    rounding: float
    obituary: str | None
    buffer: Points | None = None  # points of the group of steps under way
    filled: int = 0  # its steps done

    @property
    def at_landmark(self) -> bool:
        """Whether burn-in has just ended. Time decides on other checkpoints: they hold all points so far."""
        return self.drawn == 0 and not self.filled and self.burnt_in == self.outset.sampler.burn_in

    @property
    def status(self) -> Status:
        """Where the block stands."""
        sampler = self.outset.sampler
        steps = int(self.chains.step)
        last = self.records[-1] if self.records else {}
        return Status(
            share=steps / (sampler.burn_in + sampler.steps),
            stage=steps,
            tempering=1.0,
            ess=math.nan,
            acceptance=blocks.last_mean(last, "acceptance"),
            epochs=int(self.epochs.sum()) + self.filled * self.epochs.size,
        )
