"""Promises about cost that need no clock: memory, precision, compilation, chunk sizes, several devices."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
from isles import cache, chunks, keys, lanes, preparing
from isles.models import CNN, MLP
from isles.samplers import mutation
from isles.samplers.block import Output

# ---- memory: real sizes with made-up features, in a process of its own ----

MEMORY = """
import re
import numpy as np
import isles
from isles.models import CNN, MLP

rng = np.random.default_rng(0)
network = {network}
x = rng.standard_normal({shape}, np.float32)
y = rng.integers(0, {classes}, len(x))
problem = isles.classification(network, isles.Gaussian(like=network.shapes(), std=0.01), x, y)
sampler = isles.SMC(isles.HMC(leapfrogs=1), particles={particles}, mutations=1, schedule=[1.0])
posterior = isles.sample(problem, sampler)
assert posterior.epochs.parallel == 2
assert np.isfinite(posterior.log_evidence)
# not getrusage, whose peak includes that of the process that started this one
print(int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 2**20)
"""


def child(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to tell the peak of memory")
@pytest.mark.parametrize(
    ("network", "shape", "classes", "particles", "gib"),
    [
        ("CNN()", (1000, 28, 28), 10, 32, 1),
        ("MLP(768, (128,), 2)", (25_000, 768), 2, 32, 2),
        ("MLP(2048, (128,), 10)", (50_000, 2048), 10, 8, 3),  # `make bench` measures 32 particles, which take long
    ],
    ids=["mnist", "imdb", "cifar"],
)
def test_memory(network: str, shape: tuple[int, ...], classes: int, particles: int, gib: float) -> None:
    peak = float(child(MEMORY.format(network=network, shape=shape, classes=classes, particles=particles)))
    assert 0.1 < peak < gib


# ---- precision ----


def test_energy_differences_agree_with_float64() -> None:
    """Likelihoods of 17,000 nat and prior and kinetic terms of 50,000: their change must be good to 1e-3 nat."""
    rng = np.random.default_rng(0)
    network = MLP(768, (128,), 2)
    x = rng.standard_normal((25_000, 768)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (x[:, 0] + 0.02 * rng.standard_normal(len(x)) > 0).astype(int)
    problem = isles.classification(network, isles.Gaussian(like=network.shapes(), std=0.1), x, y)
    prior = problem.prior
    step, rows = np.float32(0.002), 4
    start, kick = jax.random.split(jax.random.key(3), (2, rows))
    positions = jax.vmap(prior.draw)(start)
    momenta = jax.vmap(lambda key: jax.random.normal(key, (problem.dimension,)))(kick)

    @jax.jit
    def trajectory(problem: isles.Problem, position: jax.Array, momentum: jax.Array) -> Any:
        first = state = problem.evaluate(position, gradient=True)
        q = momentum
        for _ in range(3):
            q = q + 0.5 * step * (prior.gradient(state.position) + state.gradient)
            state = problem.evaluate(state.position + step * q, gradient=True)
            q = q + 0.5 * step * (prior.gradient(state.position) + state.gradient)
        kinetic = 0.5 * jnp.sum((q - momentum) * (q + momentum))
        return state.position, q, problem.log_ratio(state, first, jnp.float32(1)) - kinetic

    ends, momenta_end, change = jax.vmap(lambda p, q: trajectory(problem, p, q))(positions, momenta)

    def energy(position: Any, momentum: Any) -> float:  # in NumPy, all in float64
        p = network_parameters(np.asarray(position, np.float64))
        hidden = np.maximum(x.astype(np.float64) @ p["w1"].T + p["b1"], 0)
        logits = hidden @ p["w2"].T + p["b2"]
        log_likelihood = (logits[np.arange(len(y)), y] - np.logaddexp(logits[:, 0], logits[:, 1])).sum()
        square = lambda v: float(np.square(np.asarray(v, np.float64)).sum())
        return float(
            log_likelihood - 0.5 * square(position) / np.float64(np.float32(0.1)) ** 2 - 0.5 * square(momentum)
        )

    network_parameters = problem.layout.unravel_numpy
    for row in range(rows):
        truth = energy(ends[row], momenta_end[row]) - energy(positions[row], momenta[row])
        assert abs(truth) > 0.01  # a change worth the name
        assert abs(float(change[row]) - truth) < 1e-3


# ---- compilation ----

COUNT = """
import jax, numpy as np
events = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *a, **k: events.append(name))
jax.monitoring.register_event_listener(lambda name, **k: events.append(name))
import isles
prior = isles.Gaussian(like=np.zeros(3))
problem = isles.Problem(prior, lambda theta: -(theta**2).sum())
isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=2), particles=16, mutations=2))
compiled = sum("backend_compile" in name for name in events)
print(compiled, sum("cache_hits" in name for name in events), sum("cache_misses" in name for name in events))
"""


def test_the_second_run_of_a_program_compiles_nothing(tmp_path: Path) -> None:
    environment = {"ISLES_CACHE": str(tmp_path)}
    first = child(COUNT, **environment).split()
    second = child(COUNT, **environment).split()
    assert int(first[1]) == 0 < int(first[2])
    assert int(second[1]) == int(first[2]) and int(second[2]) == 0
    assert list(tmp_path.glob("programs/*/*"))


def test_a_cache_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    child(COUNT, ISLES_CACHE=str(tmp_path / "isles"), JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert not (tmp_path / "isles").exists()
    child(COUNT, ISLES_CACHE=str(tmp_path / "isles"), JAX_ENABLE_COMPILATION_CACHE="false")
    assert not (tmp_path / "isles").exists()


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert child(COUNT, ISLES_CACHE=str(tmp_path / "file"))


def test_old_programs_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", 1000)
    for age in range(5):
        (tmp_path / f"{age}").write_bytes(bytes(300))
        os.utime(tmp_path / f"{age}", (1000 - age, 1000 - age))
    cache._prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0"]
    cache._prune(tmp_path)
    assert (tmp_path / "0").exists()


# ---- chunks ----


def test_chunk_sizes_follow_from_shapes() -> None:
    def rows(network: Any, apply: Any, shape: tuple[int, ...]) -> int:
        x, y = np.zeros(shape), np.arange(shape[0]) % 2
        return isles.classification(apply, isles.Gaussian(like=network.shapes()), x, y).chunk_rows

    mlp, cnn = MLP(768, (128,), 2), CNN()
    assert rows(mlp, mlp.apply, (5000, 768)) == rows(mlp, mlp.plain, (9000, 768))
    assert 250 <= rows(mlp, mlp.apply, (5000, 768)) <= 1000
    assert 16 <= rows(cnn, cnn.apply, (500, 28, 28)) <= 100
    assert rows(cnn, cnn.plain, (500, 28, 28)) <= 20  # XLA's own convolution unfolds images
    assert rows(mlp, mlp.apply, (20, 768)) == 20


def test_tune_measures_and_returns_a_usable_size() -> None:
    network = MLP(4, (8,), 2)
    x = np.random.default_rng(0).normal(size=(500, 4))
    problem = isles.classification(network, isles.Gaussian(like=network.shapes()), x, x[:, 0] > 0, chunk_rows=40)
    sizes = chunks.candidates(problem, 8)
    assert 40 in sizes and min(sizes) == 4 and max(sizes) == 256
    assert isles.tune(problem, particles=8, rounds=1) in sizes
    seconds = chunks.measure(problem, [1, 500], particles=8, rounds=2)
    assert seconds[1] > seconds[500]  # row by row cannot be as fast: 500 trips of a loop against one
    assert isles.tune(isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: theta.sum())) == 0
    with pytest.raises(ValueError, match="particles=0"):
        isles.tune(problem, particles=0)
    with pytest.raises(TypeError, match="must be an isles"):
        isles.tune("mnist")


def test_tune_measures_what_runs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data of a CNN are made ready once a program, and then evaluated several times."""
    made, network = [], CNN(image=(5, 5, 1), channels=2, outputs=2)
    whole = preparing.ready
    monkeypatch.setattr(preparing, "ready", lambda *arguments: made.append(whole(*arguments)) or made[-1])
    x = np.random.default_rng(0).normal(size=(4, 5, 5))
    problem = isles.classification(network, isles.Gaussian(like=network.shapes()), x, np.arange(4) % 2)
    assert isles.tune(problem, particles=2, rounds=1) in (1, 2, 4)
    assert made and None not in made


