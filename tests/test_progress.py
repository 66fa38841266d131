"""How a run is shown: estimates against arithmetic, and real runs on a terminal, in a file, and interrupted."""

from __future__ import annotations

import dataclasses
import fcntl
import math
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isles
from isles.progress import drawing, estimates
from isles.progress.estimates import Course
from isles.progress.tally import Tally
from isles.samplers.block import Status
from kills import assert_same_bits, is_running, wait_until


def at(stage: int, tempering: float, share: float = 0.5, epochs: int = 0) -> Status:
    return Status(share, stage, tempering, math.nan, math.nan, epochs)


def course(*seen: tuple[float, Status], begun: float = 0.0) -> Course:
    result = Course(begun)
    for now, status in seen:
        result = estimates.follow(result, status, now)
    return result


# --- estimates ------------------------------------------------------------------------------------------------


def test_tempering_that_doubles_has_a_known_end() -> None:
    """0.01, 0.02, 0.04, one each 2 s: then 0.08, 0.16, 0.32, 0.64 and 1, five stages more."""
    path = course((1, at(0, 0.0)), (3, at(1, 0.01)), (5, at(2, 0.02)), (7, at(3, 0.04)))
    assert estimates.seconds_left(path, now=7) == pytest.approx(10)
    assert estimates.seconds_left(path, now=8.5) == pytest.approx(8.5), "part of the next stage has gone"
    assert estimates.seconds_left(path, now=100) == 0


def test_stages_that_nobody_reported_count() -> None:
    """Two stages in 4 s that took the tempering from 0.01 to 0.04 are like one in 2 s that doubled it."""
    path = course((3, at(1, 0.01)), (7, at(3, 0.04)), (8, at(3, 0.04)))
    assert estimates.seconds_left(path, now=8) == pytest.approx(9)


def test_the_newest_stage_weighs_three_tenths() -> None:
    """Advances log 2, then log 8: 0.7 log 2 + 0.3 log 8 = 1.6 log 2; paces 2 s, then 4 s: 2.6 s."""
    path = course((0, at(1, 1 / 1024)), (2, at(2, 2 / 1024)), (6, at(3, 16 / 1024)))
    assert path.advance == pytest.approx(1.6 * math.log(2))
    assert path.pace == pytest.approx(2.6)
    assert estimates.seconds_left(path, now=6) == pytest.approx(4 * 2.6)  # 6 / 1.6 stages, rounded up


def test_nothing_is_said_before_anything_is_known() -> None:
    assert estimates.seconds_left(course(), now=9) is None
    assert estimates.seconds_left(course((1, at(0, 0.0))), now=9) is None
    assert estimates.seconds_left(course((1, at(0, 0.0)), (2, at(1, 0.01))), now=9) is None, "no advance yet"
    assert estimates.run_seconds_left([course((1, at(0, 0.0)))], 3, [], now=9) is None
    assert estimates.epochs_per_second(course((1, at(0, 0.0)))) is None
    assert drawing.describe_end(None) == "estimating the end"


def test_chains_know_their_length_and_resumed_ones_their_pace() -> None:
    """From 20 % to 40 % in 2 s: 6 s more."""
    path = course((1, at(20, 1.0, share=0.2, epochs=100)), (3, at(40, 1.0, share=0.4, epochs=500)))
    assert estimates.seconds_left(path, now=3) == pytest.approx(6)
    assert estimates.seconds_left(path, now=4) == pytest.approx(5)
    assert estimates.epochs_per_second(path) == pytest.approx(200)


def test_blocks_that_wait_take_turns() -> None:
    ends = [3.0, 5.0]
    assert [estimates.last_end(ends, waiting, 4.0) for waiting in range(6)] == [5, 7, 9, 11, 13, 15]
    assert estimates.last_end([0.0, 100.0], 10, 1.0) == 100, "one long block does not take turns"
    rng = np.random.default_rng(0)
    for _ in range(50):
        ends = list(rng.uniform(0, 9, size=rng.integers(1, 6)))
        waiting, duration = int(rng.integers(0, 40)), float(rng.uniform(0.5, 4))
        greedy = ends.copy()
        for _ in range(waiting):
            greedy[int(np.argmin(greedy))] += duration
        assert estimates.last_end(ends, waiting, duration) == pytest.approx(max(greedy))


