"""Engines: the same bits whoever runs a block, errors and deaths of workers, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
import targets
from kills import assert_same_bits, is_running, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::isles.IslesWarning")
PRIOR = isles.Gaussian(like=np.zeros(2))
QUICK = isles.SMC(isles.MH(), particles=8, mutations=2, schedule=[0.5, 1.0])


def in_child_only(action: Callable[[], None]) -> isles.Problem:
    """A problem whose likelihood does something while a worker traces it."""
    parent = os.getpid()

    def log_likelihood(theta: Any) -> Any:
        if os.getpid() != parent:
            action()
        return -jnp.sum((theta - 1) ** 2)

    return isles.Problem(PRIOR, log_likelihood)


@pytest.fixture
def compile_once(tmp_path: Path, monkeypatch: Any) -> None:
    """Workers share what they compile, to save the time of many of them."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.mark.usefixtures("compile_once")
def test_smc_has_the_same_bits_with_any_number_of_workers(small: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=2), particles=16, mutations=2)
    run = lambda **engine: isles.sample(small.problem, sampler, islands=6, islands_per_block=2, seed=3, **engine)
    oracle = run(engine="serial")
    assert oracle.positions.shape == (6, 16, 4)
    for workers in (1, 2, 3):
        assert_same_bits(oracle, run(engine="local", workers=workers))
    here = run()  # in another number of threads, so up to rounding
    np.testing.assert_allclose(here.trace["tempering"][0], oracle.trace["tempering"][0], rtol=1e-3)


def test_ais_has_the_same_bits_in_two_threads(small: targets.Conjugate) -> None:
    sampler = isles.AIS(isles.MALA(), particles=16, schedule=[0.1, 1.0])
    settings: dict[str, Any] = {"islands": 3, "islands_per_block": 1, "threads": 2, "collect": {"size": jnp.sum}}
    oracle = isles.sample(small.problem, sampler, engine="serial", **settings)
    assert oracle.island_sums["size"].shape == (3,)
    assert_same_bits(oracle, isles.sample(small.problem, sampler, engine="local", workers=2, **settings))


def test_mcmc_has_the_same_bits_when_some_blocks_start_dead() -> None:
    """Blocks without a live first draw wait for a sign of life from another, under every engine."""
    problem = isles.Problem(PRIOR, lambda theta: jnp.where(theta[0] > 0.3, theta[1], -jnp.inf))
    sampler = isles.MCMC(isles.MH(), chains=1, burn_in=5, draws=3)
    run = lambda **engine: isles.sample(problem, sampler, islands=6, islands_per_block=1, seed=4, **engine)
    oracle = run(engine="serial")
    assert oracle.dead[0] == 1 and 0 < oracle.dead.sum() < 6
    assert_same_bits(oracle, run(engine="local", workers=2))


def test_all_blocks_dead_is_the_same_error() -> None:
    problem = isles.Problem(PRIOR, lambda theta: jnp.sum(theta) * jnp.nan)
    errors = []
    for engine in (None, "local"):
        with pytest.raises(isles.DeadIslandsError, match="island 0") as caught:
            isles.sample(problem, isles.MCMC(), islands=3, islands_per_block=1, engine=engine)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, isles
class Mistake(Exception): pass
@jax.custom_vjp
def same(x): return x
same.defvjp(lambda x: (x, None), lambda _, g: (g,))
problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: -jnp.sum(same(theta) ** 2))
run = dict(islands=2, islands_per_block=1, engine="local", workers=1)
print(isles.sample(problem, isles.SMC(isles.MALA(), 8, 1, schedule=[1.0]), **run).positions.shape)
class Broken(isles.SMC):
    def begin(self, *_): raise Mistake("mine")
try: isles.sample(problem, Broken(), **run)
except Mistake as error: print(error)
"""


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(2, 8, 2)\nmine\n"


def test_float64_holds_in_workers() -> None:
    with jax.enable_x64(True):
        problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: -jnp.sum(theta**2))
        posterior = isles.sample(problem, QUICK, engine="serial")
    assert posterior.positions.dtype == np.float64
    assert (posterior.positions != posterior.positions.astype(np.float32)).any()


def test_threads_arrive_and_users_code_cannot_disturb_the_pipes(capfd: Any) -> None:
    def act() -> None:
        names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        assert [os.environ[name] for name in names] == ["3"] * 4
        print("printed " * 50_000)
        os.write(1, b"written\n")
        assert sys.stdin.read() == ""

    isles.sample(in_child_only(act), QUICK, engine="serial", threads=3)
    out, err = capfd.readouterr()
    assert out == ""
    assert "printed" in err and "written" in err


# --- errors and deaths ----------------------------------------------------------------------------------------


class PlainError(Exception):
    """Travels by pickle."""


class StubbornError(Exception):
    """Does not: it cannot be made of its one argument."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}, {remedy}")


def plain() -> None:
    raise PlainError("cause, remedy")


def stubborn() -> None:
    raise StubbornError("cause", "remedy")


