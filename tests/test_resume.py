"""Runs that are interrupted, killed, stopped by a budget or begun twice, and what goes on afterwards."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
import runs
import targets
from isles.engines import blocks
from isles.engines.blocks import Done, Halted, Kept, Work, follow
from isles.engines.local import Here
from isles.samplers import pace
from isles.samplers.block import BlockResult, Output
from isles.store import files
from isles.store.folder import BlockFolder, RunFolder, Saved
from kills import Traps, assert_same_bits, bits, drive, finish, is_running, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::isles.IslesWarning")

SCHEDULE = [0.01, 0.1, 1.0]
QUICK = isles.SMC(isles.MH(), particles=8, mutations=3, schedule=SCHEDULE)
SAMPLERS = {
    "smc": isles.SMC(isles.HMC(leapfrogs=2), particles=16, mutations=12),
    "smc, scales": isles.SMC(isles.PCN(), particles=16, mutations=9),
    "smc, adaptive M": isles.SMC(isles.MH(), particles=16, mutations=isles.Decorrelate(0.3, max=40)),
    "ais": isles.AIS(isles.MALA(), particles=16, schedule=SCHEDULE, mutations=10),
    "mcmc": isles.MCMC(isles.PCN(), chains=4, burn_in=60, draws=80, thin=2),
    "mcmc, optimised": isles.MCMC(
        isles.MH(), chains=4, burn_in=9, draws=5, start=isles.Optimised(31, batch_rows=3)
    ),
    "mpmcmc": isles.MPMCMC(proposals=3, steps=60, burn_in=40, adaptive=True),
    "smc, waste-free": isles.SMC(isles.MH(), particles=24, mutations=5, waste_free=True),
    "smc, ensemble": isles.SMC(isles.Stretch(), particles=16, mutations=9),
    "mcmc, no burn-in": isles.MCMC(isles.HMC(leapfrogs=2), chains=4, burn_in=0, draws=41),
}
COLLECT = {"sum": jnp.sum, "parts": lambda theta: {"first": theta[0], "all": theta}}


# --- a block, cut wherever it can be --------------------------------------------------------------------------


def work_of(sampler: Any, problem: isles.Problem, **settings: Any) -> Work:
    keep = "thinned" if isinstance(sampler, isles.MCMC) else "all"
    return Work(problem, sampler, Output(COLLECT, keep), 5, (np.arange(2), np.arange(2, 4)), "run", **settings)


def result_of(events: Iterator[Any]) -> BlockResult:
    last = [event for event in events if not isinstance(event, blocks.Reached)][-1]
    assert isinstance(last, Done)
    return last.result


def assert_same_result(one: BlockResult, two: BlockResult) -> None:
    for field in dataclasses.fields(BlockResult):
        value, other = getattr(one, field.name), getattr(two, field.name)
        if field.name == "plan" and value is not None:
            value, other = vars(value), vars(other)
        assert jax.tree.structure(value) == jax.tree.structure(other), field.name
        assert bits(value) == bits(other), field.name


def through_a_file(path: Path, saved: Saved) -> Saved:
    files.write(path, *saved)
    return Saved(*files.read(path))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_block_cut_anywhere_has_the_bits_of_one_that_is_not(
    name: str, small: targets.Conjugate, tmp_path: Path
) -> None:
    sampler = SAMPLERS[name]
    oracle = result_of(follow(work_of(sampler, small.problem), 1, life_seen=True, keep=False))
    assert oracle.records and oracle.epochs.max(axis=1).min() > 1
    often = work_of(sampler, small.problem, checkpoint_seconds=1e-9)
    events = list(follow(often, 1, life_seen=True))
    cuts = [event for event in events if isinstance(event, Kept)]
    assert_same_result(oracle, result_of(iter(events)))
    assert len(cuts) >= 2
    for number, cut in enumerate(cuts[:: -(-len(cuts) // 6)]):  # the next test goes on from all of them
        assert len(cut.records) <= len(oracle.records)
        saved = through_a_file(tmp_path / f"{number}", cut.saved)
        assert_same_result(oracle, result_of(follow(often, 1, [saved], life_seen=True)))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_block_that_is_halted_all_the_time_comes_to_the_same_end(
    name: str, small: targets.Conjugate, tmp_path: Path
) -> None:
    work = work_of(SAMPLERS[name], small.problem)
    oracle = result_of(follow(work, 0, life_seen=True, keep=False))
    checkpoints: list[Saved] = []
    epochs = [0]
    for _ in range(10_000):
        pace.pace_of.cache_clear()  # as in a new process
        events = list(follow(work, 0, checkpoints, life_seen=True, halt=lambda: True))
        if isinstance(events[-1], Done):
            break
        assert isinstance(events[-1], Halted)
        (kept,) = [event for event in events if isinstance(event, Kept)]
        assert kept.status.epochs >= epochs[-1]
        epochs.append(kept.status.epochs)
        checkpoints = [through_a_file(tmp_path / "saved", kept.saved)]
    assert len(epochs) > 3
    assert_same_result(oracle, events[-1].result)


def test_a_checkpoint_of_another_block_or_run_is_not_used(small: targets.Conjugate) -> None:
    work = work_of(SAMPLERS["smc"], small.problem)
    oracle = result_of(follow(work, 0, life_seen=True, keep=False))
    halted = lambda number, **changes: next(
        event.saved
        for event in follow(dataclasses.replace(work, **changes), number, life_seen=True, halt=lambda: True)
        if isinstance(event, Kept)
    )
    for saved in [halted(1), halted(0, digest="another")]:
        with pytest.warns(isles.IslesWarning, match="it is not used"):
            assert_same_result(oracle, result_of(follow(work, 0, [saved], life_seen=True)))


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
    pilot = lambda seed: isles.sample(isles.Problem(PRIOR, log_likelihood, DATA), SAMPLERS["smc"], seed=seed)
    frozen = [SAMPLERS["smc"].frozen(pilot(seed)) for seed in (1, 2)]
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


RUN = """
import isles, runs
print(isles.sample(runs.problem(), runs.LONG, folder={folder!r}, **runs.SETTINGS).epochs.total)
"""


def test_kills_of_workers_and_drivers_leave_the_bits_as_they_are(tmp_path: Path, traps: Traps) -> None:
    oracle = isles.sample(runs.problem(), runs.LONG, **runs.SETTINGS | {"engine": "serial", "workers": None})
    folder = str(tmp_path / "run")
    with traps.gate("mutation"):  # a driver is killed while its workers are about to mutate
        driver = drive(RUN.format(folder=folder))
        at_work = lambda: [pid for pid, (_, phase) in traps.phases().items() if phase == "at-gate"]
        workers = wait_until(lambda: len(at_work()) == 2 and at_work())
        with pytest.raises(isles.FolderError, match=f"in use by process {driver.pid} on"):
            isles.sample(runs.problem(), runs.LONG, folder=folder, **runs.SETTINGS)
        driver.kill()
        assert finish(driver)[0] == -signal.SIGKILL
        wait_until(lambda: not any(map(is_running, workers)))
    points = ["mid-write", "mutation", "after-fsync", "before-rename", "under-way", "after-rename"]
    for count, point in enumerate(points):
        traps.arm("worker", point, 2 + count)
    # run.json is there, so that the driver's first file is the posterior
    for point in ("before-write", "mid-write", "after-rename"):
        traps.arm("driver", point)
    codes = []
    while not codes or codes[-1] == -signal.SIGKILL:
        code, _, errors = finish(drive(RUN.format(folder=folder)))
        codes.append(code)
        assert code in (0, -signal.SIGKILL), errors
        assert len(codes) <= 4
    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert sorted(kill.point for kill in traps.kills if kill.role == "worker") == sorted(points)
    assert_same_bits(oracle, isles.load(f"{folder}/posterior.safetensors"))
    left = [path for path in Path(folder).rglob("*") if path.name.endswith(".tmp") or "state-" in path.name]
    assert not left, "nothing is left of killed processes"


@pytest.mark.usefixtures("compiled")
def test_a_block_that_kills_its_workers_is_reported_when_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    monkeypatch.setenv("ISLES_TEST_FATAL", str(trap))
    sampler = runs.Fatal(isles.MH(), particles=8, mutations=3, schedule=SCHEDULE)
    settings: dict[str, Any] = {"islands": 4, "islands_per_block": 1, "workers": 2, "engine": "local"}
    run = lambda folder, **more: isles.sample(
        runs.problem(), sampler, folder=tmp_path / folder, **settings, **more
    )
    oracle = run("oracle")
    trap.touch()
    with pytest.raises(isles.DeadWorkerError, match=r"block 1 \(island 1\): .* by signal 9 .*, 2 times") as caught:
        run("run", retries=1)
    assert "isles.merge(folder, allow_partial=True) gives the islands that are finished" in str(caught.value)
    assert isles.merge(tmp_path / "run", allow_partial=True, sampler=sampler).missing == (1,)
    with pytest.warns(isles.IslesWarning, match="1 of 4 islands are missing"):
        part = run("run", retries=0, allow_partial=True)
    assert part.missing == (1,)
    np.testing.assert_array_equal(part.positions, oracle.positions[[0, 2, 3]])
    trap.unlink()
    assert_same_bits(oracle, run("run"))


INTERRUPTED = """
import os, signal, isles, runs
from isles.engines.local import Here
signal.signal(signal.SIGINT, signal.default_int_handler)
sampler = runs.interrupting(os.getpid(), {trap!r})
try:
    isles.sample(runs.problem(), sampler, islands=4, islands_per_block=2, folder={folder!r}, engine={engine},
        checkpoint_seconds=1e9)
