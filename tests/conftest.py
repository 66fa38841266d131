"""Fixtures and settings that all tests share."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

import isles
import targets
from clusters import Cluster, cluster
from halves import CHAINS, PILOT, Half, problem
from isles.samplers import pace
from kills import compiled, compiled_folder, tally, traps

__all__ = ["compiled", "compiled_folder", "tally", "traps"]

MOST_MAPPINGS = 20_000

# a shell that runs the tests in the background has their children ignore Ctrl-C, which some tests press
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def gaussian() -> targets.Conjugate:
    """The paper's tractable Gaussian, d = 16, m = 32."""
    return targets.conjugate()


@pytest.fixture(scope="session")
def small() -> targets.Conjugate:
    """A Gaussian on which few particles already have Var(log Z) < 1."""
    return targets.conjugate(dimension=4, rows=8, seed=1)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Cluster]:
    """A Ray cluster: one node that says it has three CPUs. Its tests are in the xdist group "ray", to share it."""
    with cluster(3) as found:
        yield found


@pytest.fixture(autouse=True)
def _first_piece_is_one_mutation() -> None:
    """Where a test cuts a stage depends on no test before it."""
    pace.pace_of.cache_clear()


@pytest.fixture(autouse=True)
def _room_for_programs() -> Iterator[None]:
    """Compiled programs hold memory mappings. Linux allows a process 65,530, beyond which XLA crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data at hand but the package's own, and an empty cache."""
    monkeypatch.delenv("ISLES_DATA", raising=False)
    monkeypatch.setenv("ISLES_CACHE", str(tmp_path))
    return tmp_path / "data"


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> Half:
    """SMC, stopped halfway."""
    return Half(tmp_path_factory.mktemp("smc"), PILOT.frozen(isles.sample(problem(), PILOT)))


@pytest.fixture(scope="session")
def half_chains(tmp_path_factory: pytest.TempPathFactory) -> Half:
    """MCMC, stopped halfway."""
    return Half(tmp_path_factory.mktemp("mcmc"), CHAINS)
