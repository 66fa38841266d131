"""Commands about data sets, plans, predictions and comparisons; problems that need no code."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import isles
import named_problems
from isles import references
from isles.cli import main, output
from isles.definition import import_problem
from test_cli import bits, error_of

HERE = Path(__file__).parent
DIGITS = ["run", "digits", "--model", "logistic", "--train", "60", "--prior-std", "0.5", "--engine", "serial"]
CHAINS = ["--sampler", "mcmc", "--particles", "3", "--burn-in", "5", "--draws", "2", "--leapfrogs", "2"]
ISLANDS = ["--islands", "2", "--islands-per-block", "1"]
pytestmark = pytest.mark.filterwarnings("ignore::isles.checks.IslesWarning")


@pytest.fixture(scope="module", autouse=True)
def here() -> Any:
    """Problems are imported from this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)
        yield


@pytest.fixture(scope="module")
def digits(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert main([*DIGITS, *CHAINS, *ISLANDS, "--folder", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def curve(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "curve"
    command = ["run", "named_problems:curve?noise=0.2", "--engine", "serial", "--folder", str(folder)]
    assert main([*command, "--particles", "8", "--mutations", "1", "--leapfrogs", "2"]) == 0
    return folder


def some_images() -> np.ndarray:
    return isles.data.load("digits").x_test[:7]


def mixed_probabilities(folder: Path, x: np.ndarray) -> np.ndarray:
    """A logistic regression's predictions, draw by draw."""
    posterior = isles.load(folder)
    w, b = (np.asarray(posterior.draws[name], np.float64) for name in ("w1", "b1"))
    logits = np.einsum("pnkf,mf->pnmk", w, x.reshape(len(x), -1)) + b[:, :, None]
    return np.einsum("pn,pnmk->mk", posterior.weights, special.softmax(logits, axis=-1))


# --- problems by name -----------------------------------------------------------------------------------------


def test_a_reference_keeps_its_arguments() -> None:
    arguments = {"data": "a&b=c d%+", "hidden": (3, 4), "std": 1e-3, "train": 7}
    assert references.parse(references.write("a.b", "c", arguments)) == ("a.b", "c", arguments)
    assert references.parse("a.b:c.d") == ("a.b", "c.d", {})
    assert import_problem("named_problems:curve?noise=0.2").log_likelihood.noise_std == 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b", "must be like package.module:function"),
        ("a:b?", "name=value"),
        ("a:b?x", "name=value"),
        ("a:b?x=", "'x' has no value"),
        ("a:b?x=1&x=2", "'x' is given twice"),
        ("a:b?1=2", "'1' is no name"),
        ("a:b;import os?x=1", "must be like"),
    ],
)
def test_a_bad_reference_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        references.parse(text)


def test_a_reference_must_fit_its_function() -> None:
    with pytest.raises(ValueError, match=r"unexpected keyword argument 'noize'.*give what curve takes"):
        import_problem("named_problems:curve?noize=0.2")


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ("data=digits&model=mlp&hidden=10", 65 * 10 + 11 * 10),
        ("data=digits&model=mlp&hidden=5,4&activation=tanh", 65 * 5 + 6 * 4 + 5 * 10),
        ("data=digits&model=cnn&channels=2", 2 * 9 + 2 + (2 * 16 + 1) * 10),
        ("data=mnist&model=cnn", 7890),
        ("data=digits&model=logistic&kaiming=torch", 65 * 10),
    ],
)
def test_built_in_problems_have_the_size_of_their_network(arguments: str, size: int) -> None:
    problem = import_problem(f"isles.builtin:problem?{arguments}&train=20")
    assert (problem.dimension, problem.rows) == (size, 20)