def test_finished_blocks_tell_how_long_others_take() -> None:
    """Two under way since 0, one of which says 4 s more; finished ones took 10 s, so the other has 3 s to go."""
    known, unknown = course((0, at(0, 1.0, 0.0)), (6, at(6, 1.0, 0.6))), course()
    assert estimates.run_seconds_left([known, unknown], 0, [9, 11], now=6) == pytest.approx(4)
    assert estimates.run_seconds_left([known, unknown], 1, [9, 11], now=6) == pytest.approx(14)  # 4 + 10
    assert estimates.run_seconds_left([known, unknown], 0, [], now=6) == pytest.approx(4)
    assert estimates.run_seconds_left([], 0, [], now=6) == 0


def test_the_end_settles() -> None:
    """With 200 s left, 10 s take a new estimate in by 1 − 1/e."""
    assert estimates.settled(None, 0, 50) == 50
    assert estimates.settled((0, 100), 10, 210) == pytest.approx(100 + 110 * (1 - math.exp(-1)))


def test_a_tally_counts_epochs_once() -> None:
    """Those of earlier runs, of finished blocks, and of blocks under way; not those that a dead worker had."""
    tally = Tally(blocks=4, finished=1, epochs=1000)
    for number in (1, 2):
        tally.begin(number)
    tally.update(1, at(3, 0.1, epochs=500))
    tally.update(2, at(3, 0.1, epochs=70))
    assert tally.overview()[:3] == (1, 4, 1570)
    tally.finish(1, 600)
    tally.leave(2)
    assert tally.overview()[:3] == (2, 4, 1600)
    tally.begin(2)
    tally.update(2, at(1, 0.01, epochs=40))
    assert tally.overview()[:3] == (2, 4, 1640)


# --- real runs ------------------------------------------------------------------------------------------------

MODULE = """
import numpy as np, isles
def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, 64))
    y = x @ np.ones(64) + 40 * rng.normal(size=10_000)
    return isles.regression(lambda theta, x: x @ theta, isles.Gaussian(like=np.zeros(64)), x, y, noise_std=40.0)
sampler = isles.SMC(isles.HMC(leapfrogs=4, step_size=0.02), particles=32, mutations=3,
                    schedule=list(np.geomspace(0.001, 1, 16)))
settings = dict(islands=3, islands_per_block=1)
"""
SCRIPT = """
import sys, warnings, isles, {module}
isles.sample("{module}:problem", {module}.sampler, **{module}.settings, {arguments})
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: Any) -> None:
    """A module with a problem that takes a few seconds, in a folder of its own."""
    (tmp_path / "slow_problem.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.delenv("NO_COLOR", raising=False)


def command(arguments: str) -> list[str]:
    script = SCRIPT.format(module="slow_problem", arguments=arguments)
    return [sys.executable, "-W", "ignore::isles.IslesWarning", "-c", script]


def on_a_terminal(arguments: str) -> tuple[str, str]:
    """What a run writes to a terminal of 160 columns, and what to stdout, which leads elsewhere."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 160, 0, 0))
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160"}
    child = subprocess.Popen(command(arguments), stdout=subprocess.PIPE, stderr=slave, env=environment, text=True)
    os.close(slave)
    pieces = []
    while piece := read_or_end(master):
        pieces.append(piece)
    os.close(master)
    printed, _ = child.communicate(timeout=120)
    text = b"".join(pieces).decode()
    assert child.returncode == 0, text
    return text, printed


def read_or_end(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # a terminal's other side is closed
        return b""


def test_a_terminal_shows_blocks_and_the_whole() -> None:
    seen = 'lambda theta: print("traced") or warnings.warn("look at this") or theta'
    text, printed = on_a_terminal(f'collect={{"seen": {seen}}}')
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    heads = re.compile(r"block +stage +tempering +ESS +acceptance +epochs/s +share")
    assert heads.search(plain)
    rows = re.findall(
        r"^ +([012]) +(\d+) +(0\.\d+) +(\d+\.\d) +(0\.\d+|1\.00) +[\d,]+ +(\d+)% +[━╸╺]+", plain, re.M
    )
    assert rows, plain
    schedule = np.geomspace(0.001, 1, 16)
    for _, stage, tempering, *_ in rows:
        assert float(tempering) == pytest.approx(schedule[int(stage) - 1], rel=0.06)
    assert re.search(r"about \d:\d\d left \(until \d\d:\d\d\)|estimating", plain)
    assert re.search(r"^<string>:\d+: UserWarning: look at this\s*$", plain.replace("\r", "\n"), re.M), plain
    last = plain.strip().splitlines()[-1]
    total = 3 * 32 * (1 + 16 * 3 * 4)
    assert re.fullmatch(rf"3 of 3 blocks, {total:,} epochs, [\d,]+ a second, \d:\d\d elapsed", last)
    assert "\x1b[?25l" in text and text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is back"
    assert "traced" in printed and "traced" not in plain, "stdout leads where it did"


def test_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    done = subprocess.run(command("progress=True"), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    total = 3 * 32 * (1 + 16 * 3 * 4)
    time = r"\d\d:\d\d:\d\d "
    assert all(re.match(rf"{time}\d of 3 blocks, ", line) for line in lines), done.stderr
    assert re.fullmatch(rf"{time}3 of 3 blocks, {total:,} epochs, [\d,]+ a second, .* elapsed", lines[-1])


def test_silence_by_default_and_on_demand(capfd: Any) -> None:
    problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: -(theta**2).sum())
    for shown in (None, False):
        isles.sample(problem, isles.SMC(isles.MH(), 8, 1, schedule=[1.0]), progress=shown)
        assert capfd.readouterr() == ("", "")
    assert not [thread for thread in threading.enumerate() if thread.name == "isles progress"]


def test_a_closed_stderr_does_not_stop_a_run() -> None:
    small = "schedule=[1.0], particles=4, mutations=1)"
    script = f"""import dataclasses, isles, slow_problem
sampler = dataclasses.replace(slow_problem.sampler, {small}
isles.sample("slow_problem:problem", sampler, progress=True).save("result")"""
    child = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], stderr=subprocess.PIPE)
    child.stderr.close()
    assert child.wait(timeout=300) == 0
    assert isles.load("result").positions.shape == (1, 4, 64)


