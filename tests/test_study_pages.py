"""Pages of studies: what they say of pieces that are made up, and that the committed ones follow from theirs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from experiments.studies import (
    communication,
    credit,
    ensembles,
    evidence,
    exchange,
    free_parameters,
    network,
    page,
    study,
    subsets,
)
from sklearn import metrics as judge

from study_pieces import ROOT, keep, without_pieces
from truth import assert_same_but_for_rounding


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Studies of a test's own."""
    return without_pieces(tmp_path)


def test_credit_page_from_made_up_pieces(own: Path) -> None:
    """Estimates whose variance is 1/NP and whose bias is known give that slope, variance and bias."""
    chosen = study.load("credit", "standard", own)
    rng = np.random.default_rng(1)
    for cell in chosen.cells:
        for part in range(40):
            if cell.name == "reference":
                keep(chosen, cell, part, {"mean": np.ones(15), "error": np.zeros(15)})
            elif cell.name == "ais-check":
                keep(chosen, cell, part, {"ess": [0.9, 0.5], "cumulative_ess": [0.9, 0.25]})
            else:
                samples = 32 * np.array(cell.facts["P"])[:, None, None]
                drawn = rng.normal(size=(len(samples), 5, 15)) / np.sqrt(samples)
                shift = 1.5 if cell.name == "mh" else 1.0
                costs = {"epochs": [1.0] * len(samples), "parallel_epochs": [1.0] * len(samples)}
                keep(chosen, cell, part, {"estimates": drawn + shift, "log_evidence_std": 0.5} | costs)
    page.write(chosen)
    facts = json.loads((chosen.folder / "results.json").read_text())["tables"]
    for method in credit.LABELS:
        # 200 realizations of 15 coordinates: a variance is known to √(2/3000) of itself
        np.testing.assert_allclose(np.array(facts[method]["variance"]) * facts[method]["NP"], 1, atol=4 * 0.026)
        assert facts[method]["slope"] == pytest.approx(-1, abs=0.05)
        assert facts[method]["squared_bias"][-1] == pytest.approx(0.25 if method == "mh" else 0, abs=5e-3)
        assert facts[method]["realizations"] == 200
    text = (chosen.folder / "README.md").read_text()
    assert "at least 0.50 N" in text and "511 of 2044" in text.replace("511, ", "")
    assert "not run" not in text


def test_free_parameters_page_from_made_up_pieces(own: Path) -> None:
    """Errors that follow the paper's law give its exponent; other cells are said not to have been run."""
    chosen = study.load("free-parameters", "standard", own)
    for cell in chosen.cells:
        if cell.facts["method"] == "smc" and cell.facts["N"] >= 96:
            error = 2.0 / (cell.facts["N"] * cell.facts["M"] ** 0.3789)
            found = {"equal": [4 * error] * 2, "mean_square": 4.0, "variance": 12.0, "epochs": 5.0}
            keep(chosen, cell, 0, found | {"parallel_epochs": 3.0})
    page.write(chosen)
    law = json.loads((chosen.folder / "results.json").read_text())["tables"]["fit"]
    assert law["exponent"] == pytest.approx(0.3789, abs=1e-6) and law["mape"] < 1e-3
    low = next(cell for cell in chosen.cells if cell.name == "smc-low")
    text = (chosen.folder / "README.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| SMC, N = 200 | low"))
    assert f"{2.0 / (200 * low.facts['M'] ** 0.3789):.3g}" in row and "0.216" in row
    assert any(line.startswith("| pCN, one chain | high | 0 | not run | 0.0676") for line in text.splitlines())
    assert free_parameters.STAGES * low.facts["M"] * 2 == pytest.approx(722, rel=0.05)


def test_notes_stand_before_the_tables(own: Path) -> None:
    chosen = study.load("evidence", "standard", own)
    (chosen.folder / "notes.md").write_text("## Against the paper\n\nIt is as it says.\n")
    page.write(chosen)
    said = (chosen.folder / "README.md").read_text()
    assert said.index("figure.svg") < said.index("\n## Against the paper\n\nIt is as it says.\n\n## Ẑ/Z")


