"""Problems that the command line and tasks of a scheduler import by name, from this folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import isles
from isles.store.folder import BlockFolder


def hills() -> isles.Problem:
    """A quick Gaussian; where the environment asks for it, the process gets a signal after its next checkpoint."""
    if trap := os.environ.get("ISLES_TEST_TRAP"):
        spring_after_checkpoint(Path(trap))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = x @ np.ones(3) + rng.normal(size=40)
    return isles.Problem(
        isles.Gaussian(like=np.zeros(3)),
        lambda w, batch: -0.5 * jnp.sum((batch[1] - batch[0] @ w) ** 2),
        data=(x, y),
    )


def half_dead() -> isles.Problem:
    """Chains whose first draws often have no likelihood: island 0's for seed 4."""
    return isles.Problem(
        isles.Gaussian(like=np.zeros(2)), lambda theta: jnp.where(theta[0] > 0.3, theta[1], -jnp.inf)
    )


def all_dead() -> isles.Problem:
    """Nothing to sample from."""
    return isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: jnp.sum(theta) * jnp.nan)


def broken() -> isles.Problem:
    """A user's mistake."""
    raise ZeroDivisionError("mine")


def spring_after_checkpoint(trap: Path) -> None:
    """The file names a signal, and is gone when that was sent."""
    save: Any = BlockFolder.save

    def save_and_spring(self: BlockFolder, *arguments: Any) -> None:
        save(self, *arguments)
        if trap.exists():
            number = int(trap.read_text())
            trap.unlink()
            os.kill(os.getpid(), number)

    BlockFolder.save = save_and_spring  # type: ignore[method-assign]


def curve(noise: float = 0.3) -> isles.Problem:
    """A regression by a built-in network, which a saved run can predict with."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, size=(20, 1))
    network = isles.models.MLP(inputs=1, hidden=(3,), outputs=1, activation="tanh")
    prior = isles.Gaussian(like=network.shapes())
    return isles.regression(
        network.apply, prior, x, np.sin(3 * x[:, 0]) + noise * rng.normal(size=20), noise_std=noise
    )


def own_network(params: Any, x: Any) -> Any:
    """The network of `curve`, as a function that no file can hold."""
    return jnp.tanh(x @ params["w1"].T + params["b1"]) @ params["w2"].T + params["b2"]


def own(noise: float = 0.3) -> isles.Problem:
    """`curve` with a network of one's own."""
    given = curve(noise)
    return isles.regression(own_network, given.prior, *given.data, noise_std=noise)