class Writer:
    """What programs put in place of stderr, to send it to a log."""

    def write(self, text: str) -> None:
        """Nowhere."""

    def flush(self) -> None:
        """Nothing."""


def test_a_stderr_that_only_writes_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = isles.Problem(isles.Gaussian(like=np.zeros(1)), lambda theta: -(theta**2).sum())
    monkeypatch.setattr(sys, "stderr", Writer())
    isles.sample(problem, isles.SMC(particles=4, mutations=1, schedule=[1.0]))
    closed = open(os.devnull, "w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    isles.sample(problem, isles.SMC(particles=4, mutations=1, schedule=[1.0]))


# --- Ctrl-C ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_interrupted_once_a_run_says_how_to_resume_and_loses_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(
        command('folder="run", workers=2, progress=True'), stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    wait_until(lambda: any(tmp_path.glob("run/blocks/*/state-*.json")) or child.poll() is not None)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=120)
    assert child.returncode == -signal.SIGINT, said
    assert re.search(
        r"^\d\d:\d\d:\d\d stopping after a checkpoint; press Ctrl-C again to stop at once$", said, re.M
    )
    assert "KeyboardInterrupt: stopped after a checkpoint; go on with isles.resume('run')" in said
    assert not (tmp_path / "run" / "posterior.safetensors").exists()
    assert any(tmp_path.glob("run/blocks/*/state-*.json"))
    import slow_problem  # type: ignore[import-not-found]

    resumed = isles.resume("run", engine="serial")
    whole = isles.sample(slow_problem.problem(), slow_problem.sampler, engine="serial", **slow_problem.settings)
    assert_same_bits(dataclasses.replace(resumed, layout=whole.layout), whole)


ENDLESS = """
import os, jax, jax.numpy as jnp, numpy as np, isles
class Endless(isles.SMC):
    def advance(self, problem, block, pause):
        open(f"{os.getpid()}.pid", "w").close()
        jax.lax.while_loop(lambda x: x >= 0, lambda x: x + 1, jnp.zeros(())).block_until_ready()
problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: -jnp.sum(theta ** 2))
isles.sample(problem, Endless(isles.MH(), 4, 1), folder="run", workers=1, progress=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
def test_interrupted_twice_a_run_ends_at_once(tmp_path: Path) -> None:
    """The worker never comes to a checkpoint."""
    (tmp_path / "script.py").write_text(ENDLESS)
    child = subprocess.Popen([sys.executable, "script.py"], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    pids = lambda: [int(path.stem) for path in tmp_path.glob("*.pid")]
    try:
        wait_until(lambda: bool(pids()) or child.poll() is not None)
        child.send_signal(signal.SIGINT)
        said = ""
        while "stopping after a checkpoint" not in said:
            line = child.stderr.readline()
            assert line, said
            said += line
        child.send_signal(signal.SIGINT)
        _, rest = child.communicate(timeout=120)
        assert child.returncode == -signal.SIGINT
        call = "isles.resume('run', problem, sampler=...)"
        assert f"KeyboardInterrupt: stopped at once; from the last checkpoints, go on with {call}" in rest
        wait_until(lambda: not any(map(is_running, pids())))
    finally:
        for pid in [child.pid, *pids()]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        child.wait()
