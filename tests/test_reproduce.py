"""Experiments run island by island: cut, resumed, handed to others; their forecasts, and the command."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import isles
from isles.cli.app import ExitCode
from isles.engines.slurm import Slurm, write_scripts
from isles.reproduce import experiments, islands, page, tables, work
from isles.reproduce.islands import Scored
from isles.store.folder import BlockFolder
from isles.store.status import read_status
from isles.tasks import run_tasks
from kills import wait_until
from made_islands import NAMES, without_islands


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Experiments of a test's own, with the settings that are committed and without their islands."""
    return without_islands(tmp_path)


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
    assert sum(one.particle_epochs for one in found if one) == pytest.approx(posterior.epochs.total, abs=1)


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


def test_the_papers_extent_begins_is_cut_and_goes_on_from_the_standard_one(own: Path) -> None:
    """In small: one island, then all that the paper has, a realization of it after a cut."""
    settings = own / "mnist-short" / "settings.toml"
    head, method, *_ = settings.read_text().split("[[method]]")
    small = {
        '&model=cnn&kaiming=he"': '&model=logistic&train=20"',
        "particles = 32": "particles = 4",
        "standard = { realizations = 5, islands = 8 }": "standard = { realizations = 1, islands = 1 }",
        "paper = { realizations = 5, islands = 8 }": "paper = { realizations = 2, islands = 2 }",
        "rows = [1, 2, 4, 8]": "rows = [1, 2]",
    }
    text = f"{head}[[method]]{method}"
    for before, after in small.items():
        assert before in text
        text = text.replace(before, after)
    settings.write_text(text)
    experiment = experiments.load(own, "mnist-short", "paper")
    kept = lambda: sorted(path.name for path in experiment.folder.glob("islands/*/*.npz"))
    run = lambda budget, **limits: work.run(experiment, budget, say=lambda _: None, engine="serial", **limits)
    assert run("standard") and kept() == ["r00-p00.npz"]
    before = islands.read(islands.path_of(experiment, experiment.methods[0], experiments.Place(0, 0)))
    assert not run("paper", max_seconds=1e-6) and kept() == ["r00-p00.npz"]
    page.write(experiment)
    partial = (experiment.folder / "README.md").read_text()
    assert "1 of the paper's 2 realizations for P = 1; not run for P = 2." in partial
    assert run("paper") and kept() == [f"r0{r}-p0{p}.npz" for r in range(2) for p in range(2)]
    again = islands.read(islands.path_of(experiment, experiment.methods[0], experiments.Place(0, 0)))
    assert before is not None and again is not None and again.log_evidence == before.log_evidence
    page.write(experiment)
    assert "- Nothing: every cell has the paper's realizations." in (experiment.folder / "README.md").read_text()


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
    places = lambda name: sum(len(piece.places) for piece in experiments.load(own, name).queue("standard"))
    assert cifar["paper_hours"] is None and cifar["islands"] == places("cifar10-short") > 0
    assert mnist["done"] == 0 and mnist["islands"] == places("mnist-short") > 0
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


def test_ctrl_c_says_that_the_same_command_goes_on(own: Path) -> None:
    command = ["reproduce", "mnist-short", "--folder", ".", "--only", "smc-m20", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "isles", *command], cwd=own, stderr=subprocess.PIPE, text=True
    )
    try:
        begun = lambda: any(BlockFolder(path).has_begun for path in own.glob("mnist-short/unfinished/*/blocks/*"))
        wait_until(lambda: begun() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == ExitCode.INTERRUPTED, err
        assert "error: stopped; what was saved is kept, and the same command goes on" in err
        assert "Traceback" not in err and "isles.resume" not in err
    finally:
        process.kill()
        process.wait()
