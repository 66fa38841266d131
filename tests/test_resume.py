"""Runs that are interrupted, killed, stopped by a budget or begun twice, and what goes on afterwards."""

from __future__ import annotations

import dataclasses
import signal
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
from isles.samplers import pace
from isles.samplers.block import BlockResult, Output
from isles.store import files
from isles.store.folder import BlockFolder, Saved
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
    "mcmc, tuned alone": isles.MCMC(isles.HMC(trajectory=0.5), chains=4, burn_in=40, draws=41, tune="alone"),
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
