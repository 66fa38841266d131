"""Which rows of a block move in a mutation, where not all do at once: halves in turn, or the ends of chains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from isles.kernels.base import Info, Tuning
from isles.problem import State


def by_halves(step: Callable[..., Any], partners: int, particles: int) -> Callable[..., Any]:
    """Every second particle of each island moves while the others stand, then the others.

    Copies that resampling made stand side by side, so each half has its share of them.
    """
    half = particles // 2

    def turn(keys: Array, tempering: Array, tuning: Tuning, states: State, parity: Array) -> tuple[State, Info]:
        movers = 2 * jnp.arange(keys.shape[0] // 2) + parity
        taken = lambda tree: jax.tree.map(lambda leaf: leaf[movers] if leaf.ndim else leaf, tree)
        both = jax.vmap(jax.random.split)(keys[movers])
        chosen = jax.vmap(partial(_distinct, partners, half))(both[:, 0])  # (rows, partners)
        first = movers // particles * particles + 1 - parity  # of the half that stands, on the mover's island
        shown = states.position[first[:, None] + 2 * chosen]
        moved, info = step(both[:, 1], taken(states), tempering[movers], taken(tuning), shown)
        return jax.tree.map(lambda all, part: all.at[movers].set(part), states, moved), info

    def both_turns(keys: Array, states: State, tempering: Array, tuning: Tuning) -> tuple[State, Info]:
        states, info = jax.lax.scan(partial(turn, keys, tempering, tuning), states, jnp.arange(2))
        return states, jax.tree.map(lambda leaf: leaf.T.reshape(-1), info)  # (2, rows / 2) to rows

    return both_turns


def along_chains(step: Callable[..., Any], chain: int, islands: int, number: Array) -> Callable[..., Any]:
    """Mutation `number` of chains whose states all stay: those of that number move on to the next, method.md (4).

    An island's rows are its chains' first states, then their second ones, and so on.
    """
    by_number = lambda leaf: leaf.reshape(islands, chain, -1, *leaf.shape[1:])

    def current(tree: Any, place: Array | int) -> Any:
        at = lambda leaf: jax.lax.dynamic_index_in_dim(by_number(leaf), place, axis=1, keepdims=False)
        return jax.tree.map(lambda leaf: at(leaf).reshape(-1, *leaf.shape[1:]) if leaf.ndim else leaf, tree)

    def move(keys: Array, states: State, tempering: Array, tuning: Tuning) -> tuple[State, Info]:
        moved, info = step(current(keys, 0), current(states, number), current(tempering, 0), current(tuning, 0))

        def put(all: Array, part: Array) -> Array:
            part = part.reshape(islands, 1, -1, *all.shape[1:])
            return jax.lax.dynamic_update_slice_in_dim(by_number(all), part, number + 1, axis=1).reshape(all.shape)

        wide = lambda leaf: jnp.broadcast_to(leaf.reshape(islands, 1, -1), (islands, chain, leaf.size // islands))
        first = jnp.arange(chain)[:, None] == 0  # the work of a whole chain is counted where it begins
        counted = lambda leaf: jnp.where(first, wide(leaf), 0).reshape(-1)
        info = Info(
            acceptance=wide(info.acceptance).reshape(-1),
            evaluations=counted(info.evaluations),
            nonfinite=counted(info.nonfinite),
            capped=wide(info.capped).reshape(-1),
        )
        return jax.tree.map(put, states, moved), info

    return move


def _distinct(count: int, size: int, key: Array) -> Array:
    """`count` different numbers below `size`, every ordered choice as likely."""
    tops = size - jnp.arange(count)
    ranks = jax.random.randint(key, (count,), 0, tops)  # among those not yet chosen
    chosen: list[Array] = []
    for rank in ranks:
        for number in chosen if len(chosen) < 2 else jnp.sort(jnp.stack(chosen)):
            rank += rank >= number
        chosen.append(rank)
    return jnp.stack(chosen)
