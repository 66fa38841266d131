"""Studies on tractable targets: their truths, fits, queue and pages; each runs in small, cut and resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from experiments.studies import __main__ as command
from experiments.studies import (
    averages,
    estimates,
    fits,
    page,
    study,
    targets,
    theory,
    together,
)
from sklearn import metrics as judge

import isles
from isles.reproduce import experiments
from study_pieces import ROOT, without_pieces

files_at_hand = pytest.mark.skipif("ISLES_DATA" not in os.environ, reason="ISLES_DATA is not set")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Studies of a test's own."""
    return without_pieces(tmp_path)


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


def test_both_averages_of_draws() -> None:
    """One row, two classes: the odds of averaged logits are the geometric mean of the draws' odds."""
    each = np.array([[[0.9, 0.1]], [[0.5, 0.5]]])  # odds of 9 and of 1
    found = averages.scored(each, np.array([0.5, 0.5]), np.array([0]))
    assert found["nll_probabilities"] == pytest.approx(-np.log(0.7), abs=1e-6)
    assert found["nll_logits"] == pytest.approx(-np.log(3 / 4), abs=1e-6)
    assert found["nll_draws"] == pytest.approx(-np.log(0.45) / 2, abs=1e-6)
    assert found["entropy_probabilities"] == pytest.approx(scipy.stats.entropy([0.7, 0.3]), abs=1e-6)


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
    "name", [pytest.param(name, marks=files_at_hand if name in ("credit", "rows") else ()) for name in study.NAMES]
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


def test_processes_that_fail_or_wait_for_ever_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"problem": {"data": "no such data", "model": "cnn"}, "seed": 1, "shared": True}
    with pytest.raises(RuntimeError, match=r"(?s)process 0 of 1 ended with exit code 1.*no such data"):
        together.launch(job, 1, epochs=1)
    monkeypatch.setattr(together, "PATIENCE", 0.2)
    with pytest.raises(RuntimeError, match=r"process 0 of 1 took too long"):
        together.launch(job, 1, epochs=1)


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
