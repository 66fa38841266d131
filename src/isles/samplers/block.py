"""What a block of islands gives when it is done, whatever the sampler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import devices
from isles.kernels.base import Kernel
from isles.layout import Params
from isles.problem import Problem, State
from isles.samplers.pace import Pause, never

Record = dict[str, np.ndarray[Any, Any]]  # one stage: name -> (I,)


class Output(NamedTuple):
    """What a user wants of the draws."""

    collect: Mapping[str, Callable[[Params], Any]]
    keep: str  # "all", "thinned" or "none"


@dataclass(frozen=True, repr=False)
class Plan:
    """A tempering path with everything that adaptation found along it, from the first island of a pilot run."""

    kernel: str  # its type's name
    dimension: int
    schedule: np.ndarray[Any, Any]  # (J,) temperings, the last one 1
    step_sizes: np.ndarray[Any, Any]  # (J,)
    mutations: np.ndarray[Any, Any]  # (J,)
    variances: np.ndarray[Any, Any] | None  # (J, d), where they follow the population

    def __repr__(self) -> str:
        return f"Plan({len(self.schedule)} stages)"


@dataclass(frozen=True)
class BlockResult:
    """Draws of a block's islands on the host, with weights, evidence and cost."""

    positions: np.ndarray[Any, Any] | None  # (I, N, d)
    log_prior: np.ndarray[Any, Any]  # (I, N)
    log_likelihood: np.ndarray[Any, Any]  # (I, N)
    log_weights: np.ndarray[Any, Any]  # (I, N) within each island, not normalised
    log_evidence: np.ndarray[Any, Any] | None  # (I,)
    epochs: np.ndarray[Any, Any]  # (I, particles or chains) int64
    nonfinite: np.ndarray[Any, Any]  # (I,) evaluations that gave NaN, +inf or a non-finite gradient
    dead: np.ndarray[Any, Any]  # (I,) particles whose first draw had no likelihood
    records: list[Record]
    sums: dict[str, Any]  # name -> pytree of (I, ...) weighted sums of collected functions
    sum_weights: np.ndarray[Any, Any]  # (I,) their total weights
    plan: Plan | None
    rounding: float  # nat, of tempered log-likelihoods in the working dtype
    warnings: tuple[str, ...]


class Status(NamedTuple):
    """Where a block stands, for whoever watches."""

    share: float  # of the work, as far as one can tell
    stage: int  # stages done, or steps of every chain
    tempering: float  # the lowest of its islands; 1 for chains
    ess: float  # mean over islands at the last stage; NaN for chains
    acceptance: float  # mean over islands at the last stage
    epochs: int  # of all particles


class Block(Protocol):
    """A block of islands under way."""

    obituary: str | None  # why islands have no live particle

    @property
    def all_dead(self) -> bool:
        """Whether no first draw of any island has a likelihood."""
        ...

    @property
    def at_landmark(self) -> bool:
        """Whether a stage has just ended."""
        ...

    @property
    def records(self) -> tuple[Record, ...]:
        """One a stage."""
        ...

    @property
    def status(self) -> Status:
        """Where it stands."""
        ...


class Chained:
    """What blocks of chains have in common."""

    outset: Any  # what the block is told, with the islands' numbers
    obituary: str | None  # why no chain starts where there is a likelihood

    @property
    def islands(self) -> np.ndarray[Any, Any]:
        """(I,) their numbers in the run."""
        return np.asarray(self.outset.islands)

    @property
    def all_dead(self) -> bool:
        """Whether no chain starts where there is a likelihood."""
        return self.obituary is not None


class Sampler(Protocol):
    """What `isles.sample` needs of a sampler."""

    @property
    def width(self) -> int:
        """Particles, chains or proposals of an island."""
        ...

    @property
    def is_adaptive(self) -> bool:
        """Whether anything is tuned on the particles whose evidence is estimated."""
        ...

    def check(self, problem: Problem, output: Output) -> None:
        """Raise if the settings do not fit the problem."""
        ...

    def begin(self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output) -> Any:
        """A block of the given islands, drawn from the prior."""
        ...

    def advance(self, problem: Problem, block: Any, pause: Pause = never) -> Any:
        """One stage, or one group of steps, further; or less, where `pause` asks for a checkpoint."""
        ...

    def pack(self, block: Any) -> dict[str, Any]:
        """What a checkpoint holds: numbers, arrays, and tuples, dicts and named tuples of them."""
        ...

    def unpack(
        self, problem: Problem, root: Array, islands: np.ndarray[Any, Any], output: Output, kept: dict[str, Any]
    ) -> Any:
        """The block that a checkpoint holds."""
        ...

    def finished(self, block: Any) -> bool:
        """Whether every island of the block is done."""
        ...

    def result(self, problem: Problem, block: Any) -> BlockResult:
        """The finished block on the host."""
        ...


