"""Families of particles: pairs that descend from one draw of the prior, and the warning that they are too many."""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

import numpy as np
import pytest

import isles
import runs
import targets
from isles.keys import root
from isles.posterior import merge
from isles.samplers.block import Output
from isles.summary import find_warnings

STILL = isles.MH(step_size=1e-12)  # lost in rounding


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
@pytest.mark.parametrize("how", [{}, {"resampling": "residual"}, {"waste_free": True}])
def test_where_nothing_moves_relatives_are_those_at_the_same_place(how: dict[str, Any]) -> None:
    sampler = isles.SMC(STILL, particles=24, mutations=1, schedule=[0.02, 0.1, 0.3, 1], **how)
    posterior = isles.sample(runs.problem(), sampler, islands=5)
    assert posterior.positions is not None
    apart = posterior.positions[:, :, None, 0] != posterior.positions[:, None, :, 0]
    np.testing.assert_allclose(posterior.trace["unrelated"][-1], apart.sum(axis=(1, 2)) / (24 * 23), rtol=1e-12)
    assert 0 < posterior.trace["unrelated"][-1].mean() < 0.9


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_resampling_alone_leaves_one_minus_the_inverse_ess() -> None:
    """Two copies are drawn independently in multinomial resampling, from one ancestor with chance Σ w²."""
    sampler = isles.SMC(STILL, particles=16, mutations=1, schedule=[0.01, 1], resampling="multinomial")
    posterior = isles.sample(runs.problem(), sampler, islands=2000, seed=1)
    error = posterior.trace["unrelated"][0] - (1 - 1 / posterior.trace["ess"][0])
    standard_error = error.std(ddof=1) / np.sqrt(error.size)
    assert standard_error < 0.003 and abs(error.mean()) < 4 * standard_error


@pytest.mark.parametrize("seed", range(3))
def test_few_families_are_a_warning_where_nothing_else_tells(seed: int) -> None:
    """Random walks of two steps in a hundred dimensions, seen by one island."""
    with pytest.warns(isles.IslesWarning) as caught:
        isles.sample(targets.logistic(100, 300), isles.SMC(isles.MH(), particles=256, mutations=2), seed=seed)
    (message,) = [str(each.message) for each in caught]
    assert re.search(r"too short: \d% of pairs .* after 8 stages, .* leave 94%; .* raise mutations=2,", message)


def test_particles_that_forget_are_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", isles.IslesWarning)
        for seed in range(4):
            sampler = isles.SMC(isles.HMC(leapfrogs=10), particles=64, mutations=10)
            posterior = isles.sample(targets.logistic(10, 50), sampler, seed=seed)
            assert posterior.trace["unrelated"][:8, 0][-1] > 0.3


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_a_rise_that_few_particles_have_by_chance_is_no_warning() -> None:
    """0.4 over 4 late stages of 32 particles is within three standard errors of none, over 16 it is not."""
    sampler = isles.SMC(isles.HMC(leapfrogs=10), particles=32, mutations=10)
    posterior = isles.sample(targets.logistic(10, 50), sampler)
    for stages, islands, said in ((8, 1, False), (32, 1, True), (8, 4, True)):
        trace = {name: np.zeros((stages, islands)) for name in posterior.trace} | {
            "rise": np.full((stages, islands), 0.4),
            "unrelated": np.ones((stages, islands)),
            "acceptance": np.ones((stages, islands)),
            "unique_ancestors": np.full((stages, islands), 32.0),
        }
        found = find_warnings(dataclasses.replace(posterior, trace=trace), sampler)
        assert any("by 0.40 of its spread" in message for message in found) is said


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_checkpoints_of_versions_that_knew_no_families() -> None:
    problem, output, islands = runs.problem(), Output({}, "all"), np.arange(2)
    sampler = isles.SMC(isles.MH(), particles=16, mutations=3, schedule=[0.1, 0.5, 1])
    block = sampler.begin(problem, root(0), islands, output)
    block = sampler.advance(problem, block)
    kept = sampler.pack(block)
    del kept["founders"]
    kept["records"] = [{k: v for k, v in record.items() if k != "unrelated"} for record in kept["records"]]
    old = sampler.unpack(problem, root(0), islands, output, kept)
    for _ in range(2):
        block, old = sampler.advance(problem, block), sampler.advance(problem, old)
    new, old = sampler.result(problem, block), sampler.result(problem, old)
    np.testing.assert_array_equal(old.positions, new.positions)
    assert "unrelated" in new.records[-1] and "unrelated" not in old.records[-1]
    both = merge(problem.layout, None, sampler, [new, old], "all", seed=0)
    assert both.trace["ess"].shape == (3, 4) and "unrelated" not in both.trace
