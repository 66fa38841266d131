"""The comparisons at tiny sizes: fits that are kept, scores against other code, and a page made from results."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import isles

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # so short runs deserve warnings


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_the_page_is_made_from_the_results() -> None:
    from benchmarks import fits

    _, figures = fits.PAGE.read_text().split(fits.MARK)
    assert figures.strip() == fits.figures().strip()


def test_finished_fits_are_kept_and_others_made(tmp_path: Path, capsys: Any) -> None:
    from benchmarks import fits

    made = []

    def some(names: str, size: int = 1) -> list[Any]:
        run = lambda name: made.append(name) or {"seconds": 1.0}
        return [fits.Fit(name, {"size": size}, lambda name=name: run(name)) for name in names]

    fits.work(tmp_path, some("ab"), max_seconds=0)
    assert made == [] and "2 fits are left" in capsys.readouterr().out
    fits.work(tmp_path, some("ab"))
    (tmp_path / "c.partial").write_text("{")  # what a kill leaves
    fits.work(tmp_path, some("abc"), max_seconds=1000)
    assert made == ["a", "b", "c"] and not list(tmp_path.glob("*.partial"))
    fits.work(tmp_path, some("b", size=2))
    assert made == ["a", "b", "c", "b"]
    found = fits.read(tmp_path)
    assert [row["settings"]["size"] for row in found] == [1, 2, 1]
    assert all(row["machine"]["processor"] and row["versions"]["jax"] for row in found)


def test_tabular_at_tiny_sizes(tmp_path: Path) -> None:
    from benchmarks import fits, tabular

    assert tabular.figures(tmp_path).endswith("Not run.\n")
    keep = lambda fit: fit.settings["fold"] < 2 and fit.settings["method"] != "MLP"
    for data in ["iris", "diabetes"]:
        fits.work(tmp_path, filter(keep, tabular.all_fits(1, [data], quick=True)))
    page = tabular.figures(tmp_path)
    cells = [line.split(" | ") for line in page.splitlines() if line.startswith(("| iris", "| diabetes"))]
    assert [(line[0], line[1], line[2]) for line in cells] == [
        (f"| {data}", method, "2")
        for data, linear in [("iris", "logistic regression"), ("diabetes", "ridge")]
        for method in ("isles", linear, "random forest")
    ]
    rows = fits.read(tmp_path)
    mean = np.mean(
        [row["nll"] for row in rows if row["settings"] == row["settings"] | {"data": "iris", "method": "isles"}]
    )
    assert cells[0][4].startswith(f"{mean:.3f}") and "clearly ahead" in page


def test_scores_of_classes_are_scikit_learns() -> None:
    from benchmarks import tabular

    x, y = load_iris(return_X_y=True)
    train, test = np.arange(150) % 2 == 0, np.arange(150) % 2 == 1
    model = LogisticRegression(max_iter=1000)
    found = tabular.score_classes(model, x, y, np.flatnonzero(train), np.flatnonzero(test))
    probabilities = model.predict_proba(x[test])
    assert found["accuracy"] == pytest.approx(model.score(x[test], y[test]))
    assert found["nll"] == pytest.approx(log_loss(y[test], probabilities), rel=1e-4)
    row = found | {"settings": {"repeat": 0, "fold": 0}}
    whole = isles.metrics.ece(probabilities, y[test])
    assert tabular.calibration_error([row, row]) == pytest.approx([whole], abs=1e-4)


def test_scores_of_values_and_verdicts() -> None:
    from benchmarks import tabular

    y, mean, residuals = np.random.default_rng(0).normal(size=(3, 200))
    std = np.sqrt(np.mean(residuals**2))
    nll, cover = tabular.gaussian_scores(mean, residuals, y)
    assert nll == pytest.approx(-stats.norm.logpdf(y, mean, std).mean())
    assert cover == np.mean(np.abs(stats.norm.cdf(y, mean, std) - 0.5) <= 0.45)
    row = lambda fold, nll: {"settings": {"repeat": 0, "fold": fold}, "nll": nll}
    ours = [row(fold, 1.0 + 0.5 * fold) for fold in range(4)]
    shifted = lambda by: [row(fold, 1.0 + 0.5 * fold + by[fold]) for fold in range(4)]
    judge = lambda by: tabular.verdict(ours, shifted(by), "nll", "nll", -1)
    assert judge([0.1, 0.11, 0.12, 0.1]) == "worse" and judge([-0.1, -0.11, -0.1, -0.12]) == "better"
    assert judge([0.1, -0.1, 0.12, 0.1]) == "" and tabular.verdict(ours, ours[:1], "nll", "nll", -1) == ""


def fake_wheel(folder: Path) -> Path:
    """An environment with a table of the shape of airfoil's in place of bde's."""
    data = folder / "lib" / "python3.11" / "site-packages" / "bde" / "data"
    data.mkdir(parents=True)
    x = np.random.default_rng(0).normal(size=(150, 5))
    lines = [f"{','.join(map(str, row))},{row[0] + 0.1 * row[1]}" for row in x]
    (data / "airfoil.csv").write_text("\n".join(["a,b,c,d,e,target", *lines]))
    return folder / "bin" / "python"


def test_bde_reads_scores_and_shows(tmp_path: Path) -> None:
    from benchmarks import bde, fits

    with pytest.raises(SystemExit, match=r"no bde in the environment of .*make \.venv-bde/ready"):
        bde.data_folder(tmp_path / "bin" / "python")
    options = {"bde_python": fake_wheel(tmp_path), "cores": 1, "seeds": 1, "data": ["airfoil"], "quick": True}
    ours, other = bde.all_fits(SimpleNamespace(**options, splits=2, only=["isles"]))
    assert (other.name, other.settings["split"]) == ("airfoil-isles-0-split-1", 1)
    fits.work(tmp_path / "results", [ours])
    (row,) = fits.read(tmp_path / "results")
    chains, steps = 2 * 2, 10 + 4
    looks = 2 * (1 + 8)  # at the metric, of mean and noise: after the climb, and before the steps that adapt
    assert row["draws"] == chains * 5
    assert row["evaluations"] == chains * (1 + 20 + 1 + looks + 64 + 5 * steps)
    # what the child process of bde would have left, with the scores of the other
    theirs = row["settings"] | {"method": "bde"}
    (tmp_path / "results" / "airfoil-bde-0.json").write_text(
        json.dumps(row | {"settings": theirs, "seconds": 9e4})
    )
    page = bde.figures(tmp_path / "results")
    assert f"| isles | 1 | {row['rmse']:.4f} | {row['nll']:.4f} |" in page and "| 90000 |" in page
    assert "| bde, published | 5 | 0.1215 | -0.9126 |" in page and "100 training rows, 30 test rows" in page
    assert "other random splits" not in page
    elsewhere = json.dumps(row | {"settings": theirs | {"split": 1}, "rmse": 0.25})
    (tmp_path / "results" / "airfoil-bde-0-split-1.json").write_text(elsewhere)
    split = bde.figures(tmp_path / "results").split("other random splits")[1]
    assert f"| 0 | {row['rmse']:.4f} | {row['rmse']:.4f} | {row['nll']:.4f} |" in split
    assert "| 1 |  | 0.2500 |" in split


def test_scores_of_a_mixture() -> None:
    from benchmarks import bde

    rng = np.random.default_rng(0)
    means, stds = rng.normal(size=(7, 50)), rng.uniform(0.2, 2, size=(7, 50))
    weights, y = rng.dirichlet(np.ones(7)), rng.normal(size=50)
    found = bde.score(means, stds, weights, y)
    draws = rng.choice(7, p=weights, size=100_000)
    sampled = means[draws] + stds[draws] * rng.normal(size=(100_000, 1))
    mean, std = sampled.mean(axis=0), sampled.std(axis=0)
    assert found["nll"] == pytest.approx(-stats.norm.logpdf(y, mean, std).mean(), abs=0.02)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), abs=0.02)
    low, high = np.quantile(sampled, [0.05, 0.95], axis=0)
    assert found["coverage"] == np.mean((low <= y) & (y <= high))
    density = weights @ stats.norm.pdf(y, means, stds)
    assert found["mixture_nll"] == pytest.approx(-np.log(density).mean())


def test_bike_sharing_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    from benchmarks import bde

    path = tmp_path / "hour.csv"
    path.write_text(
        "instant,dteday,hr,temp,casual,registered,cnt\n1,2011-01-01,5,0.24,3,13,16\n2,2011-01-01,6,0.2,8,32,40"
    )
    x, y = bde.read_table(path)
    assert x.tolist() == [[5.0, 0.24], [6.0, 0.2]] and y.tolist() == [16.0, 40.0]


def test_starts_spend_their_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import fits, starts

    monkeypatch.setattr(starts, "BUDGETS", {"airfoil": [40]})
    monkeypatch.setattr(starts, "LEAPFROGS", {"airfoil": 5})
    options = SimpleNamespace(bde_python=fake_wheel(tmp_path), data=["airfoil"], quick=True)
    fits.work(tmp_path / "results", starts.all_fits(options))
    rows = {(row["settings"]["start"], row["settings"]["budget"]): row for row in fits.read(tmp_path / "results")}
    assert {key: row["epochs"] for key, row in rows.items()} == {
        ("prior", 40): 41,
        ("optimised", 40): 42,
    }
    assert rows["optimised", 40]["log_likelihood"] > rows["prior", 40]["log_likelihood"]
    cells = f"| {rows['prior', 40]['nll']:.3f} | {rows['optimised', 40]['nll']:.3f} |"
    assert f"| airfoil | 40 {cells}" in starts.figures(tmp_path / "results")
