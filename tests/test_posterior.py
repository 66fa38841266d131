"""`Posterior`: weights, expectations, resampling, files, and the table of diagnostics."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
import targets


@pytest.fixture(scope="module")
def weighted(small: targets.Conjugate) -> isles.Posterior:
    """Weighted draws: annealed importance sampling."""
    sampler = isles.AIS(isles.HMC(leapfrogs=3), 64, mutations=2)
    collect = {"moments": lambda theta: {"mean": theta, "square": (theta**2, jnp.sum(theta))}}
    return isles.sample(small.problem, sampler, islands=8, seed=1, collect=collect)


def test_weights_and_expectations(weighted: isles.Posterior) -> None:
    draws = weighted.draws.astype(np.float64)
    assert draws.shape == (8, 64, 4)
    assert weighted.weights.shape == (8, 64)
    np.testing.assert_allclose(weighted.weights.sum(), 1)
    np.testing.assert_allclose(weighted.island_weights, weighted.weights.sum(axis=1))
    by_hand = np.einsum("pn,pnd->d", weighted.weights, draws)
    value, error = weighted.expectation(lambda theta: {"t": theta, "s": jnp.sin(theta[0])})
    np.testing.assert_allclose(value["t"], by_hand, rtol=1e-6)
    np.testing.assert_allclose(value["s"], (weighted.weights * np.sin(draws[..., 0])).sum(), rtol=1e-5)
    omega = weighted.island_weights
    means = np.einsum("pn,pnd->pd", weighted.weights, draws) / omega[:, None]
    squares = 8 / 7 * np.sum(omega[:, None] ** 2 * (means - by_hand) ** 2, axis=0)
    np.testing.assert_allclose(error["t"], np.sqrt(squares), rtol=1e-4)
    np.testing.assert_allclose(weighted.mean(), by_hand, rtol=1e-6)
    np.testing.assert_allclose(weighted.collected["moments"].value["mean"], by_hand, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 7, 100_000])
def test_resampled_draws_are_equally_weighted(weighted: isles.Posterior, count: int) -> None:
    draws = weighted.resample(count, seed=3)
    assert draws.shape == (count, 4)
    assert set(map(bytes, draws)) <= set(map(bytes, weighted.draws.reshape(-1, 4)))
    if count > 1000:
        np.testing.assert_allclose(draws.mean(axis=0), weighted.mean(), atol=1e-3)
        assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.02, "in random order"


def test_equal_weights_are_a_labelled_alternative(weighted: isles.Posterior) -> None:
    equal = weighted.with_weights("equal")
    np.testing.assert_allclose(equal.island_weights, 1 / 8)
    assert equal.weighting == "equal" and weighted.weighting == "evidence"
    assert equal.diagnostics()["island weights"] == "equal"
    with pytest.raises(ValueError, match="weighting='best' must be one of"):
        weighted.with_weights("best")


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # short, and it says so
def test_mcmc_has_no_evidence_to_weigh_by(small: targets.Conjugate) -> None:
    chains = isles.sample(small.problem, isles.MCMC(isles.HMC(leapfrogs=3), 4, 30, 2), islands=2)
    with pytest.raises(ValueError, match="estimates no evidence"):
        chains.with_weights("evidence")
    assert chains.chains.shape == (2, 4, 2, 4)
    np.testing.assert_array_equal(chains.chains.reshape(2, 8, 4), chains.draws)


def test_particles_are_no_chains(weighted: isles.Posterior) -> None:
    with pytest.raises(ValueError, match="form no chains"):
        _ = weighted.chains


class Layer(NamedTuple):
    w: Any
    b: Any


STRUCTURES = {
    "array": np.zeros(3),
    "scalar": np.float32(0.0),
    "nested": {"a/b": [np.zeros((2, 2)), (np.zeros(()), {"c": np.zeros(1)})], "": np.zeros(1)},
    "named tuple": Layer(np.zeros((2, 3)), np.zeros(3)),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize(
    "sampler",
    [isles.SMC(isles.PCN(), 16, 8), isles.MCMC(isles.MH(), 4, 30, 3)],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_saved_posterior_comes_back_whole(name: str, sampler: Any, tmp_path: Path) -> None:
    like = STRUCTURES[name]
    problem = isles.Problem(
        isles.Gaussian(like=like), lambda p: -0.1 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isles.IslesWarning)
        posterior = isles.sample(problem, sampler, islands=2, collect={"first": lambda p: jax.tree.leaves(p)[0]})
    path = tmp_path / "posterior.safetensors"
    posterior.save(path)
    if name == "named tuple":
        with pytest.raises(ValueError, match="pass like="):
            isles.load(path)
        loaded = isles.load(path, like=like)
        assert isinstance(loaded.draws, Layer)
    else:
        loaded = isles.load(path)
    assert jax.tree.structure(loaded.draws) == jax.tree.structure(posterior.draws)
    jax.tree.map(np.testing.assert_array_equal, loaded.draws, posterior.draws)
    for field in dataclasses.fields(posterior):
        one, two = getattr(posterior, field.name), getattr(loaded, field.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == two.dtype and one.tobytes() == two.tobytes(), field.name
        elif field.name not in ("layout", "trace", "island_sums", "plan"):
            assert one == two, field.name
    assert loaded.log_evidence == posterior.log_evidence
    assert str(loaded.diagnostics()) == str(posterior.diagnostics())
    np.testing.assert_array_equal(loaded.collected["first"].value, posterior.collected["first"].value)
    if isinstance(sampler, isles.SMC):
        again = isles.sample(problem, sampler.frozen(loaded), seed=3)
        assert again.evidence_kind == "unbiased"


def test_a_damaged_file_is_refused(weighted: isles.Posterior, tmp_path: Path) -> None:
    path = tmp_path / "posterior.safetensors"
    weighted.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"no readable file of isles|damaged"):
        isles.load(path)


@pytest.mark.defect("PyMC #7192: islands with different numbers of stages gave ragged arrays")
def test_traces_are_rectangular(small: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=3), 16, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isles.IslesWarning)
        posterior = isles.sample(small.problem, sampler, islands=64, islands_per_block=16)
    stages = np.isfinite(posterior.trace["tempering"]).sum(axis=0)
    assert len(np.unique(stages)) > 1
    shapes = {values.shape for values in posterior.trace.values()}
    assert shapes == {(stages.max(), 64)}
    assert posterior.diagnostics()["stages"] == f"{stages.min()} to {stages.max()}"


def test_diagnostics_is_a_readable_table(weighted: isles.Posterior) -> None:
    table = weighted.diagnostics()
    assert table["islands"] == 8
    assert table["island ESS"] == pytest.approx(1 / np.sum(weighted.island_weights**2))
    assert table["epochs, total"] == 8 * 64 * (1 + 40 * 2 * 3)
    assert "log evidence" in str(table) and "\n" in str(table)


def test_disagreeing_islands_are_reported(gaussian: targets.Conjugate) -> None:
    """One mutation of one small step cannot decorrelate the particles."""
    sampler = isles.SMC(isles.HMC(leapfrogs=1, step_size=0.02), 32, 1)
    with pytest.warns(isles.IslesWarning) as caught:
        isles.sample(gaussian.problem, sampler, islands=16)
    messages = " ".join(str(warning.message) for warning in caught)
    assert "islands disagree" in messages and "raise mutations" in messages
    assert "few islands carry the weight" in messages


def test_repr_says_what_there_is(weighted: isles.Posterior) -> None:
    assert repr(weighted).startswith("Posterior(8 islands x 64 draws of 4 parameters, log evidence -")
