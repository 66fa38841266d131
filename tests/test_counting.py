"""Every evaluation of the user's function is counted, and none is wasted."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
from isles.definition import default_islands_per_block
from isles.samplers import mutation


class Counted:
    """A likelihood that counts its own evaluations, one a particle."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, theta: Any, *batch: Any) -> Any:
        jax.debug.callback(self.seen, theta)  # with an operand: once for every particle
        rows = batch[0] if batch else jnp.zeros((1, 3))
        return -0.5 * jnp.sum((rows - theta) ** 2) * 4.0

    def seen(self, theta: Any) -> None:
        self.count += 1


KERNELS = {
    "hmc": isles.HMC(leapfrogs=4),
    "hmc, trajectory": isles.HMC(trajectory=1.5),
    "mala": isles.MALA(),
    "mh": isles.MH(),
    "pcn": isles.PCN(),
}


def run(sampler: Any, data: Any = None, **settings: Any) -> tuple[int, isles.Posterior]:
    likelihood = Counted()
    problem = isles.Problem(isles.Gaussian(like=np.zeros(3)), likelihood, data, **settings)
    posterior = isles.sample(problem, sampler, seed=1)
    jax.effects_barrier()
    return likelihood.count, posterior


@pytest.mark.defect("BlackJAX: L·M + 3 evaluations a stage, since nothing is cached between them")
@pytest.mark.parametrize("name", KERNELS)
def test_smc_costs_one_plus_the_sum_of_m_times_l(name: str) -> None:
    count, posterior = run(isles.SMC(KERNELS[name], particles=64, mutations=5))
    assert count == posterior.epochs.total == 64 * posterior.epochs.parallel
    stages = np.isfinite(posterior.trace["tempering"][:, 0]).sum()
    assert stages > 1
    if name != "hmc, trajectory":
        leapfrogs = 4 if name == "hmc" else 1
        assert posterior.epochs.parallel == 1 + stages * 5 * leapfrogs
    else:
        assert posterior.epochs.parallel == 1 + posterior.trace["epochs"].sum() != 1 + stages * 5


def test_mcmc_and_ais_are_counted_alike() -> None:
    count, posterior = run(isles.MCMC(isles.HMC(leapfrogs=4), chains=8, burn_in=20, draws=3, thin=2))
    assert count == posterior.epochs.total == 8 * (1 + 4 * (20 + 2 * 2))
    count, posterior = run(isles.AIS(isles.MH(), particles=64, mutations=2))
    assert count == posterior.epochs.total == 64 * (1 + 2 * 40)


def test_remainder_rows_are_one_more_smaller_call() -> None:
    rows = np.random.default_rng(0).normal(size=(25, 3))
    count, posterior = run(isles.SMC(isles.HMC(leapfrogs=2), 32, 5), rows, chunk_rows=10)
    assert count == 3 * posterior.epochs.total


def test_adaptive_mutations_count_what_each_island_used() -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=3), particles=128, mutations=isles.Decorrelate(0.1, max=30))
    count, posterior = run(sampler)
    assert count == posterior.epochs.total
    assert posterior.epochs.parallel == 1 + 3 * posterior.trace["mutations"].sum()


def test_nothing_is_compiled_anew_when_numbers_change() -> None:
    """Temperings, step sizes, leapfrogs and mutations are arguments of one program."""
    problem = isles.Problem(isles.Gaussian(like=np.zeros(3)), lambda theta: -2.0 * jnp.sum(theta**2))
    isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=3), 32, 4), islands=2)
    compiled = mutation.mutate_piece._cache_size()
    for kernel in (isles.HMC(leapfrogs=7), isles.HMC(leapfrogs=2, target_acceptance=0.8)):
        isles.sample(problem, isles.SMC(kernel, 32, mutations=6, ess_fraction=0.7), islands=2)
    assert mutation.mutate_piece._cache_size() == compiled


def test_a_users_kernel_may_spend_what_it_needs() -> None:
    """Elliptical slices take a random number of evaluations; particles wait for the slowest of their own."""
    own = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "own_kernel.py"))["EllipticalSlice"]()
    _, posterior = run(isles.SMC(own, particles=64, mutations=5))
    assert posterior.epochs.total < 64 * posterior.epochs.parallel
    assert posterior.epochs.total > 64 * (1 + 5 * len(posterior.trace["tempering"]))


@dataclass(frozen=True)
class Shift(isles.MH):
    """A subclass whose step reads a setting of its own."""

    amount: float = 1.0

    def step(self, problem: Any, key: Any, state: Any, tempering: Any, tuning: Any) -> Any:
        return problem.evaluate(state.position * 0 + self.amount, gradient=False), isles.Info(jnp.float32(1.0))


def test_subclasses_with_other_settings_are_other_programs() -> None:
    problem = isles.Problem(isles.Gaussian(like=np.zeros(3)), lambda theta: -0.1 * jnp.sum(theta**2))
    for amount in (1.0, 5.0):
        posterior = isles.sample(problem, isles.MCMC(Shift(amount=amount), chains=2, burn_in=3))
        assert (posterior.positions == amount).all()


def test_collected_functions_are_compiled_once() -> None:
    traced = []

    def function(theta: Any) -> Any:
        traced.append(1)
        return theta

    problem = isles.Problem(isles.Gaussian(like=np.zeros(3)), lambda theta: -jnp.sum(theta**2))
    isles.sample(problem, isles.MCMC(isles.MH(), 2, 20, 200), collect={"theta": function}, keep="none")
    assert len(traced) <= 25  # one trace, and one look at its shape for each of 20 groups


def test_blocks_fit_in_memory() -> None:
    """The default block counts what evaluating the likelihood needs, not the parameters alone."""
    data = np.zeros((3000, 5), np.float32)
    problem = isles.Problem(isles.Gaussian(like=np.zeros(5)), lambda t, x: -jnp.sum(jnp.exp(x @ t) ** 2), data)
    sampler = isles.SMC(particles=256)
    size = default_islands_per_block(problem, sampler, 4096)
    assert 1 <= size * 256 * problem.evaluation_bytes < 2**30
    assert default_islands_per_block(problem, isles.SMC(particles=4), 4096) > size
