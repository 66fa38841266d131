"""Data made ready once for many evaluations: what a network makes of its inputs before it looks at parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array

from isles.models.networks import CNN

PREPARED_BYTES = 1 << 26  # of data made ready, that a program may hold beside the data themselves


class OfNetwork:
    """A likelihood of what a network's `apply(params, x)` returns, with batches (x, y)."""

    apply: Callable[..., Array]


class Ready(NamedTuple):
    """Data as `prepare` made them, chunk by chunk."""

    chunks: Any  # stacked
    left: Any  # of the rows that fill no chunk; None if there are none


def ready(likelihood: Any, data: Any, size: int) -> Ready | None:
    """Chunks of `size` rows, made ready; None where nothing is to be made, or where that takes much memory."""
    network = network_of(likelihood)
    if network is None:
        return None
    prepare = lambda batch: (network.prepare(batch[0]), batch[1])
    made = jax.tree.leaves(jax.eval_shape(prepare, data))
    if sum(leaf.size * leaf.dtype.itemsize for leaf in made) > PREPARED_BYTES:
        return None
    rows = len(data[0])
    split = rows - rows % size
    stacked = jax.tree.map(lambda leaf: leaf[:split].reshape(-1, size, *leaf.shape[1:]), data)
    left = prepare(jax.tree.map(lambda leaf: leaf[split:], data)) if split < rows else None
    return Ready(jax.lax.map(prepare, stacked), left)


def network_of(likelihood: Any) -> CNN | None:
    """The network that can make its inputs ready; None for others, and for users' own variants of likelihoods."""
    if OfNetwork not in type(likelihood).__bases__:
        return None
    network = getattr(likelihood.apply, "__self__", likelihood.apply)
    whole = type(network) is CNN and likelihood.apply in (network, network.apply)  # `plain` takes arrays alone
    return network if whole else None
