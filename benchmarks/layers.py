"""The evaluations: networks against PyTorch and against the core's own matrix product, and the size of chunks."""

# ruff: noqa: E402
from benchmarks import harness

harness.one_core()

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import isles
from isles import chunks
from isles.models import CNN, MLP

PARTICLES = 32
torch.set_num_threads(1)


def problem(network: Any, rows: int, classes: int, std: float, apply: Any = None) -> isles.Problem:
    """A classification with made-up inputs of the right shape."""
    rng = np.random.default_rng(0)
    shape = network.image if isinstance(network, CNN) else (network.inputs,)
    x = rng.standard_normal((rows, *shape), np.float32) / np.sqrt(np.prod(shape))
    prior = isles.Gaussian(like=network.shapes(), std=std)
    return isles.classification(apply or network.apply, prior, x, rng.integers(0, classes, rows))


def epoch(problem: isles.Problem, particles: int = PARTICLES) -> Callable[[], Any]:
    """Value and gradient over all data, for all particles at once."""
    keys = jax.random.split(jax.random.key(0), particles)
    positions = jax.vmap(problem.prior.draw)(keys)
    problem = problem.for_particles(particles)
    evaluate = jax.jit(lambda problem, positions: jax.vmap(partial(problem.evaluate, gradient=True))(positions))
    return lambda: jax.block_until_ready(evaluate(problem, positions))


def torch_epoch(network: torch.nn.Module, problem: isles.Problem, rows: int) -> Callable[[], None]:
    """Value and gradient over all data for one particle, `rows` at a time."""
    x, y = (torch.tensor(np.asarray(leaf)) for leaf in problem.data)
    x = x.reshape(len(x), 1, 28, 28) if x.ndim == 4 else x
    y = y.long()
    loss = torch.nn.CrossEntropyLoss(reduction="sum")

    def run() -> None:
        network.zero_grad()
        for first in range(0, len(x), rows):
            loss(network(x[first : first + rows]), y[first : first + rows]).backward()

    return run


def torch_twin(network: Any) -> torch.nn.Module:
    """The same architecture in PyTorch."""
    if isinstance(network, CNN):
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, network.channels, network.kernel, padding="same"), torch.nn.ReLU(),
            torch.nn.MaxPool2d(network.pool), torch.nn.Flatten(), torch.nn.Linear(784, network.outputs),
        )  # fmt: skip
    (hidden,) = network.hidden
    return torch.nn.Sequential(
        torch.nn.Linear(network.inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, network.outputs)
    )


