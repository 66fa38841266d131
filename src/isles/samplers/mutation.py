"""Mutations of a block of islands as one compiled program: rows are islands × particles under a single vmap.

The bounds of the loop, temperings and tunings are arguments, so nothing is compiled anew when they change,
and where a group of mutations is cut does not change a bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import adapt, devices, threefry
from isles.compiling import ByLength, has_short_sums
from isles.kernels.base import Tuning
from isles.keys import Rows
from isles.lanes import lay_rows, side_by_side
from isles.problem import Problem, State
from isles.samplers import moves, pace
from isles.samplers.groups import Arrival, Dials, Group, Static, arrived, underway
from isles.samplers.pace import Pause

Look = tuple[Array, Array]  # floats and counts of a group, each in one array


def mutate(
    problem: Problem,
    kernel: Static,
    group: Group,
    arrival: Arrival | None,
    tempering: Any,
    keys: Array | Rows,
    dials: Dials,
    done: int,
    until: int,
    pause: Pause,
) -> tuple[Group, Seen | None]:
    """Mutations from `done` up to `until` of every active island, at tempering (I,), with keys (I·N,).

    Long work goes to the device in pieces of about half a second, so that Ctrl-C is heard in between, and a pause
    may be asked for. Returned is also what is seen once all is done; None after a pause.
    """
    look, left = None, until - done
    # processes that share an island have to cut alike, whatever their clocks say
    for piece in (
        [left]
        if devices.spans_processes(problem.mesh)
        else pace.pieces(left, kernel.pace(problem, group.active.shape[0]))
    ):
        done += piece
        group, look = mutate_piece(problem, kernel, group, arrival, tempering, keys, dials, np.int32(done))
        look = devices.fetch(look)  # and wait for it: the pace is of work, not of asking for it
        if done < until:
            if not devices.fetch(group.active).any():
                break
            if pause():
                return group, None
            arrival = None if arrival is None else underway(len(arrival.ancestors), arrival.active)
    return group, read(problem, group, kernel.particles, look)


@partial(ByLength, static_argnames="kernel")
def mutate_piece(
    problem: Problem,
    kernel: Static,
    group: Group,
    arrival: Arrival | None,
    tempering: Array,
    keys: Array | Rows,
    dials: Dials,
    until: Array,
) -> tuple[Group, Look]:
    """Mutations up to `until`, and a look at the end, as one program. What it is given stays as it is."""
    group = group if arrival is None else arrived(problem, group, arrival)
    row_keys = keys.keys(kernel.particles) if isinstance(keys, Rows) else keys
    group = _mutate(problem.prepared(), kernel, group, tempering, row_keys, dials, until)
    return group, _summary(problem, group, kernel.particles)


def _mutate(
    problem: Problem, kernel: Static, group: Group, tempering: Array, keys: Array, dials: Dials, until: Array
) -> Group:
    particles = kernel.particles
    islands = group.active.shape[0]
    by_island = lambda x: x.reshape(islands, particles, *x.shape[1:])
    to_rows = lambda tree: jax.tree.map(partial(jnp.repeat, repeats=particles, axis=0), tree)
    shared = kernel.kernel.shares_length  # then not an array of rows, and a loop of that length needs no masks
    per_row: Any = Tuning(*(0, 0, None if shared else 0))
    axes = (0, 0, 0, per_row, 0) if kernel.kernel.partners else (0, 0, 0, per_row)
    step = problem.over_particles(partial(kernel.kernel.step, problem), axes)
    if kernel.kernel.partners:
        step = moves.by_halves(step, kernel.kernel.partners, particles // kernel.chain)

    def mutation(group: Group) -> Group:
        row_keys = jax.vmap(threefry.fold_in, (0, None))(keys, group.mutation)
        tuning_of_rows = to_rows(group.tuning)
        if shared:
            tuning_of_rows = tuning_of_rows._replace(length=group.tuning.length[0])
        move = step if kernel.chain == 1 else moves.along_chains(step, kernel.chain, islands, group.mutation)
        moved, info = move(row_keys, group.states, to_rows(tempering), tuning_of_rows)
        live = to_rows(group.active)
        states = jax.tree.map(
            lambda new, old: jnp.where(live.reshape(-1, *[1] * (old.ndim - 1)), new, old), moved, group.states
        )
        states = lay_rows(states)
        row_acceptance = jnp.nan_to_num(info.acceptance)
        acceptance = by_island(row_acceptance).mean(axis=1)
        number = group.mutation + 1
        learning = group.active & (number <= dials.adapt_until)
        tuning, mean = group.tuning, group.mean
        if group.mean is not None:
            coordinates = problem.over_particles(partial(kernel.kernel.coordinates, problem))(states.position)
            mean, variances = adapt.running_moments(group.mean, tuning.variances, by_island(coordinates), number)
            mean = jnp.where(learning[:, None], mean, group.mean)
            tuning = tuning._replace(variances=jnp.where(learning[:, None], variances, tuning.variances))
        if kernel.adapt_step:
            size = adapt.next_step_size(tuning.step_size, acceptance, dials.target_acceptance, number)
            size = jnp.minimum(size, kernel.kernel.max_step_size(tuning.variances))
            tuning = tuning._replace(step_size=jnp.where(learning, size, tuning.step_size))
        active, correlation = group.active, group.correlation
        if kernel.decorrelate and correlation is not None:
            seen = adapt.correlations(by_island(group.start), by_island(states.position))
            active = active & adapt.goes_on(kernel.decorrelate, correlation, seen, dials.threshold)
            correlation = jnp.where(group.active[:, None], seen, correlation)
        capped = by_island(jnp.broadcast_to(info.capped, live.shape)).any(axis=1)
        return Group(
            states, tuning, mean, group.start, active, number,
            moved=group.moved + group.active,
            acceptance=group.acceptance + jnp.where(live, row_acceptance, 0),
            capped=group.capped + (capped & group.active),
            correlation=correlation,
            evaluations=group.evaluations + jnp.where(live, info.evaluations, 0),
            nonfinite=group.nonfinite + jnp.where(live, info.nonfinite, 0),
        )  # fmt: skip

    unfinished = lambda group: (group.mutation < until) & group.active.any()
    short = has_short_sums(problem) and problem.mesh is None and jax.default_backend() == "cpu"
    with side_by_side(short and kernel.kernel.side_by_side):
        return jax.lax.while_loop(unfinished, mutation, group._replace(states=lay_rows(group.states)))


class Draws(NamedTuple):
    """What is recorded of one draw of every row; leaves (draws, I·N, ...) in a buffer."""

    position: Array
    log_prior: Array
    log_likelihood: Array


@partial(jax.jit, static_argnames=("count", "rows"))
def empty_draws(problem: Problem, count: int, rows: int) -> Draws:
    """Room for `count` draws of every row."""
    scalars = jnp.zeros((count, rows), problem.dtype)
    return Draws(jnp.zeros((count, rows, problem.dimension), problem.dtype), scalars, jnp.copy(scalars))


@partial(ByLength, static_argnames="kernel", donate_argnames=("group", "buffer"))
def draw_chain(
    problem: Problem,
    kernel: Static,
    group: Group,
    buffer: Draws,
    tempering: Array,
    keys: Array,
    dials: Dials,
    thin: Array,
    first: Array,
    offset: Array,
    count: Array,
) -> tuple[Group, Draws]:
    """Put draws `first` .. `first + count` of every chain into the buffer from `offset` on.

    Draw 0 is the state as it stands.
    """
    problem = problem.prepared()

    def draw(index: Array, carry: tuple[Group, Draws]) -> tuple[Group, Draws]:
        group, buffer = carry
        until = group.mutation + jnp.where(first + index == 0, 0, thin)
        group = _mutate(problem, kernel, group, tempering, keys, dials, until)
        states = group.states
        record = Draws(states.position, states.log_prior, states.log_likelihood)
        return group, jax.tree.map(lambda all, one: all.at[offset + index].set(one), buffer, record)

    return jax.lax.fori_loop(0, count, draw, (group, buffer))


@partial(jax.jit, static_argnames="kernel")
def population_tuning(
    problem: Problem, kernel: Static, states: State, weights: Array, tuning: Tuning, moving: Array
) -> Tuning:
    """`tuning` with the weighted variances (I, d) of the population, shrunk toward the last ones."""
    coordinates = problem.over_particles(partial(kernel.kernel.coordinates, problem))(states.position)
    coordinates = coordinates.reshape(*weights.shape, -1)
    live = weights[:, :, None] > 0  # a dead particle's coordinates may be anything
    coordinates = jnp.where(live, coordinates, 0.0)
    mean = jnp.einsum("in,ind->id", weights, coordinates)
    variances = jnp.einsum("in,ind->id", weights, jnp.square(coordinates - mean[:, None]))
    variances = adapt.shrunk_variances(variances, tuning.variances, kernel.particles)
    variances = jnp.where(moving[:, None], variances, tuning.variances)
    if kernel.adapt_step:
        step_size = jnp.minimum(tuning.step_size, kernel.kernel.max_step_size(variances))
        tuning = tuning._replace(step_size=step_size)
    return tuning._replace(variances=variances)


def host_log_likelihood(states: State, particles: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log-likelihoods (I, N) in float64, with the bits that the device's dtype could not hold."""
    high, low = devices.fetch((states.log_likelihood, states.low_bits))
    return _join(high, low, particles)


