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
from isles.cli.app import ExitCode
from isles.engines.slurm import Slurm, write_scripts
from isles.reproduce import experiments, figures, islands, page, tables, work
from isles.reproduce.islands import Island, Scored
from isles.store.status import read_status
from isles.tasks import run_tasks
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
        settings={"sampler": "smc"},
        versions={"isles": "0.1.0", "commit": None},
    )


def fill(experiment: experiments.Experiment, counts: dict[str, int], rng: np.random.Generator) -> None:
    """Made-up islands of one realization, so many of each method, and labels to score them by."""
    found = {method.name: method for method in experiment.methods}
    islands.agree(experiment, Scored(100, rng.integers(0, 10, 40)))
    for name, count in counts.items():
        for number in range(count):
            island = dataclasses.replace(
                made_up(rng, classes=10), epochs=found[name].epochs, settings=found[name].settings
            )
            islands.save(islands.path_of(experiment, found[name], experiments.Place(0, number)), island)


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


def test_synopsis_shows_the_runs_with_most_islands_and_all_lengths(own: Path) -> None:
    """Two lengths have two islands, one of them four, and the longest of all only one."""
    rng = np.random.default_rng(3)
    experiment = experiments.load(own, "mnist-short")
    fill(experiment, {"hmc-parallel-m1": 2, "hmc-parallel-m10": 4, "hmc-parallel-m20": 1, "hmc-serial-m5": 4}, rng)
    cells = tables.cells(experiment, rng.integers(0, 10, 40))
    assert figures.has_synopsis(experiment, cells) and figures.widest(experiment, cells) == "M = 10"
    for left, right in figures.synopsis(experiment, cells).axes[:2], figures.synopsis(experiment, cells).axes[2:]:
        lines = lambda axis: {bars.get_label(): bars[0].get_xdata().tolist() for bars in axis.containers}
        assert lines(left) == {"HMC∥": [1, 2, 4]}
        assert lines(right) == {"HMC∥, P = 2": [40, 400], "HMC, P = 4": [4 * 25600]}
    one = [cell for cell in cells if cell.method.group == "M = 1"]
    assert not figures.has_synopsis(dataclasses.replace(experiment, panels=("M = 1",)), one)


def test_a_page_has_the_papers_figures_and_says_what_is_missing(own: Path) -> None:
    """Trajectories: shares of a chain, tables side by side, and what was left out."""
    experiment = experiments.load(own, "mnist-trajectory")
    fill(experiment, {"smc-t0.005": 2, "smc-t0.005-n16": 2, "hmc-gold-t0.005": 8}, np.random.default_rng(4))
    page.write(experiment)
    text = (experiment.folder / "README.md").read_text()
    assert "| HMC (GS) |  | 1/8 of the chain | 125 |" in text
    lines = [
        line.split(" | ") for line in text.split("N at a fixed number of particles, τ = 0.02")[0].splitlines()
    ]
    sides = {line[0].strip("| "): line[1:] for line in lines}
    smc, serial = sides["τ = 0.005, one process"][2], sides["τ = 0.005, one process"][5]
    assert smc == f"{906 * 32:.3g} ({906 * 32:.3g})" and serial == "not run (3.02e+04) |"
    assert sides["τ = 0.005, one process a particle"][2] == "906 (906)"
    by_particles = sides["32"]
    assert len(by_particles) == 8 and by_particles[0] == ""  # 64 particles are more than 32
    assert by_particles[1].endswith("(82.12)") and "not run" not in by_particles[1]
    assert "not run (81.47)" in by_particles[3]
    assert "- SMC∥, τ = 0.005: at most 1 of the paper's 10 realizations for P = 1, 2, 4, 8." in text
    assert "- HMC∥, τ = 0.1: not run." in text and "every hundredth state" in text
    panels = figures.over_islands(experiment, tables.cells(experiment, np.zeros(40, int))).axes
    assert [axis.get_title() for axis in panels if axis.get_title()] == list(experiment.panels)


def test_a_table_of_fewer_data_than_the_papers_says_so(own: Path) -> None:
    rng = np.random.default_rng(5)
    experiment = experiments.load(own, "cifar10-short")
    fill(experiment, {"smc-5000": 1, "smc": 1}, rng)
    page.write(experiment)
    text = (experiment.folder / "README.md").read_text()
    assert text.count("100 of the paper's 50,000 training and 40 of its 10,000 test rows") == 3
    whole = dataclasses.replace(experiment, paper_rows=(100, 40))
    page.write(whole)
    assert "of the paper's" not in (experiment.folder / "README.md").read_text().split("## What was left out")[0]


def test_islands_of_other_data_or_settings_are_refused(own: Path) -> None:
    rng = np.random.default_rng(6)
    experiment = experiments.load(own, "mnist-short")
    fill(experiment, {"smc-m1": 1}, rng)
    kept = islands.scored(experiment)
    assert kept is not None and (kept.train, kept.test) == (100, 40)
    islands.agree(experiment, kept)
    for other in (Scored(101, kept.labels), Scored(100, kept.labels[:-1]), Scored(100, 9 - kept.labels)):
        with pytest.raises(ValueError, match=r"of 100 training and 40 test rows of mnist.*move .* away"):
            islands.agree(experiment, other)
    method, place = experiment.methods[0], experiments.Place(0, 0)
    assert islands.is_done(experiment, method, place)
    changed = dataclasses.replace(method, sampling={**method.sampling, "mutations": 2})
    with pytest.raises(ValueError, match=r"'mutations': 1.*'mutations': 2.*restore the settings"):
        islands.is_done(experiment, changed, place)


