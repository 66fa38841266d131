"""Multiple-proposal MCMC: weights and moments against closed forms and quadrature, its cost, its checkpoints."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import isles
import targets
import truth
from isles.keys import root
from isles.samplers import proposals
from isles.samplers.block import Output

SAMPLERS = {
    "one proposal": isles.MPMCMC(proposals=1, steps=8000, burn_in=400),
    "many proposals": isles.MPMCMC(proposals=32, steps=1500, burn_in=200),
    "adaptive": isles.MPMCMC(proposals=32, steps=1000, burn_in=200, adaptive=True),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_moments_of_a_gaussian(name: str, small: targets.Conjugate) -> None:
    posterior = isles.sample(small.problem, SAMPLERS[name], islands=64, seed=1)
    assert posterior.log_evidence is None
    truth.assert_moments(posterior, small.mean, small.covariance, bound=0.03)
    np.testing.assert_allclose(posterior.weights.sum(), 1.0)


@pytest.mark.parametrize("adaptive", [False, True])
def test_moments_of_a_logistic_regression(adaptive: bool) -> None:
    """Two weights and twelve rows, so that the truth is a quadrature over a grid, in NumPy."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(12, 2)) * [1.0, 3.0]
    y = (rng.uniform(size=12) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))).astype(int)
    problem = isles.classification(lambda w, x: x @ w, isles.Gaussian(like=np.zeros(2), std=2.0), x, y)
    grid = np.stack(np.meshgrid(*[np.linspace(-9, 9, 601)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    logits = grid @ x.T
    log_density = (logits * y - np.logaddexp(0, logits)).sum(axis=1) - (grid**2).sum(axis=1) / 8
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = weights @ grid
    covariance = (weights[:, None] * (grid - mean)).T @ (grid - mean)
    sampler = isles.MPMCMC(proposals=24, steps=1500, burn_in=300, adaptive=adaptive)
    posterior = isles.sample(problem, sampler, islands=64, seed=2)
    truth.assert_moments(posterior, mean, covariance, bound=0.03)


def scores(covariance: Any, walk: Any = proposals.walk) -> tuple[float, float]:
    """A step from exact draws: least p-value of next states, worst error of weighted points."""
    case, islands = targets.conjugate(dimension=2, rows=3, dense=True), 20_000
    mean, cov = case.mean, case.covariance
    factor = np.linalg.cholesky(cov)
    start = mean + np.random.default_rng(0).normal(size=(islands, 2)) @ factor.T
    evaluate = jax.jit(jax.vmap(partial(case.problem.evaluate, gradient=False)))
    states = evaluate(jnp.asarray(start, jnp.float32))
    dials = proposals.Dials(np.float32(0.5), np.int32(0), jnp.sqrt(jnp.asarray([0.9, 0.6])))
    chains = proposals.new_chains(case.problem, states, dials, np.float32(1.5), 5, covariance is not None)
    if covariance is not None:
        chains = chains._replace(covariance=jnp.tile(jnp.asarray(covariance), (islands, 1, 1)))
    buffer = proposals.empty_points(case.problem, 1, islands, 6)
    keys = jax.random.split(jax.random.key(1), islands)
    chains, points = walk(case.problem, chains, buffer, keys, dials, np.int32(0), np.int32(1), 5)
    assert points is not None
    assert 0.3 < float(chains.left.mean()) < 0.8
    white = np.linalg.solve(factor, (np.asarray(chains.states.position, np.float64) - mean).T)
    least = min(stats.kstest(row, "norm").pvalue for row in white)
    fresh = evaluate(chains.states.position)  # the cache must describe the position it stands beside
    np.testing.assert_allclose(chains.states.log_likelihood, fresh.log_likelihood, rtol=1e-4, atol=1e-4)
    weights = np.asarray(points.weight, np.float64)[0]
    white = np.linalg.solve(factor, (np.asarray(points.position, np.float64)[0] - mean)[..., None])[..., 0]
    worst = 0.0
    for moment in (white, white**2 - 1, np.cos(white) - np.exp(-0.5)):  # of mean 0
        each = (weights[..., None] * moment).sum(axis=1)
        error = each.std(axis=0) / np.sqrt(islands)
        assert (error < 0.01).all()
        worst = max(worst, float(np.max(np.abs(each.mean(axis=0)) / error)))
    return least, worst


@pytest.mark.parametrize("covariance", [None, [[0.5, 0.3], [0.3, 0.4]]], ids=["prior's variances", "learned"])
def test_a_step_leaves_the_target_invariant(covariance: Any) -> None:
    """Both the next state and the weighted points have the law of the target."""
    least, worst = scores(covariance)
    assert least > 1e-4 and worst < 4.5


def test_proposals_around_the_current_point_itself_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the auxiliary point, weights ∝ π are wrong: the current one has all the others near it."""

    def around_the_current(stds: Any, count: int, key: Any, position: Any, size: Any, covariance: Any) -> Any:
        return position + size * stds * jax.random.normal(key, (count, position.size))

    monkeypatch.setattr(proposals, "_propose", around_the_current)
    # a new function is traced anew, with the fault
    afresh = jax.jit(lambda *arguments: proposals.walk.__wrapped__(*arguments), static_argnums=7)
    least, worst = scores(None, afresh)
    assert least < 1e-6 or worst > 8


def test_weights_are_the_target_at_each_point() -> None:
    """Against scipy; a point without a likelihood has no weight, and where none has one all weights are zero."""
    prior = isles.Gaussian(like=np.zeros(1), std=2.0)
    problem = isles.Problem(
        prior, lambda t: jnp.where(t[0] > 3, jnp.nan, jnp.where(t[0] < -3, -jnp.inf, -(t[0] ** 4)))
    )
    evaluate = jax.vmap(partial(problem.evaluate, gradient=False))
    at = np.array([0.3, -1.1, 4.0, 1.4, -5.0])
    density = np.where(np.abs(at) < 3, np.exp(-(at**4)) * stats.norm.pdf(at, scale=2.0), 0.0)
    found = proposals.weigh(problem, evaluate(jnp.asarray(at[:, None], jnp.float32)))
    np.testing.assert_allclose(found, density / density.sum(), rtol=1e-5)
    np.testing.assert_array_equal(proposals.weigh(problem, evaluate(jnp.asarray([[4.0], [-5.0]]))), [0, 0])


def test_the_adaptive_proposal_learns_mean_and_covariance() -> None:
    case = targets.conjugate(dimension=3, rows=4, dense=True)
    sampler = isles.MPMCMC(proposals=16, steps=2000, burn_in=500, adaptive=True)
    block = sampler.begin(case.problem, root(0), np.arange(32), Output({}, "none"))
    while not sampler.finished(block):
        block = sampler.advance(case.problem, block)
    factor = np.linalg.inv(np.linalg.cholesky(case.covariance))
    learned = factor @ np.asarray(block.chains.covariance, np.float64) @ factor.T
    truth.assert_estimate(learned.mean(axis=0), learned.std(axis=0) / np.sqrt(31), np.eye(3), bound=0.1)
    means = (np.asarray(block.chains.mean, np.float64) - case.mean) @ factor.T
    truth.assert_estimate(means.mean(axis=0), means.std(axis=0) / np.sqrt(31), 0.0, bound=0.1)


def test_more_proposals_buy_precision(small: targets.Conjugate) -> None:
    """Errors of the mean fall with K at equal numbers of steps: proposals are used, not thrown away."""
    errors = []
    for count in (2, 64):
        sampler = isles.MPMCMC(proposals=count, steps=400, burn_in=200)
        posterior = isles.sample(small.problem, sampler, islands=64, seed=4)
        errors.append(np.mean(posterior.expectation(lambda theta: theta).standard_error))
    assert errors[1] < 0.5 * errors[0]


def test_every_evaluation_is_counted(small: targets.Conjugate) -> None:
    sampler = isles.MPMCMC(proposals=7, steps=50, burn_in=30)
    posterior = isles.sample(small.problem, sampler, islands=3, seed=5)
    assert posterior.epochs == (1 + 80, 3 * (1 + 7 * 80))
    assert posterior.log_weights.shape == (3, 50 * 8)
    assert posterior.adaptive and not dataclasses.replace(sampler, step_size=0.5).is_adaptive
    assert posterior.trace["step"][-1, 0] == 80
    seen: list[Any] = []

    def log_likelihood(theta: Any) -> Any:
        jax.debug.callback(lambda t: seen.append(np.array(t)), theta)
        return -jnp.sum(theta**2)

    problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), log_likelihood)
    found = isles.sample(problem, isles.MPMCMC(proposals=3, steps=10, burn_in=5), seed=1)
    jax.effects_barrier()
    assert len(seen) == found.epochs.total


def test_what_is_kept_and_collected(small: targets.Conjugate) -> None:
    """Collected means are those of all points, also where only some of them, or none, are kept."""
    sampler = isles.MPMCMC(proposals=99, steps=300, burn_in=100)
    run = partial(isles.sample, small.problem, sampler, islands=2, seed=6, collect={"mean": lambda theta: theta})
    whole, thinned, none = (run(keep=keep) for keep in ("all", "thinned", "none"))
    assert whole.log_weights.shape == (2, 300 * 100) and thinned.log_weights.shape == (2, 100 * 100)
    assert whole.positions is not None and thinned.positions is not None and none.positions is None
    by_step = whole.positions.reshape(2, 300, 100, 4)
    np.testing.assert_array_equal(thinned.positions.reshape(2, 100, 100, 4), by_step[:, ::3])
    for posterior in (whole, thinned, none):
        np.testing.assert_array_equal(posterior.collected["mean"].value, whole.collected["mean"].value)
    np.testing.assert_allclose(whole.mean(), whole.collected["mean"].value, rtol=1e-6)


@pytest.mark.parametrize("adaptive", [False, True])
def test_where_a_run_is_cut_does_not_change_a_bit(adaptive: bool, small: targets.Conjugate) -> None:
    sampler = isles.MPMCMC(proposals=6, steps=60, burn_in=40, adaptive=adaptive)
    output = Output({"mean": lambda theta: theta}, "all")
    whole = cut = sampler.begin(small.problem, root(0), np.arange(2), output)
    while not sampler.finished(whole):
        whole = sampler.advance(small.problem, whole)
    cuts = 0
    while not sampler.finished(cut):
        cut = sampler.advance(small.problem, cut, pause=lambda: True)  # a first piece is one step
        cuts += bool(cut.filled)
        cut = sampler.unpack(small.problem, root(0), np.arange(2), output, sampler.pack(cut))
    assert cuts > 20
    first, second = (sampler.result(small.problem, block) for block in (whole, cut))
    for a, b in zip(jax.tree.leaves(vars(first)), jax.tree.leaves(vars(second)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_in_a_folder_is_that_in_memory(small: targets.Conjugate, tmp_path: Path) -> None:
    sampler = isles.MPMCMC(proposals=6, steps=60, burn_in=40, adaptive=True)
    run = partial(isles.sample, small.problem, sampler, islands=3, seed=8, islands_per_block=2)
    with pytest.warns(isles.IslesWarning, match="1 of 3 islands are missing"):
        run(folder=tmp_path, engine="serial", max_epochs=1)
    resumed = isles.resume(tmp_path, small.problem, engine="serial")
    again = run(engine="serial")
    np.testing.assert_array_equal(resumed.positions, again.positions)
    np.testing.assert_array_equal(isles.load(tmp_path).log_weights, again.log_weights)
    assert "MPMCMC(proposals=6" in resumed.sampler


def test_a_foreign_checkpoint_is_refused(small: targets.Conjugate) -> None:
    sampler, output = isles.MPMCMC(proposals=6, steps=60, burn_in=0), Output({}, "all")
    block = sampler.advance(small.problem, sampler.begin(small.problem, root(0), np.arange(2), output))
    kept = sampler.pack(block)
    other = dataclasses.replace(sampler, proposals=5)
    with pytest.raises(ValueError, match="where"):
        other.unpack(small.problem, root(0), np.arange(2), output, kept)
    damaged = (kept["kept"][0]._replace(weight=kept["kept"][0].weight[:1]),)
    with pytest.raises(ValueError, match="weight is"):
        sampler.unpack(small.problem, root(0), np.arange(2), output, kept | {"kept": damaged})


def test_chains_that_start_where_there_is_no_likelihood() -> None:
    """They leave as soon as a point has one; steps without any count for nothing, and are reported."""
    prior = isles.Gaussian(like=np.zeros(1))
    problem = isles.Problem(prior, lambda t: jnp.where(t[0] > 1.5, 0.0, -jnp.inf))
    sampler = isles.MPMCMC(proposals=2, steps=400, burn_in=0, step_size=0.5)
    with pytest.warns(isles.IslesWarning, match=r"steps have no point with a likelihood"):
        posterior = isles.sample(problem, sampler, islands=64, seed=9)
    assert posterior.dead.sum() > 32
    assert posterior.positions is not None
    assert (posterior.positions[posterior.weights > 0] > 1.5).all()


def test_nothing_is_compiled_anew_when_numbers_change(small: targets.Conjugate) -> None:
    isles.sample(small.problem, isles.MPMCMC(proposals=6, steps=60, burn_in=40), seed=1)
    compiled = proposals.walk._cache_size()
    isles.sample(small.problem, isles.MPMCMC(6, 60, 20, step_size=0.3), seed=2)
    assert proposals.walk._cache_size() == compiled


def test_what_cannot_work_is_refused(small: targets.Conjugate) -> None:
    with pytest.raises(ValueError, match="proposals=0"):
        isles.MPMCMC(proposals=0)
    with pytest.raises(TypeError, match="must be True or False"):
        isles.MPMCMC(adaptive="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="form no chains"):
        _ = isles.sample(small.problem, isles.MPMCMC(6, 60, 40), seed=1).chains
    wide = isles.Problem(isles.Gaussian(like=np.zeros(5000)), lambda theta: -jnp.sum(theta**2))
    with pytest.raises(ValueError, match=r"covariance of 5000 parameters; at most 4096"):
        isles.sample(wide, isles.MPMCMC(adaptive=True))
