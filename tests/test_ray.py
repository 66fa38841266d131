"""Runs on a Ray cluster: the bits of the serial oracle, whatever dies, and clear errors."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import isles
import runs
from clusters import Cluster
from isles.engines import ray as engine
from isles.store.folder import BlockFolder
from kills import Traps, assert_same_bits, drive, finish

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.xdist_group("ray"),  # one cluster for all
    pytest.mark.filterwarnings("ignore::isles.IslesWarning"),
]

RUN: dict[str, Any] = {"islands": 8, "islands_per_block": 2, "seed": 3, "checkpoint_seconds": 0.01}


@pytest.fixture(scope="module")
def oracle() -> isles.Posterior:
    return isles.sample(runs.problem(), runs.LONG, engine="serial", **RUN)


@pytest.mark.usefixtures("compiled")
def test_a_run_in_a_folder_has_the_bits_of_the_serial_oracle(
    nodes: Cluster, oracle: isles.Posterior, tmp_path: Path
) -> None:
    """Without a folder: test_same_bits."""
    folder = tmp_path / "run"
    where = isles.Ray(cpus=1.0, address=nodes.address)
    assert_same_bits(oracle, isles.sample(runs.problem(), runs.LONG, engine=where, folder=folder, **RUN))
    assert_same_bits(oracle, isles.load(folder / "posterior.safetensors"))
    assert len((folder / "blocks" / "0003" / "trace.jsonl").read_text().splitlines()) == 12
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.usefixtures("compiled")
def test_mcmc_with_collected_functions(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing cluster is found by its address in the environment."""
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    sampler = isles.MCMC(isles.PCN(), chains=4, burn_in=20, draws=30)
    scale = 2.0
    settings: dict[str, Any] = {
        "islands": 3,
        "islands_per_block": 1,
        "collect": {"sum": lambda t: scale * jnp.sum(t)},
    }
    run = lambda engine: isles.sample(runs.problem(), sampler, engine=engine, **settings)
    assert_same_bits(run("serial"), run("ray"))


def test_killed_actors_are_replaced(nodes: Cluster, oracle: isles.Posterior, traps: Traps, tmp_path: Path) -> None:
    for point, count in [("mutation", 2), ("under-way", 3), ("mutation", 9)]:
        traps.arm("worker", point, count)
    where = isles.Ray(address=nodes.address, retries=3)
    got = isles.sample(runs.problem(), runs.LONG, engine=where, folder=tmp_path / "run", **RUN)
    assert_same_bits(oracle, got)
    assert [kill.role for kill in traps.kills] == ["worker"] * 3


@pytest.mark.usefixtures("compiled")
def test_a_block_that_kills_its_actors_is_reported_when_the_others_are_done(
    nodes: Cluster, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    trap.touch()

    class Fatal(isles.SMC):
        def advance(self, problem: Any, block: Any, pause: Any = lambda: False) -> Any:
            if block.stage == 1 and 1 in block.islands and trap.exists():
                os._exit(7)
            return super().advance(problem, block, pause)

    sampler = Fatal(isles.MH(), particles=8, mutations=3, schedule=[0.1, 0.5, 1.0])
    where = isles.Ray(address=nodes.address, retries=1)
    run = lambda: isles.sample(
        runs.problem(), sampler, islands=3, islands_per_block=1, engine=where, folder=tmp_path / "run"
    )
    with pytest.raises(
        isles.DeadWorkerError, match=r"block 1 \(island 1\): its actor or node was lost .* 2 times"
    ):
        run()
    assert isles.merge(tmp_path / "run", sampler=sampler, allow_partial=True).missing == (1,)
    trap.unlink()
    assert run().missing == ()


class MistakeError(Exception):
    """A user's own."""


@pytest.mark.usefixtures("compiled")
def test_an_exception_arrives_with_its_type(nodes: Cluster) -> None:
    here = os.getpid()

    def log_likelihood(theta: Any) -> Any:
        if os.getpid() != here:
            raise MistakeError("cause, remedy")
        return -jnp.sum(theta**2)

    problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), log_likelihood)
    with pytest.raises(MistakeError, match="cause, remedy") as caught:
        isles.sample(problem, isles.SMC(isles.MH(), 8, 1), islands=2, engine=isles.Ray(address=nodes.address))
    note = "".join(caught.value.__notes__)
    assert "on a Ray worker, block 0 (islands 0 to 1)" in note and "in log_likelihood" in note


