"""A folder holds one run: another is refused, and a budget leaves what the same call goes on with."""

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
from isles.engines.local import Here
from isles.store import files
from isles.store.folder import BlockFolder, RunFolder
from kills import assert_same_bits

pytestmark = pytest.mark.filterwarnings("ignore::isles.IslesWarning")

SCHEDULE = [0.01, 0.1, 1.0]
QUICK = isles.SMC(isles.MH(), particles=8, mutations=3, schedule=SCHEDULE)

# --- a folder -------------------------------------------------------------------------------------------------


class Evaluations:
    """A likelihood that counts its evaluations on the host."""

    def __init__(self) -> None:
        self.count = 0

    def problem(self) -> isles.Problem:
        def log_likelihood(theta: jax.Array) -> jax.Array:
            jax.debug.callback(self._add)
            return -jnp.sum((theta - 1) ** 2)

        return isles.Problem(isles.Gaussian(like=np.zeros(2)), log_likelihood)

    def _add(self) -> None:
        self.count += 1


def test_the_same_call_on_a_finished_folder_evaluates_nothing(tmp_path: Path) -> None:
    counter = Evaluations()
    problem = counter.problem()
    run = lambda: isles.sample(problem, QUICK, islands=2, folder=tmp_path / "run", engine=Here())
    first = run()
    jax.effects_barrier()
    made = counter.count
    assert made >= first.epochs.parallel, "a call evaluates all particles"
    assert_same_bits(first, run())
    assert_same_bits(first, isles.resume(tmp_path / "run", problem, engine=Here()))
    assert_same_bits(first, isles.merge(tmp_path / "run"))
    assert_same_bits(first, isles.load(tmp_path / "run" / "posterior.safetensors"))
    jax.effects_barrier()
    assert counter.count == made


def test_a_finished_folder_starts_no_worker_and_no_cluster(tmp_path: Path, small: Any, monkeypatch: Any) -> None:
    run = lambda **engine: isles.sample(small.problem, QUICK, islands=2, folder=tmp_path / "run", **engine)
    first = run()
    monkeypatch.setattr(sys, "executable", "/nobody")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for engine in ("serial", "local", "ray"):
        assert_same_bits(first, run(engine=engine))


PRIOR = isles.Gaussian(like=np.zeros(2))
DATA = np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2)


def log_likelihood(theta: jax.Array, batch: jax.Array) -> jax.Array:
    return -jnp.sum((theta - batch) ** 2)


def inner(array: Any) -> Any:
    """Two likelihoods whose programs read alike: they differ in an array inside a jitted function."""
    held = np.asarray(array, np.float32)
    part = jax.jit(lambda theta, batch: -jnp.sum((theta - batch * held) ** 2))
    return lambda theta, batch: part(theta, batch)


class Uniform:
    """A prior of a user's own."""

    def __init__(self, width: float) -> None:
        self.width = width

    def sample(self, key: Any) -> Any:
        return self.width * jax.random.uniform(key, (2,))

    def log_prob(self, theta: Any) -> Any:
        inside = jnp.all((theta >= 0) & (theta <= self.width))
        return jnp.where(inside, -2 * jnp.log(self.width), -jnp.inf)


BASE: dict[str, Any] = {
    "prior": PRIOR,
    "likelihood": log_likelihood,
    "data": DATA,
    "sampler": QUICK,
    "islands": 2,
    "seed": 1,
    "collect": {"sum": jnp.sum},
    "chunk_rows": 2,
}


def begin(folder: Path, **changes: Any) -> isles.Posterior:
    chosen = BASE | changes
    problem = isles.Problem(*[chosen.pop(name) for name in ("prior", "likelihood", "data")])
    return isles.sample(problem, chosen.pop("sampler"), folder=folder, engine=Here(), **chosen)


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({}, {"data": DATA + 1e-6}, "the data differs"),
        ({}, {"data": DATA[:2]}, r"rows was 3 and is 2"),
        ({}, {"prior": isles.Gaussian(like=np.zeros(2), std=1.001)}, "the prior differs"),
        ({"prior": Uniform(2.0)}, {"prior": Uniform(3.0)}, "the prior differs"),
        ({}, {"likelihood": lambda theta, batch: -jnp.sum(jnp.abs(theta - batch))}, "the likelihood differs"),
        ({"likelihood": inner([1.0, 2.0])}, {"likelihood": inner([1.0, 3.0])}, "the likelihood differs"),
        ({}, {"seed": 2}, "seed was 1 and is 2"),
        ({}, {"islands": 3}, "islands was 2 and is 3"),
        ({}, {"islands_per_block": 1}, "islands_per_block was 2 and is 1"),
        ({}, {"chunk_rows": 1}, "chunk_rows was 2 and is 1"),
        ({}, {"keep": "none"}, "keep was all and is none"),
        ({}, {"collect": {"sum": jnp.mean}}, "collect differ: sum"),
        ({}, {"collect": {}}, "collect differ: sum"),
        ({}, {"sampler": isles.AIS(isles.MH(), particles=8)}, r"sampler was SMC and is AIS"),
        ({}, {"sampler": dataclasses.replace(QUICK, mutations=4)}, r"\): sampler.mutations was 3 and is 4$"),
        ({}, {"sampler": dataclasses.replace(QUICK, kernel=isles.MH(step_size=0.1))}, r"was None and is 0\.1$"),
    ],
)  # fmt: skip
def test_another_run_is_refused_by_name_of_the_difference(
    first: dict[str, Any], then: dict[str, Any], message: str, tmp_path: Path
) -> None:
    before = begin(tmp_path, **first)
    with pytest.raises(isles.FolderError, match=message) as caught:
        begin(tmp_path, **first | then)
    assert "give another folder" in str(caught.value)
    assert_same_bits(before, begin(tmp_path, **first))


