"""Chains that start at optimised points: the same answer, a counted cost, the same bits wherever they run."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
import targets
import truth
from isles.engines.local import Here
from kills import assert_same_bits

CHAINS = isles.MCMC(
    isles.HMC(leapfrogs=2), chains=4, burn_in=10, draws=3, start=isles.Optimised(epochs=30, batch_rows=3)
)


def conjugate() -> isles.Problem:
    return targets.conjugate(dimension=4, rows=8, seed=1).problem


def test_the_stationary_answer_is_the_same(small: targets.Conjugate) -> None:
    way = isles.Optimised(epochs=100, learning_rate=0.05, batch_rows=4)
    sampler = isles.MCMC(isles.HMC(leapfrogs=5), chains=32, burn_in=100, draws=16, thin=5, start=way)
    posterior = isles.sample(small.problem, sampler, islands=32, seed=1)
    truth.assert_moments(posterior, small.mean, small.covariance)
    assert posterior.epochs == (1 + 100 + 1 + 64 + 175 * 5, 32 * 32 * 1041)
    steps = posterior.trace["step"].max()
    assert steps == 175 and posterior.trace["epochs"].sum(axis=0).max() == 875, "the trace is of steps alone"


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # chains that share a start remember it
def test_starts_are_optima_of_chains_by_themselves(small: targets.Conjugate) -> None:
    run = lambda **settings: isles.sample(
        small.problem, isles.MCMC(chains=3, burn_in=0, **settings), islands=2, seed=1
    )
    exact = run(start=isles.Optimised(epochs=1000, learning_rate=0.05))
    np.testing.assert_allclose(exact.draws, np.broadcast_to(small.mean, (2, 3, 4)), atol=0.02)
    noisy = isles.Optimised(epochs=20, learning_rate=0.05, batch_rows=2)
    apart = run(start=noisy).draws
    assert len(np.unique(apart[..., 0])) == 6
    together = run(start=noisy, shared_start=True).draws
    assert (together == together[:, :1]).all() and len(np.unique(together[..., 0])) == 2
    assert isles.MCMC(start="optimised").start == isles.Optimised()


def test_every_row_is_counted() -> None:
    seen = []

    def log_likelihood(theta: Any, rows: Any) -> Any:
        jax.debug.callback(lambda _: seen.append(len(rows)), theta)  # with an operand: once for every chain
        return -0.5 * jnp.sum((rows - theta) ** 2)

    rows = np.random.default_rng(0).normal(size=(8, 4))
    sampler = isles.MCMC(isles.MH(), chains=3, burn_in=2, start=isles.Optimised(epochs=4, batch_rows=4))
    found = isles.sample(isles.Problem(isles.Gaussian(np.zeros(4)), log_likelihood, rows), sampler)
    jax.effects_barrier()
    assert found.epochs == (1 + 4 + 1 + 2, 3 * 8)
    assert sum(seen) == 8 * found.epochs.total


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # without them, chains hardly move
def test_steps_of_one_leapfrog_fit_the_step_size_before_burn_in() -> None:
    """A posterior 500 times narrower than the prior: trajectories of the prior's step size are all rejected."""
    rows = np.random.default_rng(0).normal(size=(10_000, 2)).astype(np.float32)
    sharp = isles.Problem(isles.Gaussian(np.zeros(2), std=5.0), lambda t, x: -0.5 * jnp.sum((x - t) ** 2), rows)
    first = {}
    for settle in 0, 64:
        way = isles.Optimised(epochs=300, learning_rate=0.05, shrink=0.1, settle=settle)
        chains = isles.MCMC(isles.HMC(leapfrogs=20), chains=8, burn_in=20, start=way)
        found = isles.sample(sharp, chains, seed=1)
        assert found.epochs.parallel == 1 + 300 + 1 + settle + 20 * 20
        first[settle] = float(found.trace["acceptance"][0, 0])  # of the first step of burn-in
    assert first[0] < 0.01 < 0.3 < first[64]


