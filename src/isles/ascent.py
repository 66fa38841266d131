"""Adam uphill, for many rows of parameters at once. Where a climb is cut does not change a bit of its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from isles import checks, minibatches
from isles.problem import Problem


@dataclass(frozen=True)
class Optimised:
    """How chains find their starts: each climbs from a prior draw of its own to a high posterior density.

    An optimum is no draw, so burn-in is still needed. Adam's learning rate falls to zero along a cosine. The climb
    costs `epochs`, and one more at its end; then `settle`.

    Args:
        epochs: passes over the data: as many steps, or more of them with minibatches.
        learning_rate: at first, in units of the parameters.
        batch_rows: rows of a step, drawn with replacement for each chain by itself; by default all.
        shrink: factor on the prior draws that climbs begin from. Below 1 where draws are wild, as those of a deep
            network whose weights all have standard deviation 1: Adam finds its way from smaller ones.
        settle: where HMC adapts its step size, steps of a single leapfrog after the climb, so that burn-in, whose
            steps cost many, begins with one that fits. They cost an epoch each.

    >>> Optimised(epochs=200)
    Optimised(epochs=200, learning_rate=0.01, batch_rows=None, shrink=1.0, settle=64)
    """

    epochs: int = 500
    learning_rate: float = 0.01
    batch_rows: int | None = None
    shrink: float = 1.0
    settle: int = 64

    def __post_init__(self) -> None:
        checks.count("epochs", self.epochs)
        checks.positive("learning_rate", self.learning_rate)
        if self.batch_rows is not None:
            checks.count("batch_rows", self.batch_rows)
        checks.positive("shrink", self.shrink)
        checks.count("settle", self.settle, minimum=0)

    def check(self, problem: Problem) -> None:
        """Raise if the settings do not fit the problem, or optax is not there."""
        minibatches.check(problem, self.batch_rows)
        self.steps(problem)
        require_optax()

    def steps(self, problem: Problem) -> int:
        """Steps of a climb."""
        return minibatches.steps(problem, self.epochs, self.batch_rows)


class Climb(NamedTuple):
    """Parameters on their way up, with Adam's moments."""

    position: Array  # (R, d)
    mean: Array  # (R, d)
    square: Array  # (R, d)
    step: Array  # () steps made
    steps: Array  # () in all


@jax.jit
def foot(position: Array, steps: Any, shrink: Any = 1.0) -> Climb:
    """A climb about to begin."""
    zeros = jnp.zeros_like(position)
    return Climb(position * shrink, zeros, jnp.copy(zeros), jnp.int32(0), jnp.asarray(steps, jnp.int32))


def ascend(slope: Callable[[Array, Array], Array], now: Climb, rate: Any, until: Any) -> Climb:
    """Steps up to `until` along `slope(position, step)`. To be jitted."""
    optax = require_optax()
    adam = optax.scale_by_adam()

    def step(now: Climb) -> Climb:
        moments = optax.ScaleByAdamState(now.step, now.mean, now.square)
        move, moments = adam.update(slope(now.position, now.step), moments)
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * (now.step / now.steps).astype(now.position.dtype)))
        return Climb(now.position + rate * cosine * move, moments.mu, moments.nu, now.step + 1, now.steps)

    return jax.lax.while_loop(lambda now: now.step < until, step, now)


@partial(jax.jit, static_argnames=("batch_rows", "prior"))
def climb(
    problem: Problem,
    now: Climb,
    keys: Array,
    rate: Any,
    until: Any,
    batch_rows: int | None,
    prior: bool = True,
) -> Climb:
    """Toward a high posterior density, or likelihood; keys (R,) decide the minibatches."""

    def slope(positions: Array, step: Array) -> Array:
        def one(key: Array, position: Array) -> Array:
            estimate = minibatches.estimate(problem, jax.random.fold_in(key, step), position, batch_rows)
            assert estimate.gradient is not None
            return estimate.gradient + (problem.prior.gradient(position) if prior else 0)

        return problem.over_particles(one)(keys, positions)

    return ascend(slope, now, rate, until)


def require_optax() -> ModuleType:
    """optax, or an error that says how to get it."""
    try:
        import optax
    except ImportError:
        raise ImportError("optimisation needs optax; pip install 'isles[baselines]'") from None
    return optax


def check_start(start: object) -> Optimised | None:
    """How chains find their starts; None for prior draws."""
    if isinstance(start, Optimised):
        return start
    if not isinstance(start, str):
        raise TypeError(f"start={start!r} must be 'prior', 'optimised' or isles.Optimised(...)")
    return Optimised() if checks.choice("start", start, ["prior", "optimised"]) == "optimised" else None
