"""Experiments island by island: the queue, what is kept of an island, tables that follow, and the command."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
from sklearn import metrics as judge

import isles
from isles.reproduce import experiments, figures, islands, page, tables, work
from isles.reproduce.islands import Island
from truth import assert_same_but_for_rounding

ROOT = Path(__file__).parent.parent
EXPERIMENTS = ROOT / "experiments"
NAMES = experiments.names(EXPERIMENTS)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Experiments of a test's own, with the settings that are committed and without their islands."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        shutil.copy(EXPERIMENTS / name / "settings.toml", tmp_path / name)
    return tmp_path


def made_up(rng: np.random.Generator, rows: int = 40, classes: int = 3) -> Island:
    return Island(
        probabilities=rng.dirichlet(np.ones(classes), rows),
        draw_entropy=float(rng.random()),
        log_evidence=float(rng.normal()),
        epochs=10.0,
        particle_epochs=320,
        seconds=1.0,
        seed=1,
        number=2,
        warnings=("too short",),
    )


def test_scores_against_scikit_learn_and_scipy() -> None:
    rng = np.random.default_rng(0)
    found, labels = [made_up(rng) for _ in range(4)], rng.integers(0, 3, 40)
    omega = tables.island_weights(found, "evidence")
    np.testing.assert_allclose(omega, scipy.special.softmax([island.log_evidence for island in found]))
    mixed = sum(w * island.probabilities for w, island in zip(omega, found, strict=True))
    scores = tables.scores(found, omega, labels)
    assert scores["accuracy"] == pytest.approx(100 * judge.accuracy_score(labels, mixed.argmax(axis=1)))
    assert scores["nll"] == pytest.approx(judge.log_loss(labels, mixed, labels=[0, 1, 2]))
    total = scipy.special.entr(mixed).sum(axis=1).mean()
    assert scores["entropy"] == pytest.approx(total)
    own = omega @ [island.draw_entropy for island in found]
    assert scores["epistemic"] == pytest.approx(total - own)
    np.testing.assert_allclose(tables.island_weights(found, "equal"), 0.25)


def test_an_island_read_back(tmp_path: Path) -> None:
    island = made_up(np.random.default_rng(1))
    path = tmp_path / "some" / "island.npz"
    assert islands.read(path) is None
    islands.save(path, island)
    again = islands.read(path)
    assert again is not None
    np.testing.assert_allclose(again.probabilities, island.probabilities, rtol=2.0**-islands.KEPT_BITS)
    np.testing.assert_allclose(again.probabilities.sum(axis=1), 1)
    facts = lambda one: {name: value for name, value in vars(one).items() if name != "probabilities"}
    assert facts(again) == facts(island)
    assert [file.name for file in path.parent.iterdir()] == ["island.npz"]


def test_synopsis_shows_the_longest_runs_and_all_lengths(own: Path) -> None:
    """Two lengths, of which all have two islands and the longer has four; the serial chain has no part in it."""
    rng = np.random.default_rng(3)
    experiment = experiments.load(own, "mnist-short")
    found = {method.name: method for method in experiment.methods}
    for name, count in (("hmc-parallel-m1", 2), ("hmc-parallel-m10", 4), ("hmc-serial-m20", 4)):
        for number in range(count):
            path = islands.path_of(experiment, found[name], experiments.Place(0, number))
            island = dataclasses.replace(made_up(rng, classes=10), epochs=found[name].epochs)
            islands.save(path, island)
    labels = rng.integers(0, 10, 40)
    cells = tables.cells(experiment, labels)
    assert figures.has_synopsis(cells) and figures.longest(cells) == "M = 10"
    left, right = figures.synopsis(cells).axes
    lines = lambda axis: {bars.get_label(): bars[0].get_xdata().tolist() for bars in axis.containers}
    assert lines(left) == {"HMC∥": [1, 2, 4]} and lines(right) == {"HMC∥, P = 2": [40, 400]}
    one = [cell for cell in cells if cell.method.group == "M = 1"]
    assert not figures.has_synopsis(one)


@pytest.mark.parametrize("name", NAMES)
def test_queue(name: str) -> None:
    """Every island once, rows with few islands first; the paper's budget goes on from the standard one."""
    experiment = experiments.load(EXPERIMENTS, name)
    flat = lambda budget: [
        (piece.method.name, place) for piece in experiment.queue(budget) for place in piece.places
    ]
    standard, paper = flat("standard"), flat("paper")
    assert len(set(paper)) == len(paper)
    assert paper[: len(standard)] == standard
    for method in experiment.methods:
        places = [place for name, place in standard if name == method.name]
        extent = method.extents["standard"]
        chains = 1 if method.parts > 1 else extent.islands
        assert sorted((p.realization, p.island) for p in places) == [
            (r, p) for r in range(extent.realizations) for p in range(chains)
        ]
        assert [p.island for p in places] == sorted(p.island for p in places)
        assert max(method.rows) <= max(method.parts, method.extents["paper"].islands)
        for values in method.printed.values():
            assert len(values) <= len(method.rows)


@pytest.mark.parametrize("name", [name for name in NAMES if (EXPERIMENTS / name / "results.json").exists()])
def test_pages_follow_from_the_committed_islands(name: str, tmp_path: Path) -> None:
    """The committed page and results are what the committed islands give."""
    folder = tmp_path / name
    shutil.copytree(EXPERIMENTS / name, folder, ignore=shutil.ignore_patterns("unfinished", "quick"))
    experiment = experiments.load(tmp_path, name)
    try:
        page.write(experiment)
    except FileNotFoundError as error:
        pytest.skip(f"needs the data of {experiment.data}: {error}")
    committed, again = (
        json.loads((place / name / "results.json").read_text()) for place in (EXPERIMENTS, tmp_path)
    )
    for fact in ("commit", "machine", "versions"):  # of who wrote it
        del committed[fact], again[fact]
    assert_same_but_for_rounding(again, committed)
    lines = lambda place: [
        line for line in (place / name / "README.md").read_text().splitlines() if line.startswith("|")
    ]
    assert lines(tmp_path) == lines(EXPERIMENTS)


