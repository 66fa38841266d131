"""At least 100 SIGKILLs over local and Ray runs: each ends with the bits of the serial oracle, and no island lost.

Processes kill themselves at named points (`trap_hook.py`), or are killed at random. What comes too late,
since the run is over, is counted and repeated.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isles
import runs
from clusters import Cluster, cluster
from kills import (
    SAMPLING,
    WRITING,
    Kill,
    Tally,
    Traps,
    assert_same_bits,
    drive,
    finish,
    is_running,
    parent,
    wait_until,
)

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore::isles.IslesWarning")]

ENOUGH, AT_RANDOM = 100, 24
SETTINGS = {"islands": 16, "islands_per_block": 1, "seed": 3, "checkpoint_seconds": 0.01}
RUN = """
import isles, runs
print(len(isles.sample(runs.problem(), runs.LONG, folder={folder!r}, engine={engine}, **{settings!r}).log_weights))
"""
LOCAL, RAY = "isles.Local(workers=2, retries=1000)", "isles.Ray(retries=1000)"


@pytest.fixture(scope="session")
def oracle() -> isles.Posterior:
    """The run, undisturbed, in one worker."""
    return isles.sample(runs.problem(), runs.LONG, engine="serial", **SETTINGS)


@pytest.fixture(autouse=True)
def counted(tally: Tally, traps: Traps) -> Any:
    yield
    tally.kills += traps.kills


def start(folder: Path, engine: str) -> subprocess.Popen[str]:
    return drive(RUN.format(folder=str(folder), engine=engine, settings=SETTINGS))


def check(folder: Path, oracle: isles.Posterior) -> None:
    """Nothing is lost, and nothing is left behind."""
    assert_same_bits(oracle, isles.load(folder / "posterior.safetensors"))
    assert_same_bits(oracle, isles.merge(folder))
    assert not [path for path in folder.rglob("*") if path.name.endswith(".tmp") or "state-" in path.name]


def run_until_killed(process: subprocess.Popen[str]) -> bool:
    """Whether the driver was killed; else it has finished."""
    code, out, errors = finish(process)
    finished = code == 0 and out.endswith(f"{SETTINGS['islands']}\n")  # Ray may print before
    assert finished or code == -signal.SIGKILL, (code, out, errors)
    return code != 0


def at_work(traps: Traps) -> list[int]:
    """Workers that sample or write."""
    return [pid for pid, (role, phase) in traps.phases().items() if role == "worker" and phase in AT_WORK]


AT_WORK = ("sampling", "writing", "at-gate")


def test_workers_die_at_every_point(oracle: isles.Posterior, traps: Traps, tally: Tally, tmp_path: Path) -> None:
    for point, count in itertools.product((*WRITING, *SAMPLING), (1, 2, 3, 5, 8)):
        traps.arm("worker", point, count)
    for attempt in range(10):  # traps that nobody came by wait for the next run
        folder = tmp_path / f"run-{attempt}"
        posterior = isles.sample(
            runs.problem(), runs.LONG, folder=folder, engine=isles.Local(workers=2, retries=1000), **SETTINGS
        )
        assert_same_bits(oracle, posterior)
        check(folder, oracle)
        if not traps.armed:
            break
        tally.late += len(traps.armed)
    assert not traps.armed
    assert len(traps.kills) == 35


@pytest.mark.parametrize("engine", [LOCAL, RAY])
def test_drivers_die_at_every_point(
    engine: str,
    oracle: isles.Posterior,
    traps: Traps,
    tally: Tally,
    tmp_path: Path,
    nodes: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While they write run.json, while blocks are sampled, and while they write the posterior.

    On Ray, the driver also writes checkpoints and results.
    """
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    folder = tmp_path / "run"
    for point in WRITING:  # of run.json, until it is there
        traps.arm("driver", point)
        assert run_until_killed(start(folder, engine))
    for _ in range(4):
        with traps.gate("under-way"):
            driver = start(folder, engine)
            wait_until(lambda driver=driver: at_work(traps) or driver.poll() is not None)
            driver.kill()
            if run_until_killed(driver):
                traps.note(Kill("event", "workers-at-work", "driver", "sampling", driver.pid))
            else:
                tally.late += 1
            wait_until(lambda: not at_work(traps))  # before the gate opens: no checkpoint is made
    if engine == RAY:
        for count, point in enumerate(WRITING):  # of checkpoints and results
            traps.arm("driver", point, 5 + 7 * count)
            assert run_until_killed(start(folder, engine))
    assert not run_until_killed(start(folder, engine))
    for point in WRITING:  # of the posterior, which is all there is left to write
        traps.arm("driver", point)
        assert run_until_killed(start(folder, engine))
    assert not run_until_killed(start(folder, engine))
    check(folder, oracle)