def agree(network: Any, problem: isles.Problem) -> None:
    """PyTorch and isles must compute the same numbers before their times are compared."""
    params = network.init(jax.random.key(1))
    twin = torch_twin(network)
    order = (
        ["kernel", "bias", "w", "b"]
        if isinstance(network, CNN)
        else sorted(params, key=lambda n: (n[1:], n[0] == "b"))
    )
    for name, target in zip(order, twin.parameters(), strict=True):
        value = np.array(params[name])
        target.data = torch.tensor(np.moveaxis(value, 3, 1) if name == "kernel" else value)
    x = np.asarray(problem.data[0][:50])
    theirs = twin(torch.tensor(x).reshape(50, 1, 28, 28) if x.ndim == 4 else torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(theirs, network.apply(params, jnp.asarray(x)), rtol=1e-4, atol=1e-5)


def sgemm() -> Callable[[], None]:
    """Twenty products of 1024 × 1024 matrices."""
    a = jnp.ones((1024, 1024), jnp.float32)
    product = jax.jit(lambda a: a @ a)

    def run() -> None:
        for _ in range(20):
            value = product(a)
        value.block_until_ready()

    return run


def cnn(report: harness.Report) -> None:
    """The MNIST network against PyTorch, one particle at a time."""
    network = CNN()
    ours = problem(network, 1000, 10, 0.3)
    agree(network, ours)
    twin = torch_twin(network)
    slow = problem(network, 1000, 10, 0.3, network.plain)
    cases = {
        "isles": epoch(ours),
        "torch": torch_epoch(twin, ours, 1000),
        "torch, best chunk": torch_epoch(twin, ours, 100),
    }
    seconds = harness.alternate(cases, rounds=25)  # short ones, so more of them
    what = "MNIST CNN, value and gradient, N = 32"
    for name, goal in [("torch", 10), ("torch, best chunk", 0)]:
        times = harness.ratio([PARTICLES * t for t in seconds[name]], seconds["isles"])
        met = times["median"] >= goal if goal else None
        figure = "times PyTorch, whole batch" if goal else "times PyTorch in chunks of 100"
        report.row(
            what, figure, harness.shown(times), f"≥ {goal}" if goal else "", met, ratio=times, seconds=seconds
        )
    plain = harness.alternate({"isles": cases["isles"], "plain vmap": epoch(slow)})
    times = harness.ratio(plain["plain vmap"], plain["isles"])
    report.row(what, "times plain vmap of XLA's convolution", harness.shown(times), ratio=times)
    rate = PARTICLES / np.median(seconds["isles"])
    report.row(what, "particle-epochs a second", f"{rate:.0f}", rate=rate)


def head(report: harness.Report) -> None:
    """The IMDb head against the core's matrix product and PyTorch."""
    network, rows = MLP(768, (128,), 2), 25_000
    ours = problem(network, rows, 2, 0.1)
    agree(network, ours)
    cases = {"sgemm": sgemm(), "isles": epoch(ours), "torch": torch_epoch(torch_twin(network), ours, 1000)}
    seconds = harness.alternate(cases)
    work = {
        "sgemm": 20 * 2 * 1024**3,
        "isles": PARTICLES * rows * 2 * (2 * 768 * 128 + 3 * 128 * 2),  # no gradient of the inputs is needed
        "torch": rows * 2 * (2 * 768 * 128 + 3 * 128 * 2),
    }
    rate = {name: [work[name] / t for t in seconds[name]] for name in cases}
    what = "IMDb head 768→128→2, n = 25,000, N = 32"
    share = harness.ratio(rate["isles"], rate["sgemm"])
    report.row(
        what,
        "share of the core's sgemm rate",
        harness.shown(share),
        "≥ 0.75",
        share["median"] >= 0.75,
        ratio=share,
    )
    share = harness.ratio(rate["torch"], rate["sgemm"])
    report.row(what, "PyTorch's share, one particle at a time", harness.shown(share), ratio=share)
    report.row(what, "sgemm, Gflop/s", f"{np.median(rate['sgemm']) / 1e9:.0f}", seconds=seconds)


def evaluations(report: harness.Report) -> None:
    """Evaluations a stage, counted where they happen."""
    count = 0

    def log_likelihood(theta: jax.Array) -> jax.Array:
        def see(_: Any) -> None:
            nonlocal count
            count += 1

        jax.debug.callback(see, theta)
        return -jnp.sum((theta - 1) ** 2)

    toy = isles.Problem(isles.Gaussian(like=np.zeros(4)), log_likelihood)
    particles, mutations, leapfrogs, stages = 16, 3, 5, 4
    sampler = isles.SMC(
        isles.HMC(leapfrogs=leapfrogs), particles=particles, mutations=mutations,
        schedule=np.linspace(0, 1, stages + 1)[1:],
    )  # fmt: skip
    isles.sample(toy, sampler)
    jax.effects_barrier()
    per_stage = (count / particles - 1) / stages
    exact = per_stage == mutations * leapfrogs
    report.row(
        "evaluations a stage, L = 5, M = 3", "counted in the likelihood", f"{per_stage:g}", "L·M = 15", exact
    )


def chunk_sizes(report: harness.Report) -> None:
    """The default chunk against the best of those measured."""
    rng = np.random.default_rng(0)
    logistic = MLP(15, (), 1)
    problems = {
        "MNIST CNN": problem(CNN(), 1000, 10, 0.3),
        "MNIST CNN, plain vmap": problem(CNN(), 1000, 10, 0.3, CNN().plain),
        "IMDb head": problem(MLP(768, (128,), 2), 25_000, 2, 0.1),
        "IMDb head, plain vmap": problem(MLP(768, (128,), 2), 25_000, 2, 0.1, MLP(768, (128,), 2).plain),
        "CIFAR-10 head": problem(MLP(2048, (128,), 10), 10_000, 10, 0.01),
        "logistic regression, 690 × 15": isles.classification(
            logistic, isles.Gaussian(like=logistic.shapes()), rng.normal(size=(690, 15)), rng.integers(0, 2, 690)
        ),
    }
    for name, one in problems.items():
        particles = 1024 if "logistic" in name else PARTICLES
        one = one.for_particles(particles)
        start = time.perf_counter()
        rounds = 25 if "logistic" in name else 5  # it takes milliseconds, and the least of a few is a lucky one
        seconds = chunks.measure(one, chunks.candidates(one, particles), particles=particles, rounds=rounds)
        best = min(seconds, key=lambda rows: seconds[rows])
        over = seconds[one.chunk_rows] / seconds[best]
        print(f"  ({name}: measured in {time.perf_counter() - start:.0f} s)", file=sys.stderr)
        report.row(
            f"chunk of {name}", f"default {one.chunk_rows} rows, best {best}: time over best",
            f"{over:.2f}", "≤ 1.15", over <= 1.15, seconds={str(k): v for k, v in seconds.items()},
        )  # fmt: skip


def main() -> None:
    """All of it."""
    report = harness.Report("layers")
    cnn(report)
    head(report)
    evaluations(report)
    chunk_sizes(report)
    report.write()


if __name__ == "__main__":
    main()
