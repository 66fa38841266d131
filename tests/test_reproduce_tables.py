"""Experiments from their islands: the queue, what is kept of an island, the tables and the pages that follow."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.special
from sklearn import metrics as judge

from isles.reproduce import experiments, figures, islands, page, tables, work
from isles.reproduce.islands import Scored
from made_islands import EXPERIMENTS, NAMES, fill, made_up, without_islands
from truth import assert_same_but_for_rounding


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Experiments of a test's own, with the settings that are committed and without their islands."""
    return without_islands(tmp_path)


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
    """Two lengths have several islands, the longest has one; each shows with the most that it has."""
    rng = np.random.default_rng(3)
    experiment = experiments.load(own, "mnist-short")
    fill(experiment, {"hmc-parallel-m1": 2, "hmc-parallel-m10": 4, "hmc-parallel-m20": 1, "hmc-serial-m5": 4}, rng)
    cells = tables.cells(experiment, rng.integers(0, 10, 40))
    assert figures.has_synopsis(experiment, cells) and figures.widest(experiment, cells) == "M = 10"
    for left, right in figures.synopsis(experiment, cells).axes[:2], figures.synopsis(experiment, cells).axes[2:]:
        lines = lambda axis: [(bars.get_label(), bars[0].get_xdata().tolist()) for bars in axis.containers]
        assert lines(left) == [("HMC∥", [1, 2, 4])]
        parts = [("HMC∥", [40]), ("HMC∥", [400]), ("HMC∥", [800]), ("HMC", [4 * 25600])]
        assert lines(right) == parts  # no line joins what differs in P
    assert "(HMC∥: P = 1 or 2 or 4; HMC: P = 4)" in figures.about_synopsis(experiment, cells)
    one = [cell for cell in cells if cell.method.group == "M = 1"]
    assert not figures.has_synopsis(dataclasses.replace(experiment, panels=("M = 1",)), one)


def test_a_page_has_the_papers_figures_and_says_what_is_missing(own: Path) -> None:
    """Trajectories: shares of a chain, tables side by side, and what was left out."""
    experiment = experiments.load(own, "mnist-trajectory")
    fill(experiment, {"smc-t0.005": 2, "smc-t0.005-n16": 2, "hmc-gold-t0.005": 8}, np.random.default_rng(4))
    page.write(experiment)
    labels = islands.scored(experiment).labels
    text = (experiment.folder / "README.md").read_text()
    assert "| HMC (GS) |  | 1/8 of the chain | 125 |" in text
    lines = [
        line.split(" | ") for line in text.split("N at a fixed number of particles, τ = 0.02")[0].splitlines()
    ]
    sides = {line[0].strip("| "): line[1:] for line in lines[::-1]}
    smc, serial = sides["τ = 0.005, one process"][2], sides["τ = 0.005, one process"][5]
    assert smc == f"{906 * 32:.3g} ({906 * 32:.3g})" and serial == "not run (3.02e+04) |"
    assert sides["τ = 0.005, one process a particle"][2] == "906 (906)"
    by_particles = sides["32"]
    assert len(by_particles) == 9 and by_particles[:2] == ["evidence", ""]  # 64 particles are more than 32
    assert by_particles[2].endswith("(82.12)") and "not run" not in by_particles[2]
    assert "not run (81.47)" in by_particles[4]
    cells = {(cell.method.name, cell.row, cell.weighting): cell for cell in tables.cells(experiment, labels)}
    for way in ("evidence", "equal"):
        nll = cells["smc-t0.005-n16", 2, way].values["nll"][0]
        assert f"| 32 | {way} |" in text and f"{nll:.4f} (0.6270)" in text
    assert "- SMC∥, τ = 0.005: 1 of the paper's 10 realizations for P = 1, 2; not run for P = 4, 8." in text
    assert "Cells beside the paper's with one realization, so without a gap: 6." in text
    assert "- HMC∥, τ = 0.1: not run." in text and "every hundredth state" in text
    figure = figures.over_islands(experiment, tables.cells(experiment, np.zeros(40, int)))
    assert [axis.get_title() for axis in figure.axes if axis.get_title()] == list(experiment.panels)
    named = [label.get_text() for label in figure.legends[0].get_texts()]
    assert set(named) >= {"SMC∥", "HMC", "equal weights", "the paper's"}  # serial chains have crosses only


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