def test_actors_die_while_they_sample(
    oracle: isles.Posterior, traps: Traps, tally: Tally, tmp_path: Path, nodes: Cluster
) -> None:
    for point, count in itertools.product(SAMPLING, (1, 2, 3, 5, 8, 13)):
        traps.arm("worker", point, count)
    engine = isles.Ray(address=nodes.address, retries=1000)
    for attempt in range(10):
        folder = tmp_path / f"run-{attempt}" if attempt % 2 == 0 else None  # a folder is not needed
        assert_same_bits(oracle, isles.sample(runs.problem(), runs.LONG, folder=folder, engine=engine, **SETTINGS))
        if folder:
            check(folder, oracle)
        if not traps.armed:
            break
        tally.late += len(traps.armed)
    assert not traps.armed
    assert len(traps.kills) == 12


def test_a_node_is_lost(oracle: isles.Posterior, traps: Traps, tmp_path: Path, monkeypatch: Any) -> None:
    """Two of four nodes go, each while a block is at work on it; the others take over."""
    folder = tmp_path / "run"
    with cluster(1, 1, 1, 1) as several:
        monkeypatch.setenv("RAY_ADDRESS", several.address)
        here = lambda number: [pid for pid in at_work(traps) if parent(pid) == several.raylets[number]]
        with traps.gate("under-way"):
            driver = start(folder, RAY)
            wait_until(lambda: driver.poll() is not None or all(here(number) for number in range(4)))
            assert driver.poll() is None, finish(driver)
            for number in (1, 3):
                actors = here(number)
                several.remove(number)
                wait_until(lambda actors=actors: not any(map(is_running, actors)))
                for pid in actors:
                    traps.note(Kill("event", "node-lost", "worker", "sampling", pid))
        assert not run_until_killed(driver)
    check(folder, oracle)


@pytest.mark.parametrize("engine", [RAY, LOCAL])
def test_random_kills(
    engine: str,
    oracle: isles.Posterior,
    traps: Traps,
    tally: Tally,
    tmp_path: Path,
    nodes: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers die at times that no code chose; with the other tests, more than a hundred have died by now."""
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    chance = random.Random(f"{engine}")
    wanted = AT_RANDOM // 2
    for attempt in itertools.count():
        assert attempt < 40, f"{len(traps.kills)} kills in {attempt} runs"
        folder = tmp_path / f"run-{attempt}"
        driver = start(folder, engine)
        for _ in range(8):
            workers = wait_until(lambda driver=driver: driver.poll() is not None or at_work(traps))
            if driver.poll() is not None:
                break
            time.sleep(chance.uniform(0, 0.3))
            if not traps.kill(chance.choice(workers)):
                tally.late += 1
        assert not run_until_killed(driver)
        check(folder, oracle)
        if len(traps.kills) >= wanted:
            break


def test_enough_were_killed(tally: Tally, request: pytest.FixtureRequest) -> None:
    if len(request.session.items) < 8:
        pytest.skip("only a part of the suite was run")
    assert len(tally.kills) >= ENOUGH, tally
    assert tally.at_work >= 0.7 * len(tally.kills), tally
    assert {kill.role for kill in tally.kills} == {"driver", "worker"}
    assert {kill.point for kill in tally.kills} >= {*WRITING, *SAMPLING, "random", "node-lost"}
    assert np.unique([kill.pid for kill in tally.kills]).size > 0.9 * len(tally.kills)