def test_evidence_page_from_made_up_pieces(own: Path) -> None:
    """Biases of 8/N, of a third of that at every N, of none, and of none where one is due."""
    chosen = study.load("evidence", "standard", own)
    biases = {
        "hmc-frozen": lambda n: 0.0,
        "hmc": lambda n: 8 / n,
        "de": lambda n: 0.08,
        "pcn-frozen": lambda n: 1 / n,
    }
    for cell in chosen.cells:
        if cell.facts["method"] in biases:
            for part in range(4):
                found = {"bias": biases[cell.facts["method"]](cell.facts["N"]), "spread": 0.05}
                keep(chosen, cell, part, found)
    page.write(chosen)
    facts = json.loads((chosen.folder / "results.json").read_text())["tables"]
    assert {name: facts[name]["verdict"] for name in biases} == {
        "hmc-frozen": "unbiased", "hmc": "falls at least like 1/N", "de": "**falls slower than 1/N**",
        "pcn-frozen": "**biased**",
    }  # fmt: skip
    assert facts["hmc"]["error"]["32"] == pytest.approx(0.05 / np.sqrt(4 * 2048))
    text = (chosen.folder / "README.md").read_text()
    assert "| HMC, adaptive | +0.2500 ± 0.0006 | +0.0625 ± 0.0011 | +0.0156 ± 0.0022 |" in text
    assert "| stretch moves | not run | not run | not run |  |" in text
    assert evidence.verdict({32: (0.001, 0.01), 512: (0.0, 0.01)}, frozen=False) == "too small to see"


def test_subsets_page_from_made_up_pieces(own: Path) -> None:
    """Scores that depend on the training set and on the test images in a known way."""
    chosen = study.load("subsets", "standard", own)
    for cell in chosen.cells:
        if cell.facts["method"] == "smc" and cell.facts["subset"] < 3:
            tests = np.arange(10.0)
            keep(chosen, cell, 0, {"accuracy": 70 + 2 * cell.facts["subset"] + tests, "nll": 0.1 * tests})
    page.write(chosen)
    facts = json.loads((chosen.folder / "results.json").read_text())["tables"]["smc, accuracy"]
    assert facts["first"] == 70 and facts["other training images"] == [72, 74]
    assert facts["other test images"] == list(range(71, 80)) and facts["both"] == [76.5, 78.5]
    text = (chosen.folder / "README.md").read_text()
    assert "| SMC, M = 5 | accuracy, % | 70 | 73 ± 1.4 | 75 ± 2.7 | 77.5 ± 1.4 | 76.92 |" in text
    assert "| HMC∥, B = 200 | NLL | not run | not run | not run | not run | 0.7949 |" in text
    others = [subsets.rows(subset, 1000, 60_000) for subset in range(3)]
    assert (others[0] == np.arange(1000)).all() and len(set(others[1])) == 1000
    assert len(np.intersect1d(others[1], others[2])) < 100


def test_rows_page_from_made_up_pieces(own: Path) -> None:
    """Means and errors by the strength of the likelihood, beside the paper's; what is not there is said."""
    chosen = study.load("rows", "standard", own)
    for cell in chosen.cells:
        if cell.facts["M"] == 1 and cell.facts["strength"] == "as all":
            for part, accuracy in enumerate((70.0, 72.0)):
                scores = dict.fromkeys(("nll", "epistemic", "entropy", "parallel_epochs"), 0.5)
                keep(chosen, cell, part, scores | {"accuracy": accuracy, "power": 3.4688})
    page.write(chosen)
    text = (chosen.folder / "README.md").read_text()
    assert "| SMC∥, M = 1 | accuracy, % | not run | 71 ± 1 | 79.15 |" in text and "(here 3.47)" in text
    assert "| HMC∥, M = 5 | NLL | not run | not run | 0.3792 |" in text
    facts = json.loads((chosen.folder / "results.json").read_text())["tables"]["smc, M = 1, accuracy"]
    assert facts == {"as all": [70.0, 72.0], "paper": 79.15}