@pytest.mark.parametrize(("action", "kind"), [(plain, PlainError), (stubborn, RuntimeError)])
def test_a_workers_exception_is_raised_here(action: Callable[[], None], kind: type[Exception]) -> None:
    with pytest.raises(kind, match="cause, remedy") as caught:
        isles.sample(in_child_only(action), QUICK, islands=2, engine="local")
    note = "".join(caught.value.__notes__)
    assert "in a worker process, block 0 (islands 0 to 1)" in note
    assert f"in {action.__name__}\n" in note, "the worker's traceback shows the line"


class Fragile(isles.SMC):
    """SMC whose process is killed in the middle of island 1's block, where a file lets it."""

    def advance(self, problem: isles.Problem, block: Any, pause: Any) -> Any:
        trap = Path(os.environ["ISLES_TEST_TRAP"])
        if block.stage == 1 and block.islands[0] == 1 and trap.exists():
            trap.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().advance(problem, block, pause)


@pytest.mark.usefixtures("compile_once")
def test_the_block_of_a_killed_worker_is_run_anew(tmp_path: Path, monkeypatch: Any) -> None:
    trap = tmp_path / "trap"
    monkeypatch.setenv("ISLES_TEST_TRAP", str(trap))
    problem = isles.Problem(PRIOR, lambda theta: -jnp.sum((theta - 1) ** 2))
    sampler = Fragile(QUICK.kernel, particles=8, mutations=2, schedule=[0.5, 1.0])
    run = lambda **engine: isles.sample(problem, sampler, islands=3, islands_per_block=1, **engine)
    oracle = run(engine="serial")
    trap.touch()
    assert_same_bits(oracle, run(engine="local", workers=2))
    assert not trap.exists(), "nobody was killed"
    trap.touch()
    with pytest.raises(
        isles.DeadWorkerError, match=r"block 1 \(island 1\): its worker died by signal 9 \(Killed\)"
    ):
        run(engine="serial", retries=0)


def test_a_block_that_always_ends_its_worker_is_an_error() -> None:
    problem = in_child_only(lambda: os._exit(3))
    with pytest.raises(isles.DeadWorkerError, match=r"exit code 3 \(see what it wrote to stderr.*2 times in all"):
        isles.sample(problem, QUICK, engine="local", retries=1)


def test_a_problem_that_cannot_travel_is_a_clear_error() -> None:
    lock = threading.Lock()

    def log_likelihood(theta: Any) -> Any:
        with lock:
            return -jnp.sum(theta**2)

    with pytest.raises(TypeError, match="keep open files, locks and the like out of them"):
        isles.sample(isles.Problem(PRIOR, log_likelihood), QUICK, engine="local")


def test_a_pytree_that_workers_do_not_know_is_a_clear_error() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Pair:  # pickled by value, like the classes of a script: registered here, but not in a worker
        a: Any
        b: Any

    problem = isles.Problem(isles.Gaussian(like=Pair(np.zeros(1), np.zeros(1))), lambda pair: -jnp.sum(pair.a**2))
    with pytest.raises(Exception, match="Unknown custom type") as caught:
        isles.sample(problem, QUICK, engine="serial")
    assert (
        "move the classes they use, pytrees above all, from the script into a module" in caught.value.__notes__[-1]
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "cloud"}, "engine='cloud' must be one of 'serial', 'local'"),
        ({"workers": 2}, 'workers=2 is for worker processes; add engine="local"'),
        ({"threads": 2}, 'add engine="local"'),
        ({"engine": "serial", "workers": 2}, "workers=2 needs engine=\"local\", got engine='serial'"),
        ({"engine": "local", "workers": 0}, "workers=0 must be at least 1"),
        ({"engine": "local", "threads": 0.5}, "threads=0.5 must be a whole number"),
        ({"engine": "local", "retries": -1}, "retries=-1 must be at least 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    problem = isles.Problem(PRIOR, lambda theta: -jnp.sum(theta**2))
    with pytest.raises((ValueError, TypeError), match=message):
        isles.sample(problem, QUICK, **settings)


# --- nothing is left behind -----------------------------------------------------------------------------------

ENDLESS = """
import os, signal, jax, jax.numpy as jnp, numpy as np, isles
signal.signal(signal.SIGINT, signal.default_int_handler)
class Endless(isles.SMC):
    def advance(self, problem, block, pause):
        open(f"{os.getpid()}.pid", "w").close()
        jax.lax.while_loop(lambda x: x >= 0, lambda x: x + 1, jnp.zeros(())).block_until_ready()
problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: -jnp.sum(theta ** 2))
isles.sample(problem, Endless(isles.MH(), 4, 1), islands=2, islands_per_block=1, engine="local", workers=2)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_run(how: signal.Signals, tmp_path: Path) -> None:
    """Both workers are inside XLA when the process that started them is interrupted, or killed."""
    (tmp_path / "script.py").write_text(ENDLESS)
    parent = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    pids = lambda: [int(path.stem) for path in tmp_path.glob("*.pid")]
    try:
        wait_until(lambda: len(pids()) == 2 or parent.poll() is not None)
        assert all(map(is_running, pids())) and len(pids()) == 2
        parent.send_signal(how)
        assert parent.wait(timeout=120) == -how
        wait_until(lambda: not any(map(is_running, pids())))
        errors = parent.stderr.read()
        assert errors.count("Traceback") == (1 if how == signal.SIGINT else 0), errors
    finally:
        parent.stderr.close()
        for pid in [parent.pid, *pids()]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        parent.wait()