def test_the_prior_of_a_built_in_problem_is_the_one_asked_for() -> None:
    """Its log density at zero is −Σ log(σ √2π)."""
    at_zero = lambda std: -np.sum(np.log(std) + 0.5 * np.log(2 * np.pi))
    wanted = {
        "prior_std=0.5": at_zero(np.full(650, 0.5)),
        "prior_std=0.5&bias_std=2": at_zero(np.r_[np.full(640, 0.5), np.full(10, 2.0)]),
        "kaiming=he": at_zero(np.full(650, np.sqrt(2 / 64))),
        "kaiming=torch": at_zero(np.full(650, np.sqrt(1 / (3 * 64)))),
    }
    for options, value in wanted.items():
        problem = import_problem(f"isles.builtin:problem?data=digits&model=logistic&train=20&{options}")
        zeros = problem.layout.unravel(np.zeros(650, np.float32))
        assert float(problem.prior.log_prob(zeros)) == pytest.approx(value, rel=1e-5), options


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("run digits --folder x", 2, "for the data set, add --model mlp, cnn or logistic"),
        ("run digits --folder x --hidden 3", 2, "--hidden needs --model"),
        ("run digit --folder x --model mlp", 2, "did you mean 'digits'?"),
        ("run mine --folder x --model mlp", 2, "'mine' is none of mnist, australian"),
        ("run digits --folder x --model mpl", 2, "did you mean 'mlp'?"),
        ("run digits --folder x --model mlp --hidden 3,x", 2, "must be whole numbers with commas"),
        ("run digits --folder x --model cnn --hidden 3", 2, "hidden=3 is not a setting of model cnn"),
        ("run digits --folder x --model mlp --prior-std 1 --kaiming he", 2, "leave one out"),
        ("run digits --folder x --model mlp --bias-std 1", 2, "bias_std=1.0 needs prior_std"),
        ("run digits --folder x --model mlp --train 99999", 2, "train=99999 is more than the"),
        ("plan nowhere:hills", 2, "cannot be imported"),
        ("plan", 2, "PROBLEM is missing"),
        ("data fetch mnits", 2, "did you mean 'mnist'?"),
        ("data encode digits", 2, "is not made by an encoder"),
        ("predict nowhere x.csv", 1, "there is no nowhere"),
        ("predict nowhere x.csv --output y.txt", 2, "must end in .csv or .npz"),
        ("compare nowhere nowhere", 2, "given twice"),
    ],
)
def test_mistakes_are_one_line(arguments: str, code: int, message: str, capsys: Any) -> None:
    assert message in error_of(capsys, *arguments.split(), code=code)