def test_scores_of_weighted_members_against_scikit_learn() -> None:
    rng = np.random.default_rng(4)
    inside, outside = rng.dirichlet(np.ones(10), (3, 40)), rng.dirichlet(0.3 * np.ones(10), (3, 30))
    labels, weights = rng.integers(0, 10, 40), np.array([0.5, 0.3, 0.2])
    found = ensembles.score(inside, outside, weights, labels)
    mixed, strange = (np.einsum("m,mnk->nk", weights, part) for part in (inside, outside))
    assert found["nll"] == pytest.approx(judge.log_loss(labels, mixed, labels=range(10)))
    assert found["accuracy"] == pytest.approx(100 * judge.accuracy_score(labels, mixed.argmax(axis=1)))
    entropy = lambda p: scipy.special.entr(p).sum(axis=-1)
    total = np.concatenate([entropy(mixed), entropy(strange)])
    flags = np.repeat([0, 1], [40, 30])
    assert found["auroc"] == pytest.approx(judge.roc_auc_score(flags, total))
    own = np.concatenate(
        [entropy(mixed) - weights @ entropy(inside), entropy(strange) - weights @ entropy(outside)]
    )
    assert found["auroc_epistemic"] == pytest.approx(judge.roc_auc_score(flags, own))
    assert (found["epistemic"], found["epistemic_outside"]) == pytest.approx((own[:40].mean(), own[40:].mean()))
    first = ensembles.merged(np.stack([inside, outside[:, :1].repeat(40, 1)]), np.ones((1, 2)))
    np.testing.assert_array_equal(first, inside[:2])  # the first two members of the first island


def test_overhead_by_hand() -> None:
    """64 particles of 1000 parameters on 2 processes, 10 leapfrogs of 1 ms, 10 µs and 1 GB/s."""
    wire = network.Network("wire", 1e-5, 1e9)
    assert network.stage_collectives(10) == 6 + 2 + 5 + 10 + 3
    # half of two arrays of 64,000 numbers, and of five sums of 1000 that go around twice
    assert network.stage_bytes(64, 1000, 2) == 256_000 + 20_000
    # (26 messages · 10 µs + 276 kB / (1 GB/s)) / (32 particles · 10 ms)
    share = network.overhead(64, 1000, 2, wire, leapfrogs=10, epoch_seconds=1e-3)
    assert share == pytest.approx(100 * (260e-6 + 276e-6) / 0.32)
    assert network.overhead(64, 1000, 1, wire, leapfrogs=10, epoch_seconds=1e-3) == 0
    four = network.overhead(64, 1000, 4, wire, leapfrogs=10, epoch_seconds=1e-3)  # half the work, two latencies
    assert four == pytest.approx(100 * (2 * 260e-6 + 1.5 * 276e-6) / 0.16)


