"""Studies on tractable targets: their truths, fits, queue and pages; each runs in small, cut and resumed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from experiments.studies import __main__ as command
from experiments.studies import (
    credit,
    ensembles,
    estimates,
    evidence,
    exchange,
    fits,
    free_parameters,
    network,
    page,
    study,
    subsets,
    targets,
    theory,
    together,
)
from sklearn import metrics as judge

import isles
from isles.reproduce import experiments

ROOT = Path(__file__).parent.parent / "experiments"
files_at_hand = pytest.mark.skipif("ISLES_DATA" not in os.environ, reason="ISLES_DATA is not set")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Studies of a test's own, with the settings that are committed and without their pieces."""
    for name in study.NAMES:
        (tmp_path / name).mkdir()
        shutil.copy(ROOT / name / "study.toml", tmp_path / name)
    return tmp_path


def keep(
    chosen: study.Study, cell: study.Cell, part: int, found: dict[str, Any], particle_epochs: int = 10
) -> None:
    """A piece as if it had been run."""
    path = chosen.path(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    piece = {
        "cell": cell.name, "facts": cell.facts, "part": part, "seed": 1, "particle_epochs": particle_epochs,
        "seconds": 1.0,
        "warnings": [], "found": found,
    }  # fmt: skip
    with open(path, "a") as file:
        file.write(json.dumps(piece, default=study.short) + "\n")


@pytest.mark.parametrize(
    ("observations", "noise", "dimension", "ones"), [(4, 0.01, 16, False), (32, 1.0, 16, True), (8, 1.0, 4, False)]
)
def test_gaussian_truth_by_conditioning(observations: int, noise: float, dimension: int, ones: bool) -> None:
    """Moments by conditioning the joint Gaussian of θ and y, the evidence as y's own density."""
    for draw in range(3):
        target = targets.gaussian(draw, observations=observations, noise=noise, dimension=dimension, ones=ones)
        x, y = (np.asarray(part, np.float64) for part in target.problem.data)
        marginal = x @ x.T + noise**2 * np.eye(observations)
        gain = x.T @ np.linalg.inv(marginal)
        np.testing.assert_allclose(target.mean, gain @ y, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(target.covariance, np.eye(dimension) - gain @ x, rtol=1e-5, atol=1e-8)
        log_evidence = scipy.stats.multivariate_normal.logpdf(y, np.zeros(observations), marginal)
        assert target.log_evidence == pytest.approx(log_evidence, rel=1e-8)
        if ones:
            assert abs(y - x @ np.ones(dimension)).mean() < 2 * noise


def test_mixture_truth_by_quadrature() -> None:
    target = targets.mixture(2)
    normal = scipy.stats.multivariate_normal
    density = lambda *z: 0.2 * normal.pdf(z, np.ones(2)) + 0.8 * normal.pdf(z, -np.ones(2))
    point = np.array([0.3, -1.7], np.float32)
    ratio = np.log(density(*point)) - normal.logpdf(point, np.zeros(2))
    assert float(targets.mixture_ratio(point)) == pytest.approx(ratio, abs=1e-5)
    ticks = np.linspace(-8, 8, 801)
    a, b = np.meshgrid(ticks, ticks, indexing="ij")
    heights = 0.2 * normal.pdf(np.dstack([a, b]), np.ones(2)) + 0.8 * normal.pdf(np.dstack([a, b]), -np.ones(2))
    whole = lambda values: scipy.integrate.simpson(scipy.integrate.simpson(values * heights, x=ticks), x=ticks)
    assert whole(np.ones_like(a)) == pytest.approx(1)  # the evidence
    assert target.log_evidence == 0
    np.testing.assert_allclose(target.mean, [whole(a), whole(b)], atol=1e-8)
    moments = np.array([[whole(a * a), whole(a * b)], [whole(a * b), whole(b * b)]])
    np.testing.assert_allclose(target.covariance, moments - np.outer(target.mean, target.mean), atol=1e-8)


@files_at_hand
def test_credit_likelihood_and_prior() -> None:
    problem = targets.credit()
    theta = np.linspace(-0.5, 0.5, 15).astype(np.float32)
    x, y = (np.asarray(part) for part in problem.data)
    assert x.shape == (690, 15) and (x[:, 0] == 1).all()
    np.testing.assert_allclose(x[:, 1:].std(axis=0), 1, rtol=1e-4)
    loss = judge.log_loss(y, scipy.special.expit(x.astype(np.float64) @ theta), normalize=False)
    assert float(problem.log_likelihood(theta, problem.data)) == pytest.approx(-loss, rel=1e-5)
    np.testing.assert_allclose(problem.prior.variances(), 100)


def test_fits_recover_a_known_exponent() -> None:
    rng = np.random.default_rng(0)
    n, m = np.meshgrid([100, 200, 400, 800], [16, 64, 256, 1024, 4096])
    exact = np.exp(1.5) / (n * m**0.3789)
    law = fits.power_law(n, m, exact)
    assert law.exponent == pytest.approx(0.3789) and law.constant == pytest.approx(1.5) and law.cells == 20
    assert law.mape == pytest.approx(0, abs=1e-9) and law.mse == pytest.approx(0, abs=1e-18)
    noise = np.exp(0.1 * rng.normal(size=n.shape))
    noisy = fits.power_law(n, m, exact * noise)
    # the standard error of a slope: sd of the noise over the root of the sum of squares of x
    error = 0.1 / np.sqrt(np.sum((np.log(m) - np.log(m).mean()) ** 2))
    assert abs(noisy.exponent - 0.3789) < 4 * error
    assert 4 < noisy.mape < 12  # E|e^x − 1| is about 8 % for x ~ N(0, 0.1²)
    assert fits.slope([1, 2, 4, 8], [8, 4, 2, 1]) == pytest.approx(-1)


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_islands_are_combined_as_the_posterior_does() -> None:
    case = theory.target()
    sampler = isles.SMC(isles.PCN(), particles=4, mutations=1)
    posterior = isles.sample(case.problem, sampler, islands=6, seed=3)
    evidence = posterior.island_log_evidence.reshape(2, 3)
    means = estimates.island_means(posterior).reshape(2, 3, -1)
    whole = estimates.combine(means.reshape(1, 6, -1), evidence.reshape(1, 6))
    np.testing.assert_allclose(whole[0], posterior.mean(), rtol=1e-5)
    np.testing.assert_allclose(
        estimates.combine(means.reshape(1, 6, -1), None)[0], posterior.with_weights("equal").mean(), rtol=1e-5
    )
    errors = estimates.prefix_errors(case, means, evidence, [1, 3])
    omega = scipy.special.softmax(evidence[1])
    np.testing.assert_allclose(errors["evidence"][1, 1], np.sum((omega @ means[1] - case.mean) ** 2))
    np.testing.assert_allclose(errors["equal"][0], np.sum((means[:, 0] - case.mean) ** 2, axis=1))


@pytest.mark.parametrize("name", study.NAMES)
def test_queue(name: str) -> None:
    """Every piece once, with its own seed; the paper's budget has all cells of the standard one, as they are."""
    standard, paper = (study.load(name, budget) for budget in ("standard", "paper"))
    queue = standard.queue()
    paths = [standard.path(cell) for cell in standard.cells]
    assert len(set(paths)) == len(paths)
    assert len({(cell.name, part) for cell, part in queue}) == len(queue) == sum(c.parts for c in standard.cells)
    assert len({standard.seed(cell, part) for cell, part in queue}) == len(queue)
    assert [part for _, part in queue] == sorted(part for _, part in queue)
    wider = {cell.name: cell for cell in paper.cells}
    for cell in standard.cells:
        assert wider[cell.name].facts == cell.facts and wider[cell.name].parts >= cell.parts
        assert cell.kind in standard.rates
    assert name not in experiments.names(ROOT)  # those of networks are another command's


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=files_at_hand if name == "credit" else ()) for name in study.NAMES]
)
def test_quick_run_is_cut_resumed_and_told(name: str, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = study.load(name, "quick", own)
    if chosen.alone:  # it starts processes, which would take longer to compile well than to run
        monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert not study.run(chosen, max_seconds=1e-9, say=lambda _: None) and not chosen.folder.exists()

    def cut(line: str) -> None:
        raise KeyboardInterrupt(line)

    with pytest.raises(KeyboardInterrupt, match=r"1/"):
        study.run(chosen, say=cut)
    page.write(chosen)  # from a single piece
    assert "not run" in (chosen.folder / "README.md").read_text().lower()
    (first,) = chosen.folder.glob("pieces/*.jsonl")
    before, said = first.read_text(), list[str]()
    assert study.run(chosen, workers=2 if name == "exchange" else 1, say=said.append)
    assert len(said) == len(chosen.queue()) - 1 > 0
    assert first.read_text().startswith(before)
    page.write(chosen)
    results = json.loads((chosen.folder / "results.json").read_text())
    assert results["pieces"] == len(chosen.queue()) and results["particle_epochs"] > 0
    assert results["command"] == f"python -m experiments.studies {name}"
    files = ("README.md", "results.json", "figure.svg", "figure.png")
    written = {file: (chosen.folder / file).read_bytes() for file in files}
    if name == "theory":  # the same for all, and figures take time
        page.write(chosen)
    assert {file: (chosen.folder / file).read_bytes() for file in files} == written
    said.clear()
    assert study.run(chosen, say=said.append) and not said


def test_a_piece_has_the_same_numbers_again(own: Path) -> None:
    chosen = study.load("theory", "quick", own)
    cell = next(cell for cell in chosen.cells if cell.name.startswith("fixed"))
    found = []
    for _ in range(2):
        study.run_piece(chosen, cell, 0)
        found.append(json.loads(chosen.path(cell).read_text()))
        chosen.path(cell).unlink()
    assert found[0]["found"] == found[1]["found"] and found[0]["seed"] == found[1]["seed"]
    assert found[0]["particle_epochs"] == 2 * 4 * (1 + 4)  # realizations × chains × (a prior draw and the burn-in)


def test_a_line_that_was_cut_short_is_run_again(own: Path) -> None:
    chosen = study.load("theory", "quick", own)
    cell = next(cell for cell in chosen.cells if cell.name.startswith("fixed"))
    study.run_piece(chosen, cell, 0)
    path, whole = chosen.path(cell), chosen.path(cell).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])  # as a killed process leaves it
    assert (cell, 0) in chosen.left()
    study.run_piece(chosen, cell, 0)
    assert (cell, 0) not in chosen.left() and len(chosen.pieces(cell)) == 1


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