def require_kernel(kernel: object) -> Kernel:
    """`kernel` if it is one."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        raise TypeError(f"kernel={kernel.__name__} is a class; make one: {kernel.__name__}()")
    raise TypeError(
        f"kernel={kernel!r} must be a kernel such as isles.HMC(), or your own subclass of isles.Kernel"
    )


def require_plan(posterior: Any) -> Plan:
    """What a pilot run adapted to."""
    if not hasattr(posterior, "require_plan"):
        raise TypeError(
            f"frozen() takes the posterior of a pilot run, not {type(posterior).__name__}: "
            f"sampler.frozen(isles.sample(problem, sampler))"
        )
    plan: Plan = posterior.require_plan()
    return plan


def check_kernel(problem: Problem, kernel: object, particles: int, metric: bool = False) -> None:
    """A kernel must be one, and fit the problem and the number of particles that move together."""
    kernel = require_kernel(kernel)
    try:
        hash(kernel.program())
    except TypeError as error:
        raise TypeError(
            f"{type(kernel).__name__} must be hashable, since it becomes part of a program ({error}): make it "
            f"a frozen dataclass, and turn array settings into tuples"
        ) from None
    kernel.check(problem)
    if kernel.learns_metric and not metric:
        raise ValueError("mass='fisher' is learned in the burn-in of isles.MCMC; use mass='population' here")
    kernel.tuning(problem)
    if not type(kernel).__module__.startswith("isles."):
        _check_step(problem, kernel)
    least = 2 * (problem.dimension + 1)
    if kernel.partners and (particles % 2 or particles < least):
        raise ValueError(
            f"{type(kernel).__name__} moves one half of the particles along the other, which must span all "
            f"{problem.dimension} parameters: {particles} moving together must be an even number, at least {least}"
        )


def _check_step(problem: Problem, kernel: Kernel) -> None:
    """Raise if the step of a user's own kernel does not return what samplers take."""
    place = jax.ShapeDtypeStruct((problem.dimension,), problem.dtype)

    def step(key: Array, position: Array) -> Any:
        others = [jnp.tile(position, (kernel.partners, 1))] if kernel.partners else []
        state = kernel.init(problem, position)
        return kernel.step(problem, key, state, jnp.ones((), problem.dtype), kernel.tuning(problem), *others)

    found = jax.eval_shape(step, jax.eval_shape(jax.random.key, 0), place)
    if isinstance(found, State) or not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(
            f"{type(kernel).__name__}.step returns {type(found).__name__}; it must return a pair, the new state "
            f"and isles.Info(acceptance=...)"
        )


def rounding(problem: Problem, log_likelihood: np.ndarray[Any, Any], tempering: float) -> float:
    """How far, in nat, the working dtype rounds tempered log-likelihoods: enough of it disturbs acceptances."""
    largest = np.abs(log_likelihood).max(initial=0.0)
    if not np.isfinite(largest):
        largest = np.abs(log_likelihood[np.isfinite(log_likelihood)]).max(initial=0.0)
    # chunk sums carry their low bits along, so a chunk's own rounding is what counts
    share = problem.chunk_rows / problem.rows if problem.rows else 1.0
    return float(np.spacing(problem.dtype.type(largest * share))) * tempering


def last_mean(record: Record, name: str) -> float:
    """Mean of the islands that have a value in this record."""
    values = [value for value in record.get(name, np.array([])).tolist() if math.isfinite(value)]
    return sum(values) / len(values) if values else math.nan


def mean_acceptance(total: Any, steps: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Mean acceptance probability of each island from sums (I·N,); NaN where it made no step."""
    rows = np.asarray(total, np.float64).reshape(len(steps), -1)
    return np.where(steps > 0, rows.sum(axis=1) / rows.shape[1] / np.maximum(steps, 1), np.nan)


def first_states(states: State, particles: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Which first draws are alive, and which evaluations were not finite, both (I, N)."""
    log_likelihood, nonfinite = devices.fetch((states.log_likelihood, states.nonfinite))
    return np.isfinite(log_likelihood).reshape(-1, particles), nonfinite.reshape(-1, particles)


def describe_dead(
    islands: np.ndarray[Any, Any], alive: np.ndarray[Any, Any], nonfinite: np.ndarray[Any, Any]
) -> str:
    """Why islands have no live particle at stage 0, and what to try."""
    dead = ~alive.any(axis=1)
    bad = int(nonfinite[dead].sum())
    total = int(dead.sum()) * alive.shape[1]
    named = ", ".join(map(str, islands[dead][:5])) + (", ..." if dead.sum() > 5 else "")
    cause = (
        f"{bad} of {total} gave NaN, +inf or a non-finite gradient; look for NaN in the data, then evaluate the "
        f"likelihood and the prior's log_prob at prior.sample(key) to find the operation that does"
        if bad
        else f"all {total} have a likelihood or prior density of zero; widen the likelihood, narrow the prior, "
        f"raise particles, or check that the prior's sample and log_prob belong together"
    )
    return f"island {named}: no prior draw has a usable likelihood (stage 0): {cause}"
