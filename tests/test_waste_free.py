"""Waste-free SMC against closed forms, its cost, and its promise of an unbiased evidence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import isles
import targets
import truth
from isles import weights
from isles.keys import root
from isles.samplers import mutation, pace
from isles.samplers.block import Output

SAMPLER = isles.SMC(isles.HMC(leapfrogs=5), particles=512, mutations=7, waste_free=True)


def test_moments_and_evidence(small: targets.Conjugate) -> None:
    posterior = isles.sample(small.problem, SAMPLER, islands=64, seed=1)
    truth.assert_moments(posterior, small.mean, small.covariance, bound=0.03)
    truth.assert_log_evidence(posterior, small.log_evidence)


def test_frozen_evidence_is_unbiased(small: targets.Conjugate) -> None:
    """E[Z] and E[Z · π(φ)] over 4096 islands of 8 chains of 4 states."""
    sampler = isles.SMC(isles.HMC(leapfrogs=5), particles=32, mutations=3, waste_free=True)
    frozen = sampler.frozen(isles.sample(small.problem, dataclasses.replace(sampler, particles=256), seed=9))
    posterior = isles.sample(small.problem, frozen, islands=4096, seed=7)
    assert posterior.evidence_kind == "unbiased"
    ratios = np.exp(posterior.island_log_evidence - small.log_evidence)
    white = (posterior.positions - small.mean) @ np.linalg.inv(np.linalg.cholesky(small.covariance)).T
    for column in [np.ones(4096), *(1 + white.mean(axis=1).T), (white**2).mean(axis=(1, 2))]:
        products = ratios * column
        truth.assert_estimate(products.mean(), products.std() / 64, 1.0, bound=0.02)


def test_only_ancestors_move_and_every_state_is_kept(small: targets.Conjugate) -> None:
    """N + stages · N/(M + 1) · M · L evaluations; the particles of a stage are chains that begin at ancestors."""
    posterior = isles.sample(small.problem, SAMPLER, seed=2)
    stages = np.isfinite(posterior.trace["tempering"][:, 0]).sum()
    assert posterior.epochs.total == 512 + stages * 64 * 7 * 5
    assert posterior.epochs.parallel == 1 + stages * 7 * 5
    sampler = isles.SMC(isles.MH(), particles=40, mutations=4, waste_free=True)
    block = sampler.begin(small.problem, root(0), np.arange(3), Output({}, "all"))
    before = np.asarray(block.states.position).reshape(3, 40, 4)
    after = np.asarray(sampler.advance(small.problem, block).states.position).reshape(3, 5, 8, 4)
    for island in range(3):
        assert all((state == before[island]).all(axis=1).any() for state in after[island, 0])
    still = (after[:, 1:] == after[:, :-1]).all(axis=3)  # rejected moves repeat a state; accepted ones do not
    assert 0 < still.mean() < 1


def test_where_a_stage_is_cut_does_not_change_a_bit(small: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=3), particles=40, mutations=4, waste_free=True)
    output = Output({}, "all")
    start = sampler.begin(small.problem, root(0), np.arange(2), output)
    cut = sampler.advance(small.problem, start, pause=lambda: True)  # a first piece is one mutation
    assert cut.under_way is not None
    while cut.under_way is not None:
        cut = sampler.unpack(small.problem, root(0), np.arange(2), output, sampler.pack(cut))
        cut = sampler.advance(small.problem, cut, pause=lambda: True)
    whole = sampler.advance(small.problem, start)
    assert np.asarray(whole.states.position).tobytes() == np.asarray(cut.states.position).tobytes()
    assert (whole.epochs == cut.epochs).all()


def test_checkpoints_of_earlier_versions_go_on(small: targets.Conjugate) -> None:
    """They hold the group inside the stage, and the tuning beside it."""
    sampler, output = isles.SMC(isles.HMC(leapfrogs=3), particles=16, mutations=4), Output({}, "all")
    start = sampler.begin(small.problem, root(0), np.arange(2), output)
    cut = sampler.advance(small.problem, start, pause=lambda: True)
    assert cut.under_way is not None
    kept = sampler.pack(cut)
    group = kept.pop("group")
    kept |= {"under_way": kept["under_way"]._replace(group=group), "tuning": group.tuning}
    again = sampler.unpack(small.problem, root(0), np.arange(2), output, kept)
    whole, resumed = sampler.advance(small.problem, start), sampler.advance(small.problem, again)
    assert np.asarray(whole.states.position).tobytes() == np.asarray(resumed.states.position).tobytes()


@pytest.mark.parametrize("method", weights.RESAMPLING)
def test_fewer_ancestors_than_particles(method: str) -> None:
    """E[copies of i] = A · weight i."""
    rng = np.random.default_rng(0)
    weight = np.array([0.1, 0.0, 0.5, 0.15, 0.25])
    drawn = weights.resample(method, np.tile(weight, (20_000, 1)), rng.uniform(size=(20_000, 3)))
    assert drawn.shape == (20_000, 3)
    copies = np.stack([(drawn == i).sum(axis=1) for i in range(5)], axis=1)
    error = copies.std(axis=0) / np.sqrt(20_000) + 1e-12
    assert (np.abs(copies.mean(axis=0) - 3 * weight) < 4 * error + 1e-9).all()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be a multiple of mutations \+ 1 = 21 .* take particles=42"):
        isles.SMC(particles=32, mutations=20, waste_free=True)
    with pytest.raises(ValueError, match="must be a number"):
        isles.SMC(mutations=isles.Decorrelate(), waste_free=True)


def test_while_falling_stops_when_correlations_no_longer_fall(small: targets.Conjugate) -> None:
    """PyMC's rule, replayed by NumPy on an island's own mutations, one at a time."""
    rule = isles.WhileFalling(0.05, max=40)
    sampler = isles.SMC(isles.HMC(leapfrogs=3), particles=256, mutations=rule)
    block = sampler.begin(small.problem, root(3), np.arange(4), Output({}, "all"))
    starts, last, made = None, np.full((4, 4), 2.0), np.zeros(4)
    going = np.ones(4, bool)
    while going.any():
        block = sampler.advance(small.problem, block, pause=lambda: True)
        if block.under_way is None:
            break
        group = block.group
        if int(group.mutation) != made.max() + 1:
            pytest.fail("pieces of more than one mutation cannot be replayed")
        starts = np.asarray(group.start, np.float64).reshape(4, 256, 4)
        now = np.asarray(group.states.position, np.float64).reshape(4, 256, 4)
        seen = np.array([[np.corrcoef(starts[i, :, k], now[i, :, k])[0, 1] for k in range(4)] for i in range(4)])
        made += going
        going &= (last - seen > 0.05).mean(axis=1) > 0.9
        last = seen
        np.testing.assert_array_equal(np.asarray(group.active), going)
        pace.pace_of.cache_clear()
    assert starts is not None
    posterior = isles.sample(small.problem, dataclasses.replace(sampler, particles=512), islands=64, seed=4)
    ran = np.isfinite(posterior.trace["mutations"])
    assert 1 < posterior.trace["mutations"][ran].mean() < 40
    truth.assert_log_evidence(posterior, small.log_evidence)


def test_nothing_is_compiled_anew_when_numbers_change(small: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=3), particles=40, mutations=4, waste_free=True)
    isles.sample(small.problem, sampler, seed=1)
    compiled = mutation.mutate_piece._cache_size()
    isles.sample(small.problem, dataclasses.replace(sampler, ess_fraction=0.7), seed=2)
    assert mutation.mutate_piece._cache_size() == compiled