def test_communication_page_from_made_up_pieces(own: Path) -> None:
    """Ten per cent more epochs at twenty per cent more time each are told apart; the rest has not been run."""
    chosen = study.load("communication", "standard", own)
    cell = {cell.name: cell for cell in chosen.cells}
    exchanged = {"resample_seconds": 0.3, "read_seconds": 0.1, "reduce_seconds": 0.01, "oversubscribed": False}
    one = {"epochs": 110, "stages": 5, "seconds": 33.0, "cpu_seconds": 49.5, "accuracy": 85.0, "nll": 0.46}
    one |= {"epistemic": 0.15, "entropy": 0.8}
    keep(chosen, cell["one-n128-k2"], 0, one | exchanged, particle_epochs=2 * 110)  # 2 · 33 s / 220: 300 ms
    scores = {name: [1.0] * 4 for name in communication.SCORES}
    islands = {"epochs": [90.0, 110.0] * 4, "seconds": 100.0, "stages": 5, "island_ess": [1, 2, 3, 4], **scores}
    keep(chosen, cell["islands-n32"], 0, islands, particle_epochs=800)  # 2 · 100 s / 800: 250 ms
    page.write(chosen)
    facts = json.loads((chosen.folder / "results.json").read_text())["tables"]["one-n128-k2"]
    assert facts["growth"] == pytest.approx([32, 10, 20])
    assert facts["communication"] == pytest.approx((5 * 0.4 + 110 * 0.01) / 33)
    assert facts["waiting"] == pytest.approx(0.25)
    text = (chosen.folder / "README.md").read_text()
    assert "| 128 | 2 | 10.0 % | 20.0 % | 32.0 % | 13 % | 22 % | 38 % | 40 % |" in text
    assert "| 256 | not run | not run | not run | not run | 22 % | 44 % | 75 % | 80 % |" in text
    assert "| 16 | 1 | 0 | not run" in text and "| 85 | 0.4744 | 0.1398 | 0.7992 | 514.6 | 97.62 |" in text
    assert "| 8 | 32 | 0 | not run" in text and "Stages have 22 leapfrogs, as measured" in text
    # an island of 110 epochs and 32 particles at 250 ms
    ours = "| 32 | 8 | 1 | " + "1 | " * 8 + "4.00 | 100 | 880 | 250 "
    assert f"{ours}| 85.26 | 0.46 | 0.1586 | 0.8066 | 669.3 | 98.78 |" in text


def test_scores_of_islands_as_one() -> None:
    """Two islands of one row: weights, entropies by hand."""
    probabilities = np.array([[[0.8, 0.2]], [[0.4, 0.6]], [[0.0, 1.0]]])
    found = communication.score(
        probabilities, np.array([0.1, 0.3, 9.0]), np.array([0.75, 0.25]), SimpleNamespace(y_test=np.array([0]))
    )
    total = scipy.special.entr([0.7, 0.3]).sum()
    expected = {"accuracy": 100, "nll": -np.log(0.7), "epistemic": total - 0.15, "entropy": total}
    assert found == pytest.approx(expected)


def test_ratio_is_of_the_same_draws() -> None:
    cell = study.Cell("c", {"P": 1, "realizations": 1}, 1, 1.0, "k")
    piece = lambda part, error: {"part": part, "found": {"evidence": [error], "mean_square": 2.0}}
    single = page.Ran(cell, [piece(0, 1.0), piece(1, 3.0), piece(2, 100.0)])
    many = page.Ran(cell, [piece(0, 2.0), piece(1, 6.0), piece(3, 100.0)])
    assert exchange.ratio(single, many, "evidence") == pytest.approx(0.5)
    assert exchange.ratio(single, page.Ran(cell, [piece(9, 1.0)]), "evidence") is None


def test_pieces_of_other_settings_are_refused(own: Path) -> None:
    chosen = study.load("exchange", "standard", own)
    cell = chosen.cells[0]
    other = study.Cell(cell.name, {**cell.facts, "realizations": 3}, 1, 1.0, cell.kind)
    keep(chosen, other, 0, {})
    with pytest.raises(ValueError, match=r"'realizations': 3.*remove pieces/trade-n1024-m1"):
        page.write(chosen)


@pytest.mark.parametrize("name", [name for name in study.NAMES if (ROOT / name / "results.json").exists()])
def test_pages_follow_from_the_committed_pieces(name: str, tmp_path: Path) -> None:
    """The committed page and results are what the committed pieces give."""
    shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("quick"))
    page.write(study.load(name, "paper", tmp_path))
    committed, again = (json.loads((place / name / "results.json").read_text()) for place in (ROOT, tmp_path))
    for fact in ("page_commit", "machine", "versions"):  # of who wrote it
        del committed[fact], again[fact]
    assert_same_but_for_rounding(again, committed)
    assert (tmp_path / name / "README.md").read_text() == (ROOT / name / "README.md").read_text()