def test_processes_that_fail_or_wait_for_ever_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"problem": {"data": "no such data", "model": "cnn"}, "seed": 1, "shared": True}
    with pytest.raises(RuntimeError, match=r"(?s)process 0 of 1 ended with exit code 1.*no such data"):
        together.launch(job, 1, epochs=1)
    monkeypatch.setattr(together, "PATIENCE", 0.2)
    with pytest.raises(RuntimeError, match=r"process 0 of 1 took too long"):
        together.launch(job, 1, epochs=1)


def test_communication_page_from_made_up_pieces(own: Path) -> None:
    """Ten per cent more epochs at twenty per cent more time each are told apart; the rest has not been run."""
    chosen = study.load("communication", "standard", own)
    cell = {cell.name: cell for cell in chosen.cells}
    exchanged = {"resample_seconds": 0.3, "read_seconds": 0.1, "reduce_seconds": 0.01, "oversubscribed": False}
    one = {"epochs": 110, "stages": 5, "seconds": 33.0, "cpu_seconds": 49.5, "accuracy": 85.0, "nll": 0.46}
    keep(chosen, cell["one-n128-k2"], 0, one | exchanged, particle_epochs=2 * 110)  # 2 · 33 s / 220: 300 ms
    scores = {f"{name}_{way}": [1.0] * 4 for name in ("accuracy", "nll") for way in ("evidence", "equal")}
    islands = {"epochs": [90.0, 110.0] * 4, "seconds": 100.0, "stages": 5, **scores}
    keep(chosen, cell["islands-n32"], 0, islands, particle_epochs=800)  # 2 · 100 s / 800: 250 ms
    page.write(chosen)
    facts = json.loads((chosen.folder / "results.json").read_text())["tables"]["one-n128-k2"]
    assert facts["growth"] == pytest.approx([32, 10, 20])
    assert facts["communication"] == pytest.approx((5 * 0.4 + 110 * 0.01) / 33)
    assert facts["waiting"] == pytest.approx(0.25)
    text = (chosen.folder / "README.md").read_text()
    assert "| 128 | 2 | 10.0 % | 20.0 % | 32.0 % | 13 % | 22 % | 38 % | 40 % |" in text
    assert "| 256 | not run | not run | not run | not run | 22 % | 44 % | 75 % | 80 % |" in text
    assert "| 8 | 32 | 0 | not run" in text and "Stages have 22 leapfrogs, as measured" in text
    # an island of 110 epochs and 32 particles at 250 ms
    assert "| 32 | 8 | 1 | 1 | 1 | 1 | 1 | 100 | 880 | 250 | 85.26 | 0.46 | 669.3 | 98.78 |" in text


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