except KeyboardInterrupt as error:
    print(error)
"""


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("engine", ["isles.Local(workers=2)", "Here()"])
def test_ctrl_c_stops_after_a_checkpoint(engine: str, tmp_path: Path) -> None:
    trap, folder, whole = tmp_path / "trap", tmp_path / "run", tmp_path / "whole"
    script = lambda folder: INTERRUPTED.format(trap=str(trap), folder=str(folder), engine=engine)
    trap.touch()
    code, out, errors = finish(drive(script(folder)))
    assert code == 0, errors
    assert out.startswith(f"stopped after a checkpoint; go on with isles.resume({str(folder)!r}, problem")
    assert BlockFolder(folder / "blocks" / "0000").status()["stage"] in (1, 2)
    trap.unlink()
    for place in (folder, whole):
        code, out, errors = finish(drive(script(place)))
        assert (code, out) == (0, ""), errors
    assert_same_bits(*(isles.load(place / "posterior.safetensors") for place in (whole, folder)))


MESH = """
import sys, jax, numpy as np, isles, targets
from isles.engines.blocks import Done, Kept, Work, follow
from isles.samplers.block import Output
problem, mesh = targets.conjugate(dimension=5, rows=17, seed=1).problem, isles.mesh(particles=2, data=2)
for number, sampler in enumerate([
    isles.SMC(isles.PCN(), particles=8, mutations=isles.Decorrelate(0.2, max=9)),
    isles.MCMC(isles.MALA(), chains=8, burn_in=40, draws=42, start=isles.Optimised(epochs=20)),
]):
    work = Work(problem.on(mesh), sampler, Output({}, "all"), 0, (np.arange(1),), "", checkpoint_seconds=1e-9)
    events = list(follow(work, 0, life_seen=True))
    cuts = [event.saved for event in events if isinstance(event, Kept)]
    for cut in cuts[:: -(-len(cuts) // 3)]:
        *_, done = follow(work, 0, [cut], life_seen=True)
        np.testing.assert_array_equal(done.result.positions, events[-1].result.positions)
        np.testing.assert_array_equal(done.result.log_likelihood, events[-1].result.log_likelihood)
    folder = f"{sys.argv[1]}/{number}"
    run = lambda name, **more: isles.sample(
        problem, sampler, islands=2, islands_per_block=1, mesh=mesh, folder=f"{folder}-{name}", **more)
    whole = run("whole")
    part = run("part", max_epochs=whole.epochs.total * 2 // 3, finish_started=False)
    assert part.missing == (1,), part.missing
    try: isles.resume(f"{folder}-part", problem)
    except isles.FolderError as error: assert "mesh was" in str(error), error
    again = isles.resume(f"{folder}-part", problem, mesh=mesh)
    np.testing.assert_array_equal(again.positions, whole.positions)
    np.testing.assert_array_equal(again.log_weights, whole.log_weights)
print("done")
"""


def test_runs_on_several_devices_are_resumed_with_the_same_bits(tmp_path: Path, compiled: Path) -> None:
    code = MESH.replace("sys.argv[1]", repr(str(tmp_path)))
    code, out, errors = finish(drive(code, XLA_FLAGS="--xla_force_host_platform_device_count=4"))
    assert (code, out) == (0, "done\n"), errors