@pytest.mark.usefixtures("compiled")
def test_engines_blocks_and_interruptions_change_no_bit(tmp_path: Path) -> None:
    run = lambda **settings: isles.sample(conjugate(), CHAINS, islands_per_block=1, seed=3, **settings)
    local = run(islands=2, engine="local", workers=2, folder=tmp_path / "local")
    assert_same_bits(run(islands=2, engine="serial"), local)
    facts = json.loads((tmp_path / "local" / "run.json").read_text())
    fields = facts["settings"]["sampler"]["fields"]["start"]["fields"]
    written = {"epochs": 30, "learning_rate": 0.01, "batch_rows": 3, "shrink": 1.0, "settle": 64}
    assert fields == written and "optax" in facts["versions"]
    other = dataclasses.replace(CHAINS, start=isles.Optimised(epochs=31, batch_rows=3))
    with pytest.raises(isles.FolderError, match=r"sampler\.start\.epochs was 30 and is 31"):
        isles.sample(conjugate(), other, islands=2, islands_per_block=1, seed=3, folder=tmp_path / "local")
    # in this process; stopped on its way uphill, with a checkpoint whenever one may be
    settings: dict[str, Any] = {"islands": 1, "engine": Here(), "checkpoint_seconds": 1e-9}
    whole = run(**settings, folder=tmp_path / "whole")
    with pytest.raises(isles.PartialRunError):
        run(**settings, folder=tmp_path / "cut", max_epochs=4 * 20, finish_started=False)
    status = json.loads(next((tmp_path / "cut").glob("blocks/0000/state-*.json")).read_text())
    assert status["stage"] == 0 and 4 < status["epochs"] < 4 * 31
    assert_same_bits(whole, isles.resume(tmp_path / "cut", conjugate()))
    assert run(islands=2).positions[:1].tobytes() == whole.positions.tobytes(), "islands do not talk"


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_an_end_without_a_likelihood_gives_way_to_the_prior_draw() -> None:
    cliff = lambda t: jnp.where(t < 2, t, jnp.nan)
    problem = isles.Problem(isles.Gaussian(0.0, std=10.0), cliff)
    run = lambda start: isles.sample(problem, isles.MCMC(isles.MH(), 32, burn_in=0, start=start), seed=2)
    prior, climbed = run("prior"), run(isles.Optimised(epochs=300, learning_rate=0.1))
    alive = np.isfinite(prior.log_likelihood)
    assert 0 < alive.sum() < 32 and np.isfinite(climbed.log_likelihood[alive]).all()
    assert (climbed.positions[alive] != prior.positions[alive]).any()


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_estimators_take_it() -> None:
    x = np.linspace(-1, 1, 30)[:, None]
    sampler = isles.MCMC(isles.HMC(leapfrogs=3), chains=8, burn_in=50, start=isles.Optimised(100, 0.05, 16))
    model = isles.IslesRegressor(hidden=(), sampler=sampler, islands=2, random_state=0).fit(x, 3 * x[:, 0] + 1)
    np.testing.assert_allclose(model.predict(x), 3 * x[:, 0] + 1, atol=0.3)
    assert model.posterior_.epochs.parallel == 1 + 100 + 1 + 64 + 50 * 3


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("optimized", r"start='optimized' must be one of 'prior', 'optimised'; did you mean 'optimised'"),
        (3, r"start=3 must be 'prior', 'optimised' or isles.Optimised"),
        (isles.Optimised(batch_rows=9), r"batch_rows=9 must be at most the 8 rows of data"),
    ],
)
def test_bad_starts(start: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        isles.sample(conjugate(), isles.MCMC(start=start))


def test_without_optax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match=r"pip install 'isles\[baselines\]'"):
        isles.sample(conjugate(), isles.MCMC(start="optimised"))
