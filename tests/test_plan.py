"""Forecasts: simulated failures against closed forms and a run whose workers are killed; costs of real runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles
import targets
from isles.planning import calibration, simulate
from isles.planning.calibration import Calibration, Order
from isles.planning.forecast import forecast
from isles.planning.simulation import play
from truth import assert_estimate

MEASURED = Calibration(
    start_seconds=5.0, epochs_per_second=100.0, epochs_per_mutation=4.0, memory_bytes=1 << 28,
    stages=10, pilot_finished=True,
)  # fmt: skip
SMC = isles.SMC(isles.HMC(leapfrogs=4), particles=16, mutations=5)


# --- closed forms ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "workers"), [(1, 1), (5, 2), (8, 4), (7, 16), (100, 7)])
def test_equal_blocks_without_failures_take_whole_rounds(blocks: int, workers: int) -> None:
    done = simulate([3.0] * blocks, workers)
    assert done.seconds == pytest.approx(math.ceil(blocks / workers) * 3.0)
    assert done.failures == done.lost_seconds == done.most_failures == 0
    started = simulate([3.0] * blocks, workers, start_seconds=2.0)
    assert started.seconds == pytest.approx(math.ceil(blocks / workers) * 3.0 + 2.0), "each worker starts once"


@pytest.mark.parametrize(("segments", "start"), [(1, 0.0), (4, 0.0), (4, 7.0)])
def test_memoryless_failures_have_the_known_mean(segments: int, start: float) -> None:
    """One segment of τ that is begun anew at each failure takes (e^{λτ} − 1)/λ; a start before it makes it longer.

    The first segment needs start + τ in one go; later ones τ, or start + τ after a failure, which takes
    e^{λ start}(e^{λτ} − 1)/λ.
    """
    rate, tau = 1 / 60, 50.0
    done = simulate(
        [segments * tau], 1,
        failures_per_hour=60, checkpoint_seconds=tau, start_seconds=start, repeats=20_000, seed=1,
    )  # fmt: skip
    first = math.expm1(rate * (start + tau)) / rate
    later = math.exp(rate * start) * math.expm1(rate * tau) / rate
    truth = first + (segments - 1) * later
    error = done.seconds.std() / math.sqrt(len(done.seconds))
    assert_estimate(done.seconds.mean(), error, truth, bound=0.02 * truth)
    if not start:
        failures = done.failures
        expected = segments * math.expm1(rate * tau)  # a geometric number a segment
        error = failures.std() / math.sqrt(len(failures))
        assert_estimate(failures.mean(), error, expected, bound=0.02 * expected)
        # all time is work that counts, or work that was lost
        np.testing.assert_allclose(done.seconds, segments * tau + done.lost_seconds)


def test_lives_decide_who_does_what() -> None:
    """Two workers, three blocks of 10 s, checkpoints each 4 s; the first worker fails after 9 s, with 8 s kept."""
    attempts = play([10.0] * 3, 2, iter([9.0, *[math.inf] * 9]), checkpoint_seconds=4.0, start_seconds=1.0)
    shown = [(a.block, a.worker, a.begun, a.ended, a.work_before, a.lost) for a in attempts]
    assert shown == [
        (0, 0, 0, 9, 0, 0),  # 1 s to start, 8 s of work: just at a checkpoint
        (1, 1, 0, 11, 0, 0),
        (0, 0, 9, 12, 8, 0),  # starts again, and has 2 s to do
        (2, 1, 11, 21, 0, 0),
    ]
    attempts = play([10.0, 10.0], 3, iter([7.5, math.inf, math.inf]), checkpoint_seconds=4.0)
    assert attempts[-1][:7] == (0, 0, 7.5, 13.5, 4.0, 10.0, 0.0) and attempts[0].lost == 3.5


def test_a_worker_that_waits_takes_over() -> None:
    """Block 1 is short; its worker is there when the other one fails, and need not start."""
    attempts = play([10.0, 1.0], 2, iter([6.0, math.inf, math.inf]), checkpoint_seconds=5.0, start_seconds=2.0)
    assert attempts[2][:5] == (0, 1, 6.0, 16.0, 0.0), "4 s of work, and no checkpoint"


def test_the_same_seed_gives_the_same_failures() -> None:
    run = lambda seed: simulate([100.0] * 4, 2, failures_per_hour=20, repeats=20, seed=seed).seconds
    np.testing.assert_array_equal(run(1), run(1))
    assert (run(1) != run(2)).any()


def test_hopeless_failures_are_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"lets a worker live 1 s in the mean, too few for the 100 s from its start"
    ):
        simulate([100.0], 1, failures_per_hour=3600)


# --- arithmetic of a forecast ---------------------------------------------------------------------------------


def test_a_forecast_is_arithmetic() -> None:
    """10 stages × 5 mutations × 4 epochs + 1 = 201 a particle; a block of 16 takes 201 · 16 / 100 = 32.16 s."""
    found = forecast(SMC, MEASURED, islands=6, islands_per_block=1, workers=4)
    assert (found.blocks, found.stages, found.parallel_epochs, found.total_epochs) == (6, 10, 201, 201 * 96)
    assert found.block_seconds == pytest.approx(32.16)
    assert found.seconds == found.seconds_low == found.seconds_high == pytest.approx(5 + 2 * 32.16)
    by_workers = {row.workers: row for row in found.table}
    assert list(by_workers) == [1, 2, 4, 6]
    assert [by_workers[count].seconds for count in (1, 2, 4, 6)] == pytest.approx(
        [5 + rounds * 32.16 for rounds in (6, 3, 2, 1)]
    )
    assert by_workers[2].efficiency == pytest.approx((5 + 6 * 32.16) / (2 * (5 + 3 * 32.16)))
    assert by_workers[4].memory_bytes == 4 << 28
    assert found.enough_workers == 6
    assert "More than 6 workers hardly help: there are 6 blocks.\n" in str(found) + "\n"
    assert found.checkpoint_seconds == pytest.approx(3.216), "a checkpoint a stage"
    assert json.loads(json.dumps(found.as_dict()))["table"][1]["workers"] == 2


def test_where_more_workers_stop_helping() -> None:
    """32 blocks of 1 s after a start of 60 s: 61 s at best, and 64 s, within 5 % of it, with four rounds of 8."""
    fast = dataclasses.replace(MEASURED, start_seconds=60.0, epochs_per_second=201.0 * 16)
    found = forecast(SMC, fast, islands=32, islands_per_block=1, workers=1)
    assert found.enough_workers == 8
    assert "More than 8 workers hardly help: one takes 60.0 s to start, the longest block 1.0 s." in found.notes
    together = forecast(SMC, fast, islands=32, islands_per_block=32, workers=1)
    assert "More than one worker hardly helps: there is one block. A smaller islands_per_block=32" in str(together)


@pytest.mark.parametrize(
    ("sampler", "parallel"),
    [
        (isles.MCMC(isles.HMC(leapfrogs=4), chains=16, burn_in=10, draws=6, thin=2), 1 + 20 * 4),
        (isles.MCMC(isles.HMC(leapfrogs=4), chains=16, burn_in=9, start=isles.Optimised(70)), 1 + 71 + 64 + 9 * 4),
        (isles.AIS(isles.HMC(leapfrogs=4), particles=16, schedule=[0.0, 0.1, 1.0], mutations=3), 1 + 2 * 3 * 4),
        (isles.SMC(particles=16, mutations=isles.Decorrelate(0.05, max=7), schedule=[0.5, 1.0]), 1 + 2 * 7 * 4),
    ],
)
def test_every_sampler_has_a_price(sampler: Any, parallel: int) -> None:
    found = forecast(sampler, MEASURED, islands=3, islands_per_block=2, workers=1)
    assert (found.parallel_epochs, found.total_epochs, found.blocks) == (parallel, parallel * 48, 2)
    assert found.seconds == pytest.approx(5 + parallel * 48 / 100), "the second block is half as large"


def test_looks_at_a_metric_are_named() -> None:
    sampler = isles.MCMC(isles.HMC(leapfrogs=4, mass="fisher"), chains=16, burn_in=10, draws=6, thin=2)
    assert "Looks at the metric" in str(forecast(sampler, MEASURED, islands=3, islands_per_block=2, workers=1))


def test_failures_make_a_range_and_count_against_retries() -> None:
    sure = forecast(SMC, MEASURED, islands=8, islands_per_block=1, workers=4)
    found = forecast(SMC, MEASURED, islands=8, islands_per_block=1, workers=4, failures_per_hour=100, retries=0)
    assert sure.seconds <= found.seconds_low < found.seconds < found.seconds_high
    assert sure.failures == sure.chance_of_giving_up == 0
    # a failure costs at most a stage of work, 3.216 s
    assert 0 < found.lost_epochs < found.failures * 322
    patient = forecast(SMC, MEASURED, islands=8, islands_per_block=1, workers=4, failures_per_hour=100, retries=9)
    assert found.chance_of_giving_up > 0.5 > patient.chance_of_giving_up


# --- measured on this machine ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_a_pilot_foresees_cost(gaussian: targets.Conjugate) -> None:
    sampler = isles.SMC(isles.HMC(leapfrogs=3), particles=64, mutations=10)
    found = isles.plan(gaussian.problem, sampler, islands=4, workers=2, islands_per_block=2, seconds=0.2)
    real = isles.sample(gaussian.problem, sampler, islands=4)
    assert found.parallel_epochs == 1 + found.stages * 30
    assert found.total_epochs == pytest.approx(real.epochs.total, rel=0.3)
    assert 1 << 26 < found.memory_bytes < 1 << 32, "a process with JAX, and little data"
    assert found.epochs_per_second > 0 and found.start_seconds > 0 and found.seconds >= found.block_seconds
    assert "that of a small pilot run" in str(found)
    assert not any(thread.name == "isles progress" for thread in threading.enumerate())


def test_fixed_cost_is_exact(small: targets.Conjugate) -> None:
    sampler = isles.MCMC(isles.HMC(leapfrogs=3), chains=8, burn_in=40, draws=5, thin=2, start=isles.Optimised(30))
    found = isles.plan(small.problem, sampler, islands=2, workers=1, seconds=0.1)
    real = isles.sample(small.problem, sampler, islands=2)
    assert (found.parallel_epochs, found.total_epochs) == (real.epochs.parallel, real.epochs.total)
    assert found.stages is None


def test_the_cost_of_multiple_proposals_is_exact(small: targets.Conjugate) -> None:
    sampler = isles.MPMCMC(proposals=8, steps=60, burn_in=40)
    forecast = isles.plan(small.problem, sampler, islands=3, workers=1, seconds=0.3)
    posterior = isles.sample(small.problem, sampler, islands=3)
    assert (forecast.parallel_epochs, forecast.total_epochs) == posterior.epochs


@pytest.mark.parametrize(
    "sampler",
    [
        isles.MCMC(isles.HMC(leapfrogs=3), chains=2, burn_in=4, draws=40, thin=3),
        isles.MCMC(isles.HMC(leapfrogs=2), chains=2, burn_in=4, draws=9, start=isles.Optimised(2000)),
        isles.MPMCMC(proposals=4, steps=30, burn_in=20),
    ],
)
def test_compiling_is_not_measured(sampler: Any, small: targets.Conjugate) -> None:
    """A short burn-in came to its draws, and compiled them, while its speed was measured."""
    order = Order(small.problem, sampler, islands=2, pilot=False, seconds=30.0, pilot_seconds=0.0)
    calibration.warm_up(order)
    compiled = list[str]()
    listen = lambda event, *_, **facts: compiled.append(str(facts)) if "backend_compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        block = calibration._work(order, seconds=order.seconds)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert sampler.finished(block)
    assert not compiled


def test_an_error_of_the_problem_is_raised_here() -> None:
    parent = os.getpid()

    def log_likelihood(theta: Any) -> Any:
        if os.getpid() != parent:
            raise ArithmeticError("mine")
        return -jnp.sum(theta**2)

    problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), log_likelihood)
    with pytest.raises(ArithmeticError, match="mine") as caught:
        isles.plan(problem, SMC)
    assert any("in the process that measures a block" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, r"workers=0 must be at least 1"),
        ({"failures_per_hour": -1}, r"failures_per_hour=-1 must be a number that is not negative"),
        ({"stages": 0}, r"stages=0 must be at least 1"),
        ({"checkpoint_seconds": 0}, r"checkpoint_seconds=0.0 must be positive"),
        ({"sampler": "SMC"}, r"must be isles.SMC, AIS, MCMC or MPMCMC"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str, small: targets.Conjugate) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        isles.plan(small.problem, **{"sampler": SMC, **settings})


# --- a run whose workers are killed ---------------------------------------------------------------------------


class Watched(isles.SMC):
    """SMC that writes down which stage of which island it begins and ends, and in which process."""

    def advance(self, problem: isles.Problem, block: Any, pause: Any) -> Any:
        note("begin", block)
        block = super().advance(problem, block, pause)
        note("end", block)
        return block


def note(what: str, block: Any) -> None:
    with open(os.environ["ISLES_TEST_NOTES"], "a") as file:
        file.write(f"{what} {block.islands[0]} {block.stage} {os.getpid()}\n")


def read_notes(path: Path) -> list[tuple[str, int, int, int]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [(what, *map(int, numbers)) for what, *numbers in map(str.split, lines)]


def kill_workers(path: Path, victims: Iterable[int], over: threading.Event) -> None:
    """SIGKILL the worker that has begun so many stages in all, for each number of `victims`."""
    for count in victims:
        while not over.is_set():
            begun = [line for line in read_notes(path) if line[0] == "begin"]
            if len(begun) >= count and is_child(begun[-1][3]):
                os.kill(begun[-1][3], signal.SIGKILL)
                break
            time.sleep(0.005)


def is_child(pid: int) -> bool:
    """Whether a process is one of ours, and not dead already."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(parent) == os.getpid() and state != "Z"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_a_run_whose_workers_are_killed_goes_as_simulated(tmp_path: Path, monkeypatch: Any) -> None:
    """In units of stages: the simulator, told how long each worker lived, must say where each attempt went on."""
    notes = tmp_path / "notes"
    monkeypatch.setenv("ISLES_TEST_NOTES", str(notes))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 32))
    prior = isles.Gaussian(like=np.zeros(32))
    problem = isles.regression(targets.linear, prior, x, x @ np.ones(32), noise_std=40.0)
    stages = 6
    sampler = Watched(
        isles.HMC(leapfrogs=4, step_size=0.02),
        particles=16,
        mutations=4,
        schedule=list(np.geomspace(0.01, 1, stages)),
    )
    victims = sorted(random.Random(3).sample(range(2, 2 * stages + 1), 3))
    over = threading.Event()
    killer = threading.Thread(target=kill_workers, args=(notes, victims, over))
    killer.start()
    try:
        posterior = isles.sample(
            problem, sampler, islands=2, islands_per_block=1, folder=tmp_path / "run", workers=1, retries=9,
            checkpoint_seconds=1e6,
        )  # fmt: skip
    finally:
        over.set()
        killer.join()
    assert posterior.positions.shape[0] == 2

    lines = read_notes(notes)
    # a process works on both blocks if nobody kills it in between
    attempts = [list(group) for _, group in itertools.groupby(lines, key=lambda line: (line[3], line[1]))]
    real = [(lines[0][1], lines[0][2]) for lines in attempts]
    last = {block: max(i for i, (other, _) in enumerate(real) if other == block) for block, _ in real}
    killed = [i != last[lines[0][1]] for i, lines in enumerate(attempts)]
    assert 1 <= sum(killed) <= 3
    # killed inside a stage, or, if the last thing noted is its end, before or after the checkpoint that follows
    options = []
    for lines, was_killed in zip(attempts, killed, strict=True):
        whole = sum(line[0] == "end" for line in lines)
        inside = lines[-1][0] == "begin"
        options.append([math.inf] if not was_killed else [whole + 0.5] if inside else [whole - 0.1, whole + 0.1])
    simulated = [
        [
            (a.block, round(a.work_before))
            for a in play([float(stages)] * 2, 1, iter(lives), checkpoint_seconds=1.0)
        ]
        for lives in itertools.product(*options)
    ]
    assert real in simulated
    redone = sum(line[0] == "begin" for line in lines) - 2 * stages
    assert redone <= sum(killed), "a failure costs a stage at most"