def test_a_sampler_frozen_on_another_pilot_is_refused(tmp_path: Path) -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=2), particles=16, mutations=12)
    pilot = lambda seed: isles.sample(isles.Problem(PRIOR, log_likelihood, DATA), sampler, seed=seed)
    frozen = [sampler.frozen(pilot(seed)) for seed in (1, 2)]
    begin(tmp_path, sampler=frozen[0])
    with pytest.raises(isles.FolderError, match="sampler"):
        begin(tmp_path, sampler=frozen[1])
    problem = isles.Problem(PRIOR, log_likelihood, DATA)
    assert isles.resume(tmp_path, problem, collect={"sum": jnp.sum}).epochs.total > 0, "the plan is in the folder"


@pytest.mark.parametrize("package", ["jax", "jaxlib"])
def test_another_version_of_jax_is_refused(package: str, tmp_path: Path) -> None:
    begin(tmp_path)
    facts = files.read_json(tmp_path / "run.json")
    facts["versions"][package] = "0.0.1"
    files.write_json(tmp_path / "run.json", facts)
    with pytest.raises(isles.FolderError, match=rf"{package} was 0.0.1 and is .* install {package}==0.0.1"):
        begin(tmp_path)
    (tmp_path / "posterior.safetensors").unlink()
    (tmp_path / "run.json").unlink()
    files.write_json(tmp_path / "run.json", facts)
    with pytest.raises(isles.PartialRunError, match="not finished"):  # results of one version under another's name
        isles.merge(tmp_path)


def test_another_precision_is_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    with jax.default_matmul_precision("highest"), pytest.raises(isles.FolderError, match="matmul_precision was"):
        begin(tmp_path)


def test_another_processor_is_allowed_and_written_down(tmp_path: Path) -> None:
    before = begin(tmp_path)
    facts = files.read_json(tmp_path / "run.json")
    facts["machine"]["processor"] = "abacus"
    files.write_json(tmp_path / "run.json", facts)
    assert_same_bits(before, begin(tmp_path))
    assert "machine" in json.loads((tmp_path / "log").read_text())


def test_resume_needs_what_a_folder_cannot_hold(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(ValueError, match="pass problem="):
        isles.resume(tmp_path)
    problem = isles.Problem(PRIOR, log_likelihood, DATA)
    with pytest.raises(ValueError, match=r"the run collects \['sum'\]; pass the same"):
        isles.resume(tmp_path, problem)
    with pytest.raises(TypeError, match=r"must be an isles\.Problem"):
        isles.resume(tmp_path, 3)
    with pytest.raises(ValueError, match="would change bits, so leave it out"):
        isles.resume(tmp_path, problem, collect={"sum": jnp.sum}, engine="local")
    with pytest.raises(isles.FolderError, match="no folder"):
        isles.resume(tmp_path / "nowhere", problem)
    with pytest.raises(isles.FolderError, match="rows was 3 and is 0"):
        isles.resume(tmp_path, isles.Problem(PRIOR, lambda theta: -jnp.sum(theta**2)), collect={"sum": jnp.sum})


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(isles.FolderError, match=r"holds other files \(thesis.tex\); give a new folder"):
        begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "lock"] == ["thesis.tex"]


@dataclasses.dataclass(frozen=True)
class OwnKernel(isles.MH):
    """Of a class that isles does not know."""


def test_a_kernel_of_ones_own_is_passed_again(tmp_path: Path) -> None:
    problem = isles.Problem(PRIOR, log_likelihood, DATA)
    sampler = isles.SMC(OwnKernel(), particles=8, mutations=3, schedule=SCHEDULE)
    before = isles.sample(problem, sampler, folder=tmp_path, engine=Here())
    with pytest.raises(ValueError, match="pass it as sampler="):
        isles.resume(tmp_path, problem)
    assert_same_bits(before, isles.resume(tmp_path, problem, sampler=sampler))
    assert_same_bits(before, isles.merge(tmp_path, sampler=sampler))


# --- budgets --------------------------------------------------------------------------------------------------