# ---- several devices ----

DEVICES = """
import sys
import jax
import numpy as np
import isles
from isles import keys
from isles.definition import define
from isles.models import CNN, MLP
from isles.samplers.block import Output

rng = np.random.default_rng(0)
network = MLP(5, (6,), 3)
x, y = rng.normal(size=(101, 5)), rng.integers(0, 3, 101)  # 101 rows leave some over
problem = isles.classification(network, isles.Gaussian(like=network.shapes()), x, y, chunk_rows=16)
free = isles.Problem(isles.Gaussian(like=np.zeros(3)), lambda theta: -((theta - 1) ** 2).sum())
hmc = isles.HMC(leapfrogs=3, step_size=0.1)
smc = isles.SMC(hmc, particles=8, mutations=2, schedule=[0.1, 1.0])
ais = isles.AIS(isles.PCN(step_size=0.3), particles=8, schedule=[0.2, 1.0])
mcmc = isles.MCMC(hmc, chains=8, burn_in=4, draws=3)
flat = lambda posterior: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(posterior.draws)])
for target, sampler, shapes in [
    (problem, smc, [(1, 2), (2, 2), (4, 1)]), (problem, ais, [(2, 2)]), (problem, mcmc, [(2, 2)]),
    (free, smc, [(4, 1)]),
]:
    alone = isles.sample(target, sampler, islands=2, seed=1, progress=False)
    for shape in shapes:
        together = isles.sample(target, sampler, islands=2, seed=1, mesh=isles.mesh(*shape), progress=False)
        np.testing.assert_allclose(flat(alone), flat(together), rtol=0, atol=1e-3)
        if alone.log_evidence is not None:
            assert abs(alone.log_evidence - together.log_evidence) < 1e-3
        assert alone.epochs == together.epochs

prior, labels = isles.Gaussian(like=CNN().shapes()), np.arange(500) % 10
images = isles.classification(CNN(), prior, np.zeros((500, 28, 28)), labels)
wide = isles.SMC(hmc, particles=128)
defined = define(
    images, wide, None, islands=1, seed=0, islands_per_block=None, chunk_rows=None, output=Output({}, "all"),
    mesh=isles.mesh(4, 1),
)
assert defined.problem.chunk_rows == images.for_particles(32).chunk_rows > images.for_particles(128).chunk_rows

mesh = isles.mesh(2, 2)
placed = problem.on(mesh)
head, tail = placed.data
assert head[0].sharding.shard_shape(head[0].shape) == (50, 5) and tail[0].shape == (1, 5)
block = smc.begin(placed, keys.root(0), np.arange(2), Output({}, "all"))
block = smc.advance(placed, block)
position = block.states.position
assert position.sharding.shard_shape(position.shape) == (8, placed.dimension), position.sharding

def refused(message, function):
    try:
        function()
    except (ValueError, TypeError) as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)

refused("needs 6 devices", lambda: isles.mesh(3, 2))
refused("cannot be split evenly over 3", lambda: isles.sample(problem, smc, mesh=isles.mesh(3, 1)))
refused("must be made by isles.mesh", lambda: isles.sample(problem, smc, mesh=2))
refused("cannot share 0 rows", lambda: isles.sample(free, smc, mesh=isles.mesh(1, 2)))
refused("leave one out", lambda: isles.sample(problem, smc, mesh=isles.mesh(2, 1), engine="local"))
print("done")
"""


