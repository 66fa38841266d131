"""What every kernel is: `init` and `step`, and a few facts that samplers use to tune it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import checks, threefry
from isles.problem import Problem, State

Tree = TypeVar("Tree")


class Tuning(NamedTuple):
    """What adaptation may change from step to step, per island, without a new program."""

    step_size: Any  # ()
    variances: Any  # (d,) of the target in the kernel's coordinates: pCN's D, HMC's inverse mass
    length: Any  # () HMC: trajectory, or number of leapfrogs


class Info(NamedTuple):
    """What a reader of one step needs."""

    acceptance: Array  # () probability in [0, 1]
    evaluations: Array | int = 1  # () epochs spent
    nonfinite: Array | int = 0  # () evaluations that gave NaN, +inf or a non-finite gradient
    capped: Array | bool = False  # () a limit on the trajectory was binding


class Kernel:
    """A Markov kernel that leaves π_λ ∝ prior × likelihood^λ invariant, for every tempering λ.

    Write your own as a frozen dataclass with `step` (and `init`, where the default will not do). `step` is
    traced by JAX for one particle and vectorised over all of them.

    A kernel with `partners = k` moves an island's particles by halves in turn, and its `step` takes one argument
    more: the positions (k, d) of k particles of the half that stands still, different ones, in random order. If
    it leaves π_λ invariant for any fixed partners, it leaves the island's product of π_λ invariant.
    """

    uses_gradient: ClassVar[bool] = False
    side_by_side: ClassVar[bool] = False  # whether `step` says how its vectors lie in memory: see `isles.lanes`
    partners: ClassVar[int] = 0  # particles of the other half of the island that `step` is shown
    target_acceptance: float | None = None  # None: the step size is never adapted
    step_size: float | None = None  # None: adapted toward target_acceptance

    def init(self, problem: Problem, position: Array) -> State:
        """The state at a position (d,): one evaluation."""
        return problem.evaluate(position, gradient=self.uses_gradient)

    def step(
        self, problem: Problem, key: Array, state: State, tempering: Array, tuning: Tuning
    ) -> tuple[State, Info]:
        """One move of one particle."""
        raise NotImplementedError(f"{type(self).__name__} needs a step(problem, key, state, tempering, tuning)")

    def check(self, problem: Problem) -> None:
        """Raise if this kernel cannot work on this problem."""

    def tuning(self, problem: Problem) -> Tuning:
        """Where adaptation starts; found from the prior alone, so that no evaluation goes uncounted."""
        step_size = 1.0 if self.step_size is None else self.step_size
        return tuning(problem, step_size, np.ones(problem.dimension))

    def evaluation_epochs(self, problem: Problem) -> int:
        """Epochs that `init` takes."""
        return 1

    def coordinates(self, problem: Problem, position: Array) -> Array:
        """The coordinates (d,) whose population variances `tuning.variances` are."""
        return position

    def max_step_size(self, variances: Array) -> Array:
        """Upper bound on the step size."""
        return jnp.full(variances.shape[:-1], jnp.inf, variances.dtype)

    def program(self) -> Hashable:
        """The settings that `step` reads other than through `tuning`: equal ones share compiled code."""
        return self

    @property
    def scale_from_population(self) -> bool:
        """Whether `tuning.variances` follow the particles."""
        return False

    @property
    def learns_metric(self) -> bool:
        """Whether `tuning.variances` are the matrices of `metric.fitted`, which burn-in learns."""
        return False

    @property
    def shares_length(self) -> bool:
        """Whether `tuning.length` is one number for all islands."""
        return False

    @property
    def adapts_step_size(self) -> bool:
        """Whether samplers tune the step size."""
        return self.step_size is None and self.target_acceptance is not None


def tuning(problem: Problem, step_size: float, variances: Any, length: float = 0.0) -> Tuning:
    """A `Tuning` in the problem's dtype, on the host."""
    dtype = problem.dtype
    return Tuning(np.asarray(step_size, dtype), np.asarray(variances, dtype), np.asarray(length, dtype))


def accept(key: Array, log_ratio: Array, new: Tree, old: Tree) -> tuple[Tree, Array]:
    """The Metropolis choice: `new` with probability min(1, e^log_ratio), and that probability."""
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    # log u as minus an exponential: log of a uniform is -inf once in 2^23 draws, and would accept anything
    accepted = -threefry.exponential(key, log_ratio.dtype) <= log_ratio
    chosen = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, old)
    return chosen, jnp.exp(jnp.minimum(log_ratio, 0.0))


def check_settings(kernel: Any) -> None:
    """The settings that all kernels share."""
    if kernel.step_size is not None:
        checks.positive("step_size", kernel.step_size)
    checks.fraction("target_acceptance", kernel.target_acceptance)