def test_a_budget_of_epochs_ends_with_whole_islands(tmp_path: Path) -> None:
    whole = begin(tmp_path / "whole", islands=4, islands_per_block=1)
    each = whole.epochs.total // 4
    with pytest.warns(isles.IslesWarning, match="2 of 4 islands are missing: the result is partial"):
        part = begin(tmp_path / "part", islands=4, islands_per_block=1, max_epochs=each + 1)
    assert part.missing == (2, 3) and part.epochs.total == 2 * each
    assert "biased" not in "".join(part.warnings)
    np.testing.assert_array_equal(part.positions, whole.positions[:2])
    assert not (tmp_path / "part" / "posterior.safetensors").exists()
    again = begin(tmp_path / "part", islands=4, islands_per_block=1, max_epochs=each + 1)
    assert again.epochs.total == 2 * each, "earlier epochs count"
    with pytest.raises(isles.PartialRunError, match=r"islands \[2, 3\] of 4 are not finished"):
        isles.merge(tmp_path / "part")
    assert isles.merge(tmp_path / "part", allow_partial=True).missing == (2, 3)
    assert_same_bits(whole, begin(tmp_path / "part", islands=4, islands_per_block=1))


@pytest.mark.parametrize("kept", [True, False])
def test_a_budget_that_stops_islands_says_that_the_rest_is_biased(kept: bool, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"islands": 3, "islands_per_block": 1}
    each = begin(tmp_path / "whole", **settings).epochs.total // 3
    folder = tmp_path / "part" if kept else None
    with pytest.warns(isles.IslesWarning, match="fast islands only, biased"):
        part = begin(folder, max_epochs=each + each // 4, finish_started=False, **settings)
    assert part.missing == (1, 2) and part.epochs.total == each
    if kept:
        assert BlockFolder(tmp_path / "part" / "blocks" / "0001").status()["epochs"] > 0, "its checkpoint is there"
        assert_same_bits(begin(tmp_path / "whole", **settings), begin(folder, **settings))


def test_a_budget_of_no_time_gives_nothing(tmp_path: Path) -> None:
    with pytest.raises(isles.PartialRunError, match="no island is finished yet"):
        begin(tmp_path, max_seconds=1e-9)
    assert begin(tmp_path, max_seconds=1e9).missing == ()


def test_a_budget_that_ends_before_life_is_seen_does_not_call_the_run_dead(tmp_path: Path) -> None:
    """Block 0 starts dead and waits for another; the budget of epochs is spent before another begins."""
    problem = isles.Problem(PRIOR, lambda theta: jnp.where(theta[0] > 0.3, theta[1], -jnp.inf))
    sampler = isles.MCMC(isles.MH(), chains=1, burn_in=5, draws=3)
    run = lambda **budget: isles.sample(
        problem, sampler, islands=6, islands_per_block=1, seed=4, folder=tmp_path, engine=Here(), **budget
    )
    clock = iter([True, False])  # the budget allows one block to begin

    def once(self: Any) -> bool:
        return not next(clock, False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isles.engines.ledger.Ledger.is_over_budget", property(once))
        with pytest.raises(isles.PartialRunError, match="no island is finished"):
            run()
    assert run().dead[0] == 1


# --- two processes --------------------------------------------------------------------------------------------


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    with (
        RunFolder(tmp_path).locked(),
        pytest.raises(isles.FolderError, match=r"in use by process \d+ on .*; wait for it, stop it or give"),
    ):
        begin(tmp_path)
    begin(tmp_path)


def test_another_problem_than_the_runs_own_is_refused(tmp_path: Path) -> None:
    """Its predictions would be wrong, and nothing in them would show it: network, noise and data count."""
    tanh, sine = (lambda w, x, bend=bend: bend(x @ w["a"]) @ w["b"] for bend in (jnp.tanh, jnp.sin))
    x, y = np.random.default_rng(2).normal(size=(2, 20, 2))
    y = y[:, 0]
    like = isles.Gaussian({"a": np.zeros((2, 4)), "b": np.zeros((4,))})
    problem = lambda apply=tanh, noise=0.5, y=y: isles.regression(apply, like, x, y, noise_std=noise)
    sampler = isles.MCMC(isles.HMC(leapfrogs=2), chains=2, burn_in=5)
    run = isles.sample(problem(), sampler, islands=2, folder=tmp_path / "run")
    run.save(tmp_path / "file")
    for read in (isles.load, isles.merge):
        assert read(tmp_path / "run", problem=problem()).likelihood is not None
        for other in (problem(sine), problem(noise=0.6), problem(y=y[::-1].copy())):
            with pytest.raises(
                ValueError, match=r"gives a draw the log-likelihood .*not those of the run.* apply="
            ):
                read(tmp_path / "run", problem=other)
    with pytest.raises(ValueError, match="not those of the run"):
        isles.load(tmp_path / "file", problem=problem(sine))
    none = isles.sample(problem(), sampler, islands=2, keep="none")
    none.save(tmp_path / "none")
    assert isles.load(tmp_path / "none", problem=problem(sine)).positions is None  # nothing to predict with


def test_a_folder_with_other_files_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(isles.FolderError, match=r"holds other files \(mine\.txt\)"):
        isles.sample(Evaluations().problem(), QUICK, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(isles.FolderError, match=r"mine\.txt is a file; give a new folder"):
        isles.sample(Evaluations().problem(), QUICK, folder=tmp_path / "mine.txt")
