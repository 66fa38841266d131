"""Several devices in one process: particles along one axis of a mesh, rows of data along the other."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from isles import checks

PARTICLES, DATA = "particles", "data"  # the axes of a mesh


def mesh(particles: int | None = None, data: int = 1, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh for `isles.sample(..., mesh=)`: GPUs, TPU cores or host devices, in a grid.

    Args:
        particles: parts that the particles of an island are split into; by default, all devices / `data`.
        data: parts that the rows of data are split into, for data sets that do not fit on one device.
        devices: which ones, and in which order; by default, those that JAX sees.

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
    return mesh