def test_a_built_in_problem_resumes_without_being_named(digits: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "run"
    assert main([*DIGITS, *CHAINS, *ISLANDS, "--folder", str(folder), "--max-epochs", "1"]) == 3
    assert main(["resume", str(folder), "--engine", "serial"]) == 0
    assert bits(folder) == bits(digits)
    assert main(["slurm", str(tmp_path / "array"), *DIGITS[1:-2], *CHAINS, *ISLANDS]) == 0
    asked = json.loads((tmp_path / "array" / "run.json").read_text())["problem"]
    assert asked == json.loads((digits / "run.json").read_text())["problem"]
    capsys.readouterr()
    assert "whose model cannot be changed" in error_of(capsys, "slurm", str(folder), "--model", "mlp", code=2)


# --- data and plans -------------------------------------------------------------------------------------------


def test_data_are_listed_and_read(capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("ISLES_CACHE", str(tmp_path))
    monkeypatch.delenv("ISLES_DATA", raising=False)
    assert main(["data", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert tuple(found) == isles.data.NAMES
    assert found["mnist"]["available"] and not found["imdb"]["available"]
    assert main(["data", "list"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table] == ["name", *isles.data.NAMES]
    assert main(["data", "fetch", "digits", "--train", "30", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["training_rows"], facts["test_rows"], facts["row"]) == (30, 355, [8, 8, 1])


def test_tables_show_brackets(capsys: Any) -> None:
    output.show_table(("a[b]", "c"), [("pip install 'isles[plot]'", "[bold]")])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["a[b]", "c"], ["pip", "install", "'isles[plot]'", "[bold]"],
    ]  # fmt: skip


def test_a_plan_counts_epochs(capsys: Any) -> None:
    """1 + 7 + 2·2 of each of 8 chains on 4 islands, pcn having one evaluation a step."""
    command = ["plan", "named_problems:hills", "--islands", "4", "--sampler", "mcmc", "--kernel", "pcn"]
    assert main([*command, "--particles", "8", "--burn-in", "7", "--draws", "3", "--thin", "2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["parallel_epochs"], plan["total_epochs"]) == (12, 12 * 8 * 4)


# --- predictions ----------------------------------------------------------------------------------------------


def test_classes_are_predicted_with_their_entropies(digits: Path, tmp_path: Path, capsys: Any) -> None:
    x = some_images()
    path = tmp_path / "inputs.csv"
    path.write_text(",".join(f"pixel{k}" for k in range(64)) + "\n")
    with open(path, "a") as file:
        np.savetxt(file, x.reshape(7, -1), delimiter=",")
    assert main(["predict", str(digits), str(path)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    found = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    wanted = mixed_probabilities(digits, x)
    np.testing.assert_allclose(np.stack([found[f"probability_{k}"] for k in range(10)], 1), wanted, rtol=1e-4)
    np.testing.assert_array_equal(found["label"], wanted.argmax(axis=1))
    np.testing.assert_allclose(found["entropy"], stats.entropy(wanted, axis=1), rtol=1e-4)
    np.testing.assert_allclose(found["epistemic"] + found["aleatoric"], found["entropy"], rtol=1e-6)
    # the same from and to the other format
    np.savez(tmp_path / "inputs.npz", x=x)
    assert main(["predict", str(digits), str(tmp_path / "inputs.npz"), "-o", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["probability"], wanted, rtol=1e-4)
        np.testing.assert_allclose(arrays["epistemic"], found["epistemic"], rtol=1e-4)
    assert main(["predict", str(digits), str(tmp_path / "inputs.npz"), "--json"]) == 0
    np.testing.assert_allclose(json.loads(capsys.readouterr().out)["probability"], wanted, rtol=1e-4)
    assert "did you mean 'digits'?" in error_of(capsys, "report", str(digits), "--data", "digts", code=2)


def test_values_are_predicted_with_quantiles(curve: Path, tmp_path: Path) -> None:
    """Below a quantile lies its share of the mixture of draws."""
    x = np.linspace(-1, 1, 5)[:, None]
    np.savez(tmp_path / "x.npz", x)
    out = tmp_path / "out.csv"
    assert main(["predict", str(curve), str(tmp_path / "x.npz"), "--output", str(out)]) == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert list(rows[0]) == ["mean", "std", "q05", "q50", "q95"]
    posterior = isles.load(curve)
    draws = {name: np.asarray(leaf, np.float64)[0] for name, leaf in posterior.draws.items()}
    hidden = np.tanh(np.einsum("nhi,mi->nmh", draws["w1"], x) + draws["b1"][:, None])
    means = np.einsum("noh,nmh->nm", draws["w2"], hidden) + draws["b2"]
    for level, name in [(0.05, "q05"), (0.5, "q50"), (0.95, "q95")]:
        quantiles = np.array([float(row[name]) for row in rows])
        below = posterior.weights[0] @ stats.norm.cdf(quantiles, means, 0.2)
        np.testing.assert_allclose(below, level, rtol=1e-4)
    np.testing.assert_allclose(
        [float(row["mean"]) for row in rows], posterior.weights[0] @ means, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "a,b\n", "no rows of numbers"),
        ("x.csv", "1,2\n3\n", "line 2: 1 values where 2 are due"),
        ("x.csv", "1,2\n3,b\n", "line 2: 'b' is no number"),
        ("x.csv", "1,2\n", "have shape (1, 2), and the run needs (rows, 8, 8, 1); write 64 values a line"),
        ("x.csv", "1,2\n3,nan\n", "line 2: nan is not finite"),
        ("x.csv", None, "No such file"),
        ("x.npz", "1,2\n", "is no .npz file"),
        ("x.txt", "1,2\n", "must be a .csv or an .npz"),
    ],
)
def test_bad_inputs_are_one_line(
    name: str, content: str | None, message: str, digits: Path, tmp_path: Path, capsys: Any
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert message in error_of(capsys, "predict", str(digits), str(tmp_path / name), code=2)


def test_a_network_of_ones_own_is_given_back_by_the_problem(curve: Path, tmp_path: Path, capsys: Any) -> None:
    posterior = isles.load(curve)
    mine = dataclasses.replace(posterior.likelihood, apply=named_problems.own_network)
    file, inputs = str(tmp_path / "mine.safetensors"), str(tmp_path / "x.csv")
    dataclasses.replace(posterior, likelihood=mine).save(file)
    Path(inputs).write_text("0.5\n")
    assert "cannot hold your network" in error_of(capsys, "predict", file, inputs, code=1)
    other = error_of(capsys, "predict", file, inputs, "--problem", "named_problems:own", code=1)
    assert "network, noise or data are not those of the run" in other  # its noise is another one
    assert main(["predict", file, inputs, "--problem", "named_problems:own?noise=0.2"]) == 0
    mean = float(capsys.readouterr().out.splitlines()[1].split(",")[0])
    assert mean == pytest.approx(posterior.predict([[0.5]]).mean[0], rel=1e-4)
    dataclasses.replace(posterior, likelihood=None).save(file)
    assert "does not say what it predicts" in error_of(capsys, "predict", file, inputs, code=2)


def test_a_run_remembers_where_its_network_is(curve: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """Each of two runs predicts with its own problem; one that cannot be found is said to be needed."""
    own = str(tmp_path / "own")
    command = ["run", "named_problems:own", "--engine", "serial", "--folder", own, "--kernel", "pcn"]
    assert main([*command, "--sampler", "mcmc", "--particles", "4", "--burn-in", "1"]) == 0
    capsys.readouterr()
    test = str(tmp_path / "test.npz")
    np.savez(test, x=np.array([[0.5], [0.1]]), y=np.zeros(2))
    assert main(["predict", own, test]) == 0
    mean = float(capsys.readouterr().out.splitlines()[1].split(",")[0])
    given = isles.load(own, problem=named_problems.own())
    assert mean == pytest.approx(given.predict([[0.5]]).mean[0], rel=1e-4)
    assert main(["compare", own, str(curve), "--test", test, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    for run, posterior in ((own, given), (str(curve), isles.load(curve))):
        wanted = np.sqrt(np.mean(posterior.predict([[0.5], [0.1]]).mean ** 2))
        assert scores[run]["rmse"] == pytest.approx(wanted, rel=1e-4)
    monkeypatch.delattr(named_problems, "own")
    message = error_of(capsys, "predict", own, test, code=2)
    assert "begun with problem 'named_problems:own'" in message and "give --problem" in message


# --- comparisons ----------------------------------------------------------------------------------------------


def test_evidences_of_different_data_are_not_to_be_compared(curve: Path, tmp_path: Path, capsys: Any) -> None:
    command = [
        *DIGITS,
        "--particles",
        "8",
        "--mutations",
        "1",
        "--leapfrogs",
        "2",
        "--folder",
        str(tmp_path / "d"),
    ]
    assert main(command) == 0
    capsys.readouterr()
    said = "different data: their log evidences cannot be compared"
    assert main(["compare", str(curve), str(tmp_path / "d"), "--json"]) == 0
    assert said in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "d")]) == 0
    assert said not in capsys.readouterr().err


def test_runs_stand_side_by_side(digits: Path, curve: Path, tmp_path: Path, capsys: Any) -> None:
    x, y = some_images(), isles.data.load("digits").y_test[:7]
    np.savez(tmp_path / "test.npz", x=x.reshape(7, -1), y=y)
    assert main(["compare", str(digits), str(curve), "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both[str(curve)]["log_evidence"] == isles.load(curve).log_evidence
    assert both[str(digits)]["sampler"] == "MCMC with HMC" and "log_evidence" not in both[str(digits)]
    assert both[str(digits)]["epochs_total"] == isles.load(digits).epochs.total
    assert main(["compare", str(digits), "--test", str(tmp_path / "test.npz"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)[str(digits)]
    wanted = mixed_probabilities(digits, x)
    assert scores["accuracy"] == np.mean(wanted.argmax(axis=1) == y)
    assert scores["nll"] == pytest.approx(-np.log(wanted[np.arange(7), y]).mean(), rel=1e-4)
    assert main(["compare", str(digits), str(curve)]) == 0
    out, err = capsys.readouterr()
    header, *rows = out.splitlines()
    assert header.split() == [str(digits), str(curve)]
    assert next(row for row in rows if row.startswith("parameters")).split() == ["parameters", "650", "10"]
    assert len([line for line in err.splitlines() if line.startswith("warning")]) == sum(
        len(isles.load(folder).warnings) for folder in (digits, curve)
    )
    for arguments, message in [
        (["--test", str(tmp_path / "test.npz"), "--data", "digits"], "leave one out"),
        (["--test", str(tmp_path / "test.csv")], "must be an .npz file"),
    ]:
        assert message in error_of(capsys, "compare", str(digits), *arguments, code=2)
