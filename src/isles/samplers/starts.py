"""From prior draws to where chains start: a climb that a checkpoint may cut, and states at its end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from isles import ascent
from isles.ascent import Climb, Optimised
from isles.kernels import HMC
from isles.keys import Purpose, island_keys, particle_keys
from isles.problem import Problem, State
from isles.samplers import groups, mutation
from isles.samplers.groups import Group, Static
from isles.samplers.pace import Pace, Pause, never, pieces

if TYPE_CHECKING:
    from isles.samplers.mcmc import MCMC


ROUND = 16  # steps of one leapfrog after which gains of the step size begin anew: it may have far to go


def keys(sampler: MCMC, root: Array, purpose: Purpose, islands: np.ndarray[Any, Any]) -> Array:
    """One a chain, (I·N,); the same for all chains of an island that share their start."""
    if sampler.shared_start:
        return jnp.repeat(island_keys(root, purpose, 0, islands), sampler.chains)
    return particle_keys(root, purpose, 0, islands, sampler.chains)


def settling(sampler: MCMC) -> int:
    """Steps of one leapfrog after climbs, if burn-in is to adapt the step size of HMC."""
    adapts = isinstance(sampler.kernel, HMC) and sampler.kernel.adapts_step_size and sampler.burn_in > 0
    return sampler.way.settle if sampler.way is not None and adapts else 0


def epochs(sampler: MCMC) -> int:
    """Of a chain, from its prior draw to burn-in."""
    return 0 if sampler.way is None else sampler.way.epochs + 1 + settling(sampler)


def foot(problem: Problem, way: Optimised | None, states: State) -> Climb | None:
    """Where climbs begin, if there are any."""
    return None if way is None else ascent.foot(states.position, way.steps(problem), way.shrink)


def climb_on(problem: Problem, way: Optimised, climb: Climb, row_keys: Array, pace: Pace, pause: Pause) -> Climb:
    """To the end, or to a `pause`."""
    done, steps = int(climb.step), int(climb.steps)
    rate = problem.dtype.type(way.learning_rate)
    for piece in pieces(steps - done, pace):
        done += piece
        climb = jax.block_until_ready(ascent.climb(problem, climb, row_keys, rate, np.int32(done), way.batch_rows))
        if done < steps and pause():
            break
    return climb


def settle(problem: Problem, kernel: Static, group: Group, row_keys: Array, steps: int, tempering: Array) -> Group:
    """Steps of one leapfrog that fit the step size of HMC to where chains stand."""
    hmc = kernel.kernel
    if not (steps and isinstance(hmc, HMC)):
        return group
    short = group._replace(tuning=hmc.single(group.tuning))
    for done in range(0, steps, ROUND):
        count = min(ROUND, steps - done)
        short = short._replace(mutation=jnp.zeros_like(short.mutation))
        round_keys = jax.vmap(jax.random.fold_in, (0, None))(row_keys, np.uint32(done))
        dials = groups.dials(problem, hmc, count)
        short, _ = mutation.mutate(problem, kernel, short, None, tempering, round_keys, dials, 0, count, never)
    return short._replace(tuning=short.tuning._replace(length=group.tuning.length))


@partial(jax.jit, static_argnames="kernel")
def begin_at(problem: Problem, kernel: Static, positions: Array, instead: State) -> State:
    """States at positions, one epoch each; where there is no likelihood, those given `instead`."""
    found = problem.over_particles(partial(kernel.kernel.init, problem))(positions)
    usable = jnp.isfinite(found.log_likelihood) & jnp.isfinite(positions).all(axis=1)
    choose = lambda new, old: jnp.where(usable.reshape(-1, *[1] * (old.ndim - 1)), new, old)
    return jax.tree.map(choose, found, instead)
