"""Islands between two mutations, on the device: how such a group is made, and how a stage begins with it."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import adapt
from isles.kernels.base import Kernel, Tuning
from isles.keys import Rows
from isles.problem import Problem, State
from isles.samplers import pace
from isles.samplers.pace import Pace

COUNTERS = "moved", "acceptance", "capped", "evaluations", "nonfinite"  # of a `Group`
UNSEEN = 2.0  # a correlation from which any falls


class Group(NamedTuple):
    """A block of islands between two mutations: what the next one needs, and sums since the stage began."""

    states: State  # leaves (I·N, ...)
    tuning: Tuning  # leaves (I, ...)
    mean: Array | None  # (I, d) running mean of the kernel's coordinates, while burn-in learns scales
    start: Array | None  # (I·N, d) positions at the start of the stage, to see how far particles get from it
    active: Array  # (I,) bool: islands still moving in this stage
    mutation: Array  # () mutations so far in this stage
    moved: Array  # (I,) mutations each island made
    acceptance: Array  # (I·N,) sum of acceptance probabilities
    capped: Array  # (I,) mutations whose trajectory was cut short
    correlation: Array | None  # (I, d) with the stage's start, as last seen by a rule for the number of mutations
    evaluations: Array  # (I·N,) epochs
    nonfinite: Array  # (I·N,) evaluations that gave NaN, +inf or a non-finite gradient


class Static:
    """A kernel and the shape of its use, as jit's static argument: equal programs share compiled code."""

    def __init__(
        self,
        kernel: Kernel,
        particles: int,
        *,
        adapt_step: bool,
        adapt_scale: bool,
        decorrelate: type[adapt.Decorrelate] | None = None,
        keep_start: bool = False,
        chain: int = 1,
    ) -> None:
        self.kernel, self.particles = kernel, particles
        self.chain = chain  # particles that are states of one chain, one a mutation, in waste-free SMC; else 1
        self.adapt_step, self.adapt_scale, self.decorrelate = adapt_step, adapt_scale, decorrelate
        self.keep_start = keep_start or bool(decorrelate)
        self.paces: dict[tuple[int, int, int], Pace] = {}
        self.settings = repr(kernel)  # programs may share code and yet take longer, with more leapfrogs
        # a subclass that does not say what its step reads may read anything
        program = kernel.program() if "program" in vars(type(kernel)) else kernel
        self.identity = (
            type(kernel),
            program,
            particles,
            adapt_step,
            adapt_scale,
            decorrelate,
            self.keep_start,
            chain,
        )

    def pace(self, problem: Problem, islands: int, thin: int = 0) -> Pace:
        """Of mutations of so many islands, or of draws that are so many mutations apart."""
        use = id(problem), islands, thin
        if use not in self.paces:  # hashing takes longer than a short stage should
            program = self, self.settings, jax.tree.structure(problem), islands, thin
            self.paces[use] = pace.pace_of(hash(program))
        return self.paces[use]

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.identity == other.identity


class Dials(NamedTuple):
    """Numbers that steer adaptation."""

    target_acceptance: Any  # ()
    adapt_until: Any  # () mutations before which tuning may change
    threshold: Any  # () correlation at which an island stops


def dials(problem: Problem, kernel: Kernel, adapt_until: int, threshold: float = 0.0) -> Dials:
    """`Dials` with the dtypes that keep compiled code reusable."""
    number = problem.dtype.type
    target = 0.0 if kernel.target_acceptance is None else kernel.target_acceptance
    return Dials(number(target), np.int32(adapt_until), number(threshold))


def broadcast_tuning(tuning: Tuning, islands: int) -> Tuning:
    """One tuning for every island, leaves (I, ...), on the host."""
    return Tuning(*(np.repeat(np.asarray(leaf)[None], islands, axis=0) for leaf in tuning))


@partial(jax.jit, static_argnames="kernel")
def draw_prior(problem: Problem, kernel: Static, keys: Array | Rows) -> State:
    """A prior draw and its evaluation for each key: one epoch each."""
    keys = keys.keys(kernel.particles) if isinstance(keys, Rows) else keys
    states = problem.over_particles(lambda key: kernel.kernel.init(problem, problem.prior.draw(key)))(keys)
    return problem.place(states)


@partial(jax.jit, static_argnames="kernel")
def new_group(problem: Problem, kernel: Static, states: State, tuning: Tuning, active: Any) -> Group:
    """States that have not moved, with memory of their own."""
    rows = states.position.shape[0]
    islands = rows // kernel.particles
    counts = lambda size: jnp.zeros(size, jnp.int32)
    states = problem.place(jax.tree.map(jnp.copy, states))
    start = jnp.copy(states.position) if kernel.keep_start else None
    mean = _mean_coordinates(problem, kernel, states.position) if kernel.adapt_scale else None
    correlation = jnp.full((islands, problem.dimension), UNSEEN, problem.dtype) if kernel.decorrelate else None
    return Group(
        states, jax.tree.map(jnp.copy, tuning), mean, start, jnp.copy(active), counts(()), counts(islands),
        jnp.zeros(rows, problem.dtype), counts(islands), correlation,
        counts(rows), counts(rows),
    )  # fmt: skip


@partial(jax.jit, static_argnames="kernel")
def first_group(problem: Problem, kernel: Static, keys: Rows, tuning: Tuning) -> Group:
    """Prior draws of every island."""
    return new_group(problem, kernel, draw_prior(problem, kernel, keys), tuning, jnp.ones(len(keys.islands), bool))


class Arrival(NamedTuple):
    """How a stage begins: at rows of what the last one left. Of a stage that has begun, everything stays."""

    begins: Any  # () bool
    ancestors: Any  # (I·N,) row of each, and each its own in a stage that has begun
    active: Any  # (I,) bool: islands that move in this stage


def underway(rows: int, active: Any) -> Arrival:
    """A stage that has begun."""
    return Arrival(np.bool_(False), np.arange(rows, dtype=np.int32), active)


def arrived(problem: Problem, group: Group, arrival: Arrival) -> Group:
    """Part of the program that mutates: as one of its own, the choice of rows takes as long as a mutation."""
    chosen = lambda leaf: leaf.at[arrival.ancestors].get(mode="promise_in_bounds")
    states = problem.place(jax.tree.map(chosen, group.states))
    now = lambda new, old: jnp.where(arrival.begins, new, old)
    counted = {name: getattr(group, name) for name in ("mutation", *COUNTERS)}
    zeroed: dict[str, Any] = {name: now(jnp.zeros_like(count), count) for name, count in counted.items()}
    return group._replace(
        states=states,
        start=None if group.start is None else now(states.position, group.start),
        active=now(arrival.active, group.active),
        correlation=None if group.correlation is None else now(UNSEEN, group.correlation),
        **zeroed,
    )


@jax.jit
def copied(tree: Any) -> Any:
    """A copy to give away: `draw_chain` overwrites its group in place."""
    return jax.tree.map(jnp.copy, tree)


@jax.jit
def go_on(group: Group) -> Group:
    """A copy with counters at zero, to give away."""
    zeroed: dict[str, Any] = {name: jnp.zeros_like(getattr(group, name)) for name in COUNTERS}
    return jax.tree.map(jnp.copy, group._replace(**zeroed))


def _mean_coordinates(problem: Problem, kernel: Static, positions: Array) -> Array:
    coordinates = problem.over_particles(partial(kernel.kernel.coordinates, problem))(positions)
    return coordinates.reshape(-1, kernel.particles, coordinates.shape[-1]).mean(axis=1)