def test_the_command(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--folder", str(own)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*study.NAMES, "all"]
    hours = [float(line[43:51]) for line in lines[1:]]
    assert hours[-1] == pytest.approx(sum(hours[:-1]), abs=0.03) and hours[-1] > 0
    given = ["theory", "--budget", "quick", "--folder", str(own)]
    assert command.main([*given, "--max-seconds", "1e-9"]) == 3
    assert "Not run: frozen-n4" in (own / "theory" / "quick" / "README.md").read_text()
    assert command.main([*given, "--page"]) == 0
    with pytest.raises(SystemExit):
        command.main(["theoyr"])
    with pytest.raises(ValueError, match=r"'theoyr' is none of credit"):
        study.load("theoyr")
    with pytest.raises(ValueError, match=r"'quik' is none of quick"):
        study.load("theory", "quik")


@pytest.mark.parametrize("name", [name for name in study.NAMES if (ROOT / name / "results.json").exists()])
def test_pages_follow_from_the_committed_pieces(name: str, tmp_path: Path) -> None:
    """The committed page and results are what the committed pieces give."""
    shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("quick"))
    page.write(study.load(name, "paper", tmp_path))
    committed, again = (json.loads((place / name / "results.json").read_text()) for place in (ROOT, tmp_path))
    for fact in ("commit", "machine", "versions"):  # of who wrote it
        del committed[fact], again[fact]
    assert again == committed
    assert (tmp_path / name / "README.md").read_text() == (ROOT / name / "README.md").read_text()
