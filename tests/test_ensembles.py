"""Particles that move by each other: what halves see, what is sampled, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import isles
import targets
import truth
from isles.samplers import groups, mutation

KERNELS = {"stretch": isles.Stretch(), "de": isles.DE()}


@pytest.mark.parametrize("name", KERNELS)
def test_smc_finds_moments_and_evidence(name: str, small: targets.Conjugate) -> None:
    sampler = isles.SMC(KERNELS[name], particles=512, mutations=40)
    posterior = isles.sample(small.problem, sampler, islands=64, seed=1)
    truth.assert_moments(posterior, small.mean, small.covariance, bound=0.03)
    truth.assert_log_evidence(posterior, small.log_evidence)


@pytest.mark.parametrize("name", KERNELS)
def test_mcmc_finds_moments(name: str, small: targets.Conjugate) -> None:
    sampler = isles.MCMC(KERNELS[name], chains=32, burn_in=200, draws=100, thin=10)
    posterior = isles.sample(small.problem, sampler, islands=64, seed=2)
    truth.assert_moments(posterior, small.mean, small.covariance, bound=0.03)


def test_stretch_does_not_see_the_shape_of_a_target() -> None:
    """Coordinates scaled and mixed by a matrix: the same draws, mapped by the matrix."""
    matrix = jnp.asarray([[1.0, 0.0], [3.0, 0.01]])
    prior = isles.Gaussian(like=np.zeros(2))
    round_ = isles.Problem(prior, lambda theta: -jnp.sum(theta**2))
    mixed = isles.Gaussian(like=np.zeros(2), covariance=np.asarray(matrix, np.float64) @ np.asarray(matrix.T))
    long = isles.Problem(mixed, lambda theta: -jnp.sum(jnp.linalg.solve(matrix, theta) ** 2))
    sampler = isles.MCMC(isles.Stretch(), chains=16, burn_in=18)
    first, second = (isles.sample(problem, sampler, islands=4, seed=3) for problem in (round_, long))
    assert first.positions is not None and second.positions is not None
    np.testing.assert_allclose(first.positions @ np.asarray(matrix).T, second.positions, rtol=1e-2, atol=1e-3)


@dataclass(frozen=True)
class Watch(isles.Kernel):
    """Writes down whom it was shown: particles stand at their own number, movers go up by 1000."""

    partners = 2

    def step(  # type: ignore[override]
        self, problem: Any, key: Any, state: Any, tempering: Any, tuning: Any, partners: Any
    ) -> Any:
        position = state.position.at[1:].set(partners[:, 0]).at[0].add(1000)
        return state._replace(position=position), isles.Info(jnp.float32(1.0))


def test_the_half_that_moves_sees_the_other_of_its_own_island() -> None:
    particles, islands = 6, 50
    problem = isles.Problem(isles.Gaussian(like=np.zeros(3)), lambda theta: -jnp.sum(theta**2))
    static = groups.Static(Watch(), particles, adapt_step=False, adapt_scale=False)
    numbers = jnp.arange(particles * islands, dtype=jnp.float32)
    positions = jnp.stack([numbers, numbers * 0, numbers * 0], axis=1)
    states = jax.vmap(partial(Watch().init, problem))(positions)
    tuning = groups.broadcast_tuning(Watch().tuning(problem), islands)
    group = groups.new_group(problem, static, states, tuning, np.ones(islands, bool))
    keys = jax.random.split(jax.random.key(0), particles * islands)
    dials, one = groups.dials(problem, Watch(), 0), jnp.ones(islands)
    group, _ = mutation.mutate_piece(problem, static, group, None, one, keys, dials, np.int32(1))
    at, first, second = np.asarray(group.states.position).T
    rows = np.arange(particles * islands)
    np.testing.assert_array_equal(at, rows + 1000)
    assert (first != second).all()
    for seen in (first, second):
        late = rows % 2 == 1  # they move second, and see where the others have got to
        np.testing.assert_array_equal(seen >= 1000, late)
        original = seen.astype(int) - 1000 * late
        assert (original // particles == rows // particles).all()
        assert (original % 2 != rows % 2).all()
    # every ordered pair of partners comes up equally often
    pairs = Counter(zip(first % 1000 % particles, second % 1000 % particles, strict=True))
    assert len(pairs) == 12
    assert stats.chisquare(list(pairs.values())).pvalue > 1e-4


def test_cost_and_compilation(small: targets.Conjugate) -> None:
    """One epoch a particle and mutation; numbers are arguments of one program."""
    posterior = isles.sample(small.problem, isles.SMC(isles.Stretch(), 32, mutations=5), seed=4)
    stages = np.isfinite(posterior.trace["tempering"][:, 0]).sum()
    assert posterior.epochs.total == 32 * posterior.epochs.parallel == 32 * (1 + 5 * stages)
    compiled = mutation.mutate_piece._cache_size()
    isles.sample(small.problem, isles.SMC(isles.Stretch(3.0), 32, mutations=7, ess_fraction=0.7), seed=4)
    assert mutation.mutate_piece._cache_size() == compiled


def test_frozen_runs_say_that_they_are_biased(small: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.DE(), particles=64, mutations=10)
    frozen = sampler.frozen(isles.sample(small.problem, sampler, seed=5))
    assert isles.sample(small.problem, frozen, islands=2, seed=5).evidence_kind == "consistent"


def test_what_cannot_work_is_refused(small: targets.Conjugate) -> None:
    with pytest.raises(ValueError, match="8 moving together must be an even number, at least 10"):
        isles.sample(small.problem, isles.SMC(isles.Stretch(), particles=8))
    with pytest.raises(ValueError, match="15 moving together must be an even number"):
        isles.sample(small.problem, isles.MCMC(isles.DE(), chains=15))
    with pytest.raises(ValueError, match="set shared_start=False"):
        isles.sample(small.problem, isles.MCMC(isles.DE(), chains=16, shared_start=True))
    with pytest.raises(ValueError, match=r"use isles\.SMC, or another kernel"):
        isles.sample(small.problem, isles.AIS(isles.Stretch(), particles=16))
    with pytest.raises(ValueError, match=r"stretch=1\.0 must be above 1"):
        isles.Stretch(1.0)
