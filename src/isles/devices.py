"""Several devices, of one process or of many: particles along one axis of a mesh, rows of data along the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from isles import checks

PARTICLES, DATA = "particles", "data"  # the axes of a mesh


def mesh(particles: int | None = None, data: int = 1, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh for `isles.sample(..., mesh=)`: GPUs, TPU cores or host devices, in a grid.

    Args:
        particles: parts that the particles of an island are split into; by default, all devices / `data`.
        data: parts that the rows of data are split into, for data sets that do not fit on one device.
        devices: which ones, and in which order; by default, those that JAX sees. After
            `jax.distributed.initialize` these are the devices of all processes, each of which then makes the same
            call of `isles.sample`.

    >>> dict(mesh(particles=1, data=1).shape)
    {'particles': 1, 'data': 1}
    """
    found = jax.devices() if devices is None else list(devices)
    data = checks.count("data", data)
    particles = max(len(found) // data, 1) if particles is None else checks.count("particles", particles)
    if particles * data > len(found):
        raise ValueError(
            f"particles={particles} x data={data} needs {particles * data} devices, JAX sees {len(found)}; for "
            f"host devices, set XLA_FLAGS=--xla_force_host_platform_device_count={particles * data} before "
            f"importing JAX"
        )
    grid = np.array(found[: particles * data], dtype=object).reshape(particles, data)
    return Mesh(grid, (PARTICLES, DATA), axis_types=(AxisType.Auto, AxisType.Auto))


def check(mesh: object, width: int) -> Mesh:
    """A mesh that isles can use for islands of `width` particles."""
    if not isinstance(mesh, Mesh) or set(mesh.axis_names) != {PARTICLES, DATA}:
        raise TypeError(f"mesh={mesh!r} must be made by isles.mesh(particles=..., data=...)")
    parts = mesh.shape[PARTICLES]
    if width % parts:
        raise ValueError(
            f"{width} particles cannot be split evenly over {parts} devices; take a multiple of {parts}"
        )
    owners = _owners(mesh)
    if owners not in ({jax.process_index()}, set(range(jax.process_count()))):
        raise ValueError(
            f"the mesh has devices of processes {sorted(owners)}, this is process {jax.process_index()} of "
            f"{jax.process_count()}; make it of jax.local_devices(), or of devices of all processes"
        )
    return mesh


def spans_processes(mesh: Mesh | None) -> bool:
    """Whether several processes work on one island."""
    return mesh is not None and len(_owners(mesh)) > 1


def fetch(tree: Any) -> Any:
    """Arrays on the host. What lies in several processes is gathered first, so all of them have to ask for it."""
    arrays: list[Any] = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    far = [leaf for leaf in arrays if not leaf.is_fully_addressable]
    if any(not leaf.is_fully_replicated for leaf in far):
        tree = _everywhere(tree, NamedSharding(far[0].sharding.mesh, PartitionSpec()))
    return jax.tree.map(np.asarray, tree)  # for a few arrays ten times as fast as `jax.device_get`


@partial(jax.jit, static_argnames="sharding")
def _everywhere(tree: Any, sharding: NamedSharding) -> Any:
    return jax.lax.with_sharding_constraint(tree, sharding)


def _owners(mesh: Mesh) -> set[int]:
    return {device.process_index for device in mesh.devices.flat}