def test_lines_over_lengths_are_of_one_problem(own: Path) -> None:
    """What was run on other data has no place between two lengths; one island has no panel over P."""
    rng = np.random.default_rng(9)
    experiment = experiments.load(own, "cifar10-short")
    fill(experiment, {"smc-5000": 1, "smc-5000-m1": 1, "smc": 1, "hmc-parallel-5000": 1}, rng)
    cells = tables.cells(experiment, rng.integers(0, 10, 40))
    axes = figures.synopsis(experiment, cells).axes
    assert len(axes) == 2
    epochs = {bars.get_label(): bars[0].get_xdata().tolist() for bars in axes[0].containers}
    assert epochs["SMC∥"] == [130, 651.5] and epochs["HMC∥"] == [550]
    said = figures.about_synopsis(experiment, cells)
    assert said.startswith("What longer runs bring") and "those on other data (all training images)" in said


def test_messages_that_differ_by_numbers_are_of_one_kind() -> None:
    said = [
        "island ESS 1.0 of 10: few",
        "island ESS 1.8 of 4: few",
        "12 of 32 chains hardly moved",
        "3 of 8 chains hardly moved",
    ]
    assert page.one_of_each_kind(said) == [said[0], said[2]]


def test_gaps_and_entropies_that_say_nothing(own: Path) -> None:
    """Two realizations may agree by chance, and one draw has no epistemic entropy."""
    experiment = experiments.load(own, "mnist-trajectory")
    single = next(method for method in experiment.methods if method.name == "hmc-single-t0.005")
    values = {"accuracy": (90.0, 90.0), "nll": (0.5, 0.5000001), "epistemic": (1e-7, 2e-7), "entropy": (1.0, 1.1)}
    row = page._row(tables.Cell(single, 1, "equal", values, (0, 1), 900.0, None)).split(" | ")
    assert "**< −99**" in row and row[11] == "0"


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


def test_an_island_in_shards(own: Path) -> None:
    """Four runs of 8 chains are an island of 32: the mean of their probabilities, a row once all are there."""
    rng = np.random.default_rng(8)
    experiment = experiments.load(own, "mnist-trajectory")
    method = next(method for method in experiment.methods if method.shards == 4)
    assert (method.width, method.shard_width, method.draws(2)) == (32, 8, 64)
    queued = [piece.places for piece in experiment.queue("standard") if piece.method is method]
    assert queued == [tuple(experiments.Place(0, shard) for shard in range(4))]
    mine = [place for piece in experiment.queue("paper") if piece.method is method for place in piece.places]
    for begin in range(0, len(mine), 4):  # shards of one island follow each other
        first = mine[begin]
        assert mine[begin : begin + 4] == [
            experiments.Place(first.realization, first.island + shard) for shard in range(4)
        ]
    assert method.particle_epochs("standard") == 32 * method.epochs
    fill(experiment, {method.name: 7}, rng)
    path_of = lambda shard: islands.path_of(experiment, method, experiments.Place(0, shard))
    found = [islands.read(path_of(shard)) for shard in range(4)]
    mixed = np.mean([island.probabilities for island in found if island is not None], axis=0)
    labels = rng.integers(0, 10, 40)
    one, two, _ = (cell for cell in tables.cells(experiment, labels) if cell.method is method)
    assert one.values["nll"][0] == pytest.approx(judge.log_loss(labels, mixed, labels=range(10)))
    assert one.realizations == (0,) and two.realizations == ()


def test_only_chains_that_know_nothing_of_each_other_are_run_in_shards(own: Path) -> None:
    settings = own / "mnist-trajectory" / "settings.toml"
    whole = settings.read_text()
    for other in ("shards = 4\nparts = 2\ndraws = 2", 'shards = 4\nsampler = "smc"'):
        before = 'sampler = "mcmc"\nparticles = 8\nshards = 4'
        settings.write_text(whole.replace(before, f"particles = 8\n{other}"))
        with pytest.raises(ValueError, match=r"hmc-parallel-t0\.1: shards=4 are for"):
            experiments.load(own, "mnist-trajectory")
    settings.write_text(whole.replace("shards = 4", "shards = 0"))
    with pytest.raises(ValueError, match="shards=0 must be at least 1"):
        experiments.load(own, "mnist-trajectory")


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
        chains = 1 if method.parts > 1 else extent.islands * method.shards
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