def test_a_chain_of_which_a_part_is_missing_is_not_done(own: Path) -> None:
    experiment = experiments.load(own, "mnist-short")
    method = next(method for method in experiment.methods if method.parts == 4)
    fill(experiment, {method.name: 4}, np.random.default_rng(7))
    assert islands.is_done(experiment, method, experiments.Place(0, 0))
    islands.path_of(experiment, method, experiments.Place(0, 3)).unlink()
    assert not islands.is_done(experiment, method, experiments.Place(0, 0))


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
    page.write(experiment)
    committed, again = (
        json.loads((place / name / "results.json").read_text()) for place in (EXPERIMENTS, tmp_path)
    )
    del committed["machine"], again["machine"]  # of who wrote it
    assert_same_but_for_rounding(again, committed)
    lines = lambda place: [
        line for line in (place / name / "README.md").read_text().splitlines() if line.startswith("|")
    ]
    assert lines(tmp_path) == lines(EXPERIMENTS)
    scored = islands.scored(experiment)
    assert scored is not None
    if any(map(page.is_far, tables.cells(experiment, scored.labels))):
        assert "differ" in (folder / "notes.md").read_text(), "a page that is far from the paper gives reasons"
    for piece in experiment.queue("standard"):
        work.left_of(experiment, piece)  # raises if settings changed since


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mnist-short"])
@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_quick_runs(name: str, own: Path) -> None:
    """Every experiment in small."""
    experiment = experiments.apart(experiments.load(own, name, "quick"))
    try:
        assert work.run(experiment, "quick", say=lambda _: None)
    except FileNotFoundError as error:
        pytest.skip(f"needs the data of {experiment.data}: {error}")
    page.write(experiment)
    results = json.loads((experiment.folder / "results.json").read_text())
    assert results["islands"] > 0 and all(cell["realizations"] == [0] for cell in results["cells"])


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
    # 8 draws, 2 steps apart after a burn-in of 4, cut into two parts, of which the first has burn-in
    assert by_name["hmc-serial-m1", 2, "equal"]["epochs"] == 1 + 4 + 7 * 2
    assert by_name["hmc-serial-m1", 1, "equal"]["epochs"] == pytest.approx(1 + 4 + 3 * 2)
    assert results["command"].endswith("--budget quick") and results["versions"][0]["jax"]
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


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_islands_inside_an_unfinished_piece_are_kept_and_the_piece_goes_on(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three islands is finished when the piece is stopped; the page has it, and only two are run later."""
    experiment = experiments.apart(experiments.load(own, "mnist-short", "quick"))
    method = experiment.methods[0]
    piece = experiments.Piece(method, tuple(experiments.Place(0, island) for island in range(3)))
    folder = work.work_folder(experiment, piece)
    test = isles.data.load("mnist", test=50)
    islands.agree(experiment, Scored(1000, test.y_test))
    run = lambda **budget: isles.sample(
        method.problem, work.build_sampler(method.sampling), islands=[0, 1, 2], islands_per_block=1,
        seed=experiment.seed(method), folder=folder, engine="serial", **budget,
    )  # fmt: skip
    with pytest.warns(isles.IslesWarning, match="2 of 3 islands are missing"):
        run(max_epochs=1, allow_partial=True)
    partial = isles.merge(folder, allow_partial=True)
    assert "missing" in partial.warnings[0]
    warned = dataclasses.replace(partial, warnings=(partial.warnings[0], "too short"))
    monkeypatch.setattr(isles, "merge", lambda *_, **__: warned)
    work.harvest(experiment)
    assert [islands.is_done(experiment, method, place) for place in piece.places] == [True, False, False]
    path = islands.path_of(experiment, method, piece.places[0])
    kept, before = islands.read(path), path.read_bytes()
    assert kept is not None and kept.warnings == ("too short",)
    assert work.run_piece(experiment, piece, test.x_test, folder, None, {"engine": "serial"})
    assert all(islands.is_done(experiment, method, place) for place in piece.places) and not folder.exists()
    assert islands.path_of(experiment, method, piece.places[0]).read_bytes() == before


def test_pieces_can_be_handed_to_slurm_and_gathered(own: Path) -> None:
    """What SLURM's tasks run are blocks of folders that it defines; a later call keeps and clears them."""
    command = [sys.executable, "-m", "isles", "reproduce", "mnist-short", "--budget", "quick", "--folder", "."]
    call = lambda *more: subprocess.run([*command, *more], cwd=own, capture_output=True, text=True, check=False)
    assert call("--engine", "slurm", "--workers", "2").returncode == ExitCode.USAGE
    done = call("--engine", "slurm")
    assert done.returncode == ExitCode.PARTIAL, done.stderr
    assert "isles reproduce mnist-short --budget quick --folder . --page" in " ".join(done.stderr.split())
    folders = [own / line.split()[2] for line in done.stdout.splitlines()]
    assert folders and all(line.startswith("isles slurm ") for line in done.stdout.splitlines())
    assert json.loads(call("--engine", "slurm", "--json").stdout)["runs"] == [
        line.split()[2] for line in done.stdout.splitlines()
    ]
    for folder in folders:
        scripts = write_scripts(folder, read_status(folder).unfinished, Slurm(time="1:00:00"))
        assert scripts.tasks == len(read_status(folder).blocks)
        run_tasks(folder, range(scripts.tasks))
    again = call("--engine", "slurm")  # nothing is left to submit, and what is finished is gathered
    assert again.returncode == ExitCode.OK and not again.stdout
    experiment = experiments.apart(experiments.load(own, "mnist-short", "quick"))
    queue = experiment.queue("quick")
    assert all(islands.is_done(experiment, piece.method, place) for piece in queue for place in piece.places)
    alone = islands.path_of(experiment, queue[0].method, queue[0].places[0]).read_bytes()
    assert work.run(experiment, "quick", say=pytest.fail)  # in memory, where folders have no say
    assert call("--engine", "serial").returncode == ExitCode.OK and not any(folder.exists() for folder in folders)
    assert islands.path_of(experiment, queue[0].method, queue[0].places[0]).read_bytes() == alone


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_a_part_of_a_piece_that_has_begun_goes_on_in_its_folder(own: Path) -> None:
    """Though another part was done before, and some of its own islands are kept by now."""
    experiment = experiments.apart(experiments.load(own, "mnist-short", "quick"))
    method, test = experiment.methods[0], isles.data.load("mnist", test=50)
    places = tuple(experiments.Place(0, island) for island in range(5))
    islands.agree(experiment, Scored(1000, test.y_test))
    assert work.run_piece(experiment, experiments.Piece(method, places[:1]), test.x_test, None, None, {})
    ((rest, folder),) = work.parts_of(experiment, experiments.Piece(method, places[:4]))
    assert rest.places == places[1:4]
    with pytest.warns(isles.IslesWarning, match="2 of 3 islands are missing"):
        isles.sample(
            method.problem, work.build_sampler(method.sampling), islands=[place.number for place in rest.places],
            islands_per_block=1, seed=experiment.seed(method), folder=folder, engine="serial", max_epochs=1,
            allow_partial=True,
        )  # fmt: skip
    work.harvest(experiment)
    begun, new = work.parts_of(experiment, experiments.Piece(method, places))
    assert begun == (rest, folder) and new[0].places == places[4:] and new[1] != folder


def test_a_budget_ends_it_and_the_same_call_goes_on(own: Path) -> None:
    experiment = experiments.apart(experiments.load(own, "mnist-short", "quick"))
    assert not work.run(experiment, "quick", max_seconds=1e-6, say=lambda _: None)
    page.write(experiment)
    assert "not run" in (experiment.folder / "README.md").read_text()
    assert work.run(experiment, "quick", only=["smc-m1"], say=lambda _: None)
    assert {path.name for path in (experiment.folder / "islands").glob("*/")} == {"smc-m1"}
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
    measured = [line[10:-4] for line in done.stderr.splitlines() if line.startswith("measuring ")]
    cnn = experiments.load(own, "mnist-short").methods[0].problem
    lost = experiments.load(own, "cifar10-short").methods[0].problem
    assert measured == [lost, cnn, f"{cnn} in few chains"]
    cifar, mnist, twin = json.loads(done.stdout)
    assert (cifar["experiment"], mnist["experiment"]) == ("cifar10-short", "mnist-short")
    assert cifar["paper_hours"] is None and cifar["islands"] == 4
    assert mnist["done"] == 0 and mnist["islands"] == 311
    assert 0 < mnist["hours_left"] == mnist["standard_hours"] < mnist["paper_hours"]
    work = sum(method.particle_epochs("paper") for method in experiments.load(own, "mnist-short").methods)
    cores = len(os.sched_getaffinity(0))
    assert mnist["paper_hours"] < work / mnist["epochs_per_second"] / cores / 3600  # the rate of few chains
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
    (own / "speed").mkdir()
    (own / "speed" / "study.toml").touch()
    assert "python -m experiments.studies speed" in call("speed", "--folder", ".").stderr
    assert call("mnist-short").returncode == 2  # no folder named experiments here
    assert "budget" in call("mnist-short", "--folder", ".", "--budget", "quik").stderr
    assert "mean 'smc-m1'" in call("mnist-short", "--folder", ".", "--budget", "quick", "--only", "smc-m2").stderr
    assert "take --budget paper" in call("imdb-short", "--folder", ".", "--only", "smc-m20").stderr
    done = call("mnist-short", "--folder", ".", "--budget", "quick", "--max-seconds", "0.000001")
    assert done.returncode == 3, done.stderr
    assert "not run" in (own / "mnist-short" / "quick" / "README.md").read_text()