def test_several_devices_give_the_same_within_rounding() -> None:
    assert child(DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=4").strip() == "done"


def test_advance_leaves_its_block_as_it_was() -> None:
    """Mutations overwrite buffers in place, but only copies of their own."""
    problem = isles.Problem(isles.Gaussian(like=np.zeros(3)), lambda theta: -((theta - 1) ** 2).sum())
    root, output = keys.root(0), Output({}, "all")
    for sampler in [
        isles.SMC(isles.HMC(leapfrogs=2), particles=8, mutations=3),
        isles.AIS(isles.HMC(leapfrogs=2), particles=8, schedule=[0.5, 1.0]),
        isles.MCMC(isles.HMC(leapfrogs=2), chains=8, burn_in=4, draws=3),
    ]:
        block = sampler.begin(problem, root, np.arange(2), output)
        states = lambda block: np.asarray(
            block.group.states.position if hasattr(block, "group") else block.states.position
        )
        before = states(block).copy()
        once, again = sampler.advance(problem, block), sampler.advance(problem, block)
        np.testing.assert_array_equal(states(block), before)
        np.testing.assert_array_equal(states(once), states(again))
        assert (states(once) != before).any()


def test_particles_side_by_side_in_memory_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What XLA is asked for is another order of the same arrays."""
    problem = isles.Problem(isles.Gaussian(like=np.zeros(5)), lambda theta: -((theta - 1) ** 2).sum())
    sampler = isles.SMC(isles.HMC(leapfrogs=3, step_size=0.2), 64, mutations=2, schedule=[0.1, 1.0])
    asked = []
    ask = lanes.with_layout_constraint
    monkeypatch.setattr(
        lanes, "with_layout_constraint", lambda rows, layout: asked.append(layout) or ask(rows, layout)
    )
    together = isles.sample(problem, sampler, islands=3, seed=1)
    assert asked
    asked.clear()
    monkeypatch.setattr(mutation, "has_short_sums", lambda problem: False)
    jax.clear_caches()
    apart = isles.sample(problem, sampler, islands=3, seed=1)
    assert not asked
    np.testing.assert_allclose(together.draws, apart.draws, rtol=0, atol=1e-4)
    jax.clear_caches()


def test_a_function_of_particles_side_by_side_can_be_differentiated() -> None:
    """A user's likelihood or kernel may hold a prior of isles."""
    prior = isles.Gaussian(like=np.zeros(3), std=2.0)
    problem = isles.Problem(isles.Gaussian(like=np.zeros(3)), lambda theta: prior.log_ratio(theta, jnp.ones(3)))
    posterior = isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=3), 256, 5), islands=8, seed=2)
    np.testing.assert_allclose(posterior.std(), np.sqrt(0.8), rtol=0.1)
    with lanes.side_by_side(True):
        slopes = jax.jit(jax.vmap(jax.grad(lambda x: jnp.sum(lanes.lay(x) ** 3))))(jnp.ones((4, 3)))
    np.testing.assert_allclose(slopes, 3.0)