class Seen(NamedTuple):
    """What is known on the host of a group; parameters stay on the device."""

    log_likelihood: np.ndarray[Any, Any]  # (I, N) with the bits that the device's dtype could not hold
    acceptance: np.ndarray[Any, Any]  # (I·N,) sums, and so on as in `Group`
    evaluations: np.ndarray[Any, Any]  # (I, N)
    nonfinite: np.ndarray[Any, Any]  # (I, N)
    moved: np.ndarray[Any, Any]  # (I,)
    capped: np.ndarray[Any, Any]  # (I,)
    step_size: np.ndarray[Any, Any]  # (I,)
    memory: np.ndarray[Any, Any] | None  # (I,) correlation with the stage's start, averaged over coordinates


def read(problem: Problem, group: Group, particles: int, look: Any = None) -> Seen:
    """A `look` at a group, on the host. On small problems transfers take longer than their content: two."""
    numbers, counts = devices.fetch(_look(problem, group, particles)) if look is None else look
    islands = group.active.shape[0]
    rows = islands * particles
    high, low, acceptance = numbers[: 3 * rows].reshape(3, rows)
    step_size, *memory = numbers[3 * rows :].astype(np.float64).reshape(-1, islands)
    counts = counts.astype(np.int64)
    evaluations, nonfinite = counts[: 2 * rows].reshape(2, islands, particles)
    moved, capped = counts[2 * rows :].reshape(2, islands)
    return Seen(
        _join(high, low, particles), acceptance, evaluations, nonfinite, moved, capped,
        step_size, memory[0] if memory else None,
    )  # fmt: skip


@partial(ByLength, static_argnums=2)
def _look(problem: Problem, group: Group, particles: int) -> Look:
    return _summary(problem, group, particles)


def _summary(problem: Problem, group: Group, particles: int) -> Look:
    memory = []
    if group.start is not None:
        by_island = lambda x: x.reshape(-1, particles, x.shape[-1])
        memory = [adapt.correlations(by_island(group.start), by_island(group.states.position)).mean(axis=-1)]
    states = group.states
    numbers = [states.log_likelihood, states.low_bits, group.acceptance, group.tuning.step_size, *memory]
    counts = [group.evaluations, group.nonfinite, group.moved, group.capped]
    return jnp.concatenate(numbers), jnp.concatenate(counts)


def _join(high: Any, low: Any, particles: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(high.astype(np.float64) + low, np.float64).reshape(-1, particles)