def test_a_work_that_cannot_be_made_again_arrives_as_its_error(nodes: Cluster) -> None:
    class Unready:
        def __reduce__(self) -> Any:
            return int, ("no number",)

    held = Unready()
    problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: (-jnp.sum(theta**2), held)[0])
    with pytest.raises(ValueError, match="no number"):
        isles.sample(problem, isles.SMC(isles.MH(), 8, 1), engine=isles.Ray(address=nodes.address))


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself is never asked: it would try for minutes."""
    import ray

    address = f"127.0.0.1:{closed_port()}"
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was asked"))
    for where in (address, f"ray://{address}"):
        with pytest.raises(ConnectionError, match=rf"no Ray cluster answers at {where} .*ray start --head"):
            isles.sample(runs.problem(), runs.LONG, engine=isles.Ray(address=where))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConnectionError, match="unset RAY_ADDRESS to have one started"):
        isles.sample(runs.problem(), runs.LONG, engine="ray")


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'isles\[ray\]'"):
        isles.sample(runs.problem(), runs.LONG, engine="ray")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpus": -1}, "cpus=-1 must be a number that is not negative"),
        ({"gpus": float("nan")}, "gpus=nan must be"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"workers": 0}, "workers=0 must be at least 1"),
        ({"retries": -1}, "retries=-1 must be at least 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        isles.Ray(**settings)


class Node:
    """What Ray says of its nodes."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self._nodes = [{"Alive": bool(each), "Resources": each} for each in resources]

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes


@pytest.mark.parametrize(
    ("where", "room"),
    [
        (isles.Ray(), 6),
        (isles.Ray(cpus=3), 1),
        (isles.Ray(cpus=5), 0),
        (isles.Ray(cpus=0.5), 12),
        (isles.Ray(gpus=1), 2),
        (isles.Ray(resources={"big": 1}), 1),
        (isles.Ray(resources={"other": 1}), 0),
        (isles.Ray(workers=2), 2),
    ],
)
def test_room_is_counted_by_node(where: isles.Ray, room: int) -> None:
    ray = Node({"CPU": 4, "GPU": 2}, {"CPU": 2, "big": 1.0}, {})
    assert where._room(ray) == room


@pytest.mark.usefixtures("compiled")
def test_resources_that_a_cluster_does_not_have_yet(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run says that it waits; here the wait is cut short."""
    where = isles.Ray(address=nodes.address, resources={"rare": 1})

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_ready", interrupt)
    with (
        pytest.warns(isles.IslesWarning, match="no node has what a block of .*rare.* asks for.*waits for a node"),
        pytest.raises(KeyboardInterrupt),
    ):
        isles.sample(runs.problem(), runs.LONG, engine=where)


OWN = """
import isles, runs
try:
    isles.sample(runs.problem(), runs.LONG, engine=isles.Ray(cpus=1000), islands=2)
except ValueError as error:
    print(error)
got = isles.sample(runs.problem(), runs.LONG, engine="ray", islands=8, islands_per_block=4, seed=3)
got.save({path!r})
import ray
print(ray.is_initialized())
"""


@pytest.mark.usefixtures("compiled")
def test_a_cluster_is_started_and_stopped_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "posterior"
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, out, errors = finish(drive(OWN.format(path=str(path))))
    assert code == 0, errors
    assert "no node has what a block of Ray(cpus=1000" in out and "ask for less" in out
    assert out.endswith("False\n"), "the cluster is stopped"
    serial = isles.sample(runs.problem(), runs.LONG, engine="serial", islands=8, islands_per_block=4, seed=3)
    assert_same_bits(serial, isles.load(path))


INTERRUPTED = """
import os, signal, isles, runs
signal.signal(signal.SIGINT, signal.default_int_handler)
sampler = runs.interrupting(os.getpid(), {trap!r})
try:
    isles.sample(runs.problem(), sampler, islands=4, islands_per_block=2, folder={folder!r}, engine={engine!r},
        checkpoint_seconds=1e9)
except KeyboardInterrupt as error:
    print(error)
"""


@pytest.mark.usefixtures("compiled")
def test_ctrl_c_stops_after_a_checkpoint(nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    trap, folder, whole = tmp_path / "trap", tmp_path / "run", tmp_path / "whole"
    script = lambda folder, engine: INTERRUPTED.format(trap=str(trap), folder=str(folder), engine=engine)
    trap.touch()
    code, out, errors = finish(drive(script(folder, "ray")))
    assert code == 0, errors
    # Ray may print, too
    assert f"stopped after a checkpoint; go on with isles.resume({str(folder)!r}, problem" in out
    assert BlockFolder(folder / "blocks" / "0000").status()["stage"] in (1, 2)
    trap.unlink()
    for place, name in ((folder, "ray"), (whole, "serial")):
        code, out, errors = finish(drive(script(place, name)))
        assert code == 0 and "stopped" not in out, errors
    assert_same_bits(*(isles.load(place / "posterior.safetensors") for place in (whole, folder)))
