"""SIGKILLs of drivers and workers at named points and at random, counted. See `trap_hook.py`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import isles

TESTS = Path(__file__).parent
WRITING = ("before-write", "mid-write", "after-fsync", "before-rename", "after-rename")
SAMPLING = ("mutation", "under-way")
MINUTES = 10  # a limit that only keeps a failure from hanging


class Kill(NamedTuple):
    """One line of the log."""

    how: str  # trap or random
    point: str
    role: str
    phase: str
    pid: int


@dataclass(frozen=True)
class Traps:
    """A folder from which processes learn where to die."""

    folder: Path

    def arm(self, role: str, point: str, count: int = 1) -> None:
        """The first process of that role that passes the point for the `count`-th time dies."""
        name = f"{role}.{point}.{count}.{time.monotonic_ns()}"
        (self.folder / "traps" / name).touch()

    @property
    def armed(self) -> list[str]:
        return sorted(os.listdir(self.folder / "traps"))

    def disarm(self) -> None:
        for name in self.armed:
            (self.folder / "traps" / name).unlink(missing_ok=True)

    @property
    def kills(self) -> list[Kill]:
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [Kill(*line.rsplit(" ", 4)[:4], int(line.rsplit(" ", 1)[1])) for line in lines]

    def note(self, kill: Kill) -> None:
        with open(self.folder / "log", "a") as file:
            file.write(" ".join(map(str, kill)) + "\n")

    def phases(self) -> dict[int, tuple[str, str]]:
        """Role and phase of all processes that run."""
        found = {}
        for path in (self.folder / "phases").iterdir():
            role, started, phase = [*path.read_text().split(), "", "", ""][:3]
            if phase and is_running(int(path.name), started):
                found[int(path.name)] = (role, phase)
        return found

    def last_phase(self, pid: int) -> str:
        return (self.folder / "phases" / str(pid)).read_text().split()[2]

    @contextmanager
    def gate(self, point: str) -> Iterator[None]:
        """Processes wait at the point."""
        path = self.folder / "gates" / point
        path.touch()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def kill(self, pid: int) -> bool:
        """Kill a process now; False if it was gone already. The log says what it did."""
        if pid not in self.phases():
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        wait_until(lambda: not is_running(pid))
        self.note(Kill("random", "random", "worker", self.last_phase(pid), pid))
        return True


@dataclass
class Tally:
    """Kills so far, and those that came too late: their run was over."""

    kills: list[Kill] = field(default_factory=list)
    late: int = 0

    @property
    def at_work(self) -> int:
        """Of processes that were sampling or writing."""
        return sum(kill.phase in ("sampling", "writing") for kill in self.kills)

    def __str__(self) -> str:
        points = Counter(f"{kill.role} {kill.point}" for kill in self.kills)
        phases = Counter(kill.phase for kill in self.kills)
        lines = [f"{len(self.kills)} kills, {self.at_work} while sampling or writing, {self.late} too late"]
        lines += [f"  {count:4} {name}" for name, count in sorted(points.items())]
        lines += ["by phase: " + ", ".join(f"{count} {name}" for name, count in phases.most_common())]
        return "\n".join(lines)


@pytest.fixture(scope="session")
def tally() -> Iterator[Tally]:
    """One count for all tests."""
    found = Tally()
    yield found
    print(f"\n{found}")


def set_traps(folder: Path) -> Traps:
    """A folder with the hook and no trap yet."""
    for name in ("traps", "fired", "phases", "gates"):
        (folder / name).mkdir(parents=True)
    shutil.copy(TESTS / "trap_hook.py", folder / "sitecustomize.py")
    return Traps(folder)


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Path) -> Traps:
    """Traps for the workers and drivers that a test starts, never for the process of the test."""
    found = set_traps(tmp_path / "hook")
    monkeypatch.syspath_prepend(str(found.folder))
    return found


@pytest.fixture(scope="session")
def compiled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def compiled(compiled_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes share what they compile, to save the time of many of them."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(compiled_folder))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    return compiled_folder


def drive(code: str, **variables: str) -> subprocess.Popen[str]:
    """A driver process with the tests, and the traps of this process, on its path."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)]), "ISLES_TEST_DRIVER": "1", **variables,
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    out, err = process.communicate(timeout=60 * MINUTES)
    return process.returncode, out, err


def is_running(pid: int, started: str | None = None) -> bool:
    """Whether a process is there and no zombie; with its start time, since a pid may be another's by now."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return facts[0] not in "ZX" and started in (None, facts[19])


def parent(pid: int) -> int:
    """Of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def wait_until(condition: Callable[[], Any]) -> Any:
    """Poll for a fact; the limit only keeps a failure from hanging."""
    deadline = time.monotonic() + 60 * MINUTES
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise TimeoutError


def assert_same_bits(one: isles.Posterior, two: isles.Posterior) -> None:
    """Every array of the two, the plan's and the trace's too."""
    for name, value in vars(one).items():
        other = getattr(two, name)
        if name == "plan" and value is not None:
            value, other = vars(value), vars(other)
        if name == "likelihood":  # a function, which a file may not hold
            continue
        assert value == other if name == "layout" else bits(value) == bits(other), name


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