def test_quick_run_and_its_tables(own: Path) -> None:
    """A whole experiment in small: islands, parts of chains, page; and a second call that finds nothing to do."""
    experiment = experiments.apart(experiments.load(own, "mnist-short", "quick"))
    said: list[str] = []
    assert work.run(experiment, "quick", say=said.append)
    page.write(experiment)
    results = json.loads((experiment.folder / "results.json").read_text())
    by_name = {(cell["method"], cell["P"], cell["weights"]): cell for cell in results["cells"]}
    assert all(cell["realizations"] == [0] for cell in by_name.values())
    assert by_name["hmc-parallel-m1", 1, "equal"]["epochs"] == 1 + 4  # the prior draw and the burn-in
    # 8 draws, 2 steps apart after a burn-in of 4, cut into two parts
    assert by_name["hmc-serial-m1", 2, "equal"]["epochs"] == 1 + 4 + 7 * 2
    assert (experiment.folder / "figure.png").stat().st_size > 1000
    said.clear()
    assert work.run(experiment, "quick", say=said.append)
    assert not said


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_statistics_are_those_of_the_run(own: Path) -> None:
    """Probabilities and entropies of islands are what the posterior of the same run predicts."""
    experiment = experiments.apart(experiments.load(own, "mnist-short", "quick"))
    method = experiment.methods[0]
    places = tuple(experiments.Place(0, island) for island in range(2))
    test = isles.data.load("mnist", test=50)
    work.run_piece(experiment, experiments.Piece(method, places), test.x_test, None, None, {})
    found = [islands.read(islands.path_of(experiment, method, place)) for place in places]
    posterior = isles.sample(
        method.problem, work.build_sampler(method.sampling),
        islands=2, seed=experiment.seed(method), islands_per_block=1,
    )  # fmt: skip
    predicted: Any = posterior.predict(test.x_test)
    scores = tables.scores([one for one in found if one], tables.island_weights(found, "evidence"), test.y_test)
    assert scores["entropy"] == pytest.approx(predicted.entropy.mean(), rel=1e-3)
    assert scores["epistemic"] == pytest.approx(predicted.epistemic.mean(), rel=0.02, abs=1e-4)
    assert scores["nll"] == pytest.approx(isles.metrics.nll(predicted, test.y_test), rel=1e-3)


def test_a_budget_ends_it_and_the_same_call_goes_on(own: Path) -> None:
    experiment = experiments.apart(experiments.load(own, "mnist-short", "quick"))
    assert not work.run(experiment, "quick", max_seconds=1e-6, say=lambda _: None)
    page.write(experiment)
    assert "not run" in (experiment.folder / "README.md").read_text()
    assert work.run(experiment, "quick", say=lambda _: None)


def test_list_tells_what_experiments_cost_and_which_lack_their_data(own: Path, tmp_path: Path) -> None:
    """A problem that two experiments share is measured once, and not again by a second call."""
    for name in NAMES:
        if name not in ("mnist-short", "cifar10-short"):
            shutil.rmtree(own / name)
    shutil.copytree(own / "mnist-short", own / "twin")
    empty = {"ISLES_DATA": str(tmp_path / "no data"), "ISLES_CACHE": str(tmp_path / "cache")}
    call = lambda: subprocess.run(
        [sys.executable, "-m", "isles", "reproduce", "--list", "--folder", ".", "--json"],
        cwd=own, capture_output=True, text=True, env=os.environ | empty,
    )  # fmt: skip
    done = call()
    assert done.returncode == 0, done.stderr
    measured = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("measuring ")]
    assert sorted(measured) == sorted(
        {experiments.load(own, name).methods[0].problem for name in experiments.names(own)}
    )
    cifar, mnist, twin = json.loads(done.stdout)
    assert (cifar["experiment"], mnist["experiment"]) == ("cifar10-short", "mnist-short")
    assert cifar["paper_hours"] is None and cifar["islands"] == 2
    assert mnist["done"] == 0 and mnist["islands"] == 306
    assert 0 < mnist["hours_left"] == mnist["standard_hours"] < mnist["paper_hours"]
    work = sum(method.particle_epochs("paper") for method in experiments.load(own, "mnist-short").methods)
    cores = len(os.sched_getaffinity(0))
    assert mnist["paper_hours"] == pytest.approx(work / mnist["epochs_per_second"] / cores / 3600)
    assert twin["epochs_per_second"] == mnist["epochs_per_second"]
    again = call()
    assert "measuring isles.builtin:problem?data=mnist" not in again.stderr and "remove it" in again.stderr
    assert json.loads(again.stdout) == json.loads(done.stdout)


def test_the_command(own: Path) -> None:
    call = lambda *arguments: subprocess.run(
        [sys.executable, "-m", "isles", "reproduce", *arguments], cwd=own, capture_output=True, text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )  # fmt: skip
    wrong = call("mnist-shrt", "--folder", ".")
    assert wrong.returncode == 2 and "mnist-short" in wrong.stderr
    assert call("mnist-short").returncode == 2  # no folder named experiments here
    assert "budget" in call("mnist-short", "--folder", ".", "--budget", "quik").stderr
    done = call("mnist-short", "--folder", ".", "--budget", "quick", "--max-seconds", "0.000001")
    assert done.returncode == 3, done.stderr
    assert "not run" in (own / "mnist-short" / "quick" / "README.md").read_text()
