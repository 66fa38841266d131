"""Commands that ask finished runs: for predictions, and side by side."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isles.cli import output
from isles.cli.app import UsageError, app
from isles.cli.runs import Json, ProblemOption, telling_how_to_go_on

if TYPE_CHECKING:
    from isles.posterior import Posterior

Asked = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run, or a file of a posterior.", show_default=False)
]
Test = Annotated[
    Path | None, typer.Option("--test", metavar="FILE.npz", help="Test inputs x and labels or values y.")
]
Data = Annotated[str | None, typer.Option("--data", metavar="NAME", help="Test rows of a data set of isles.")]


@app.command()
def predict(
    run: Asked,
    inputs: Annotated[
        Path, typer.Argument(metavar="INPUTS", help="A .csv file, or an .npz file with x.", show_default=False)
    ],
    to: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="A .csv or .npz file; - is CSV on stdout.")
    ] = "-",
    problem: ProblemOption = None,
    json: Json = False,
) -> None:
    """Predict for inputs with a run that is finished, and say how certain that is.

    Classes: label, probabilities, and the entropy in nats with its epistemic part (what more data could remove)
    and its aleatoric part. Values: mean, std, and quantiles of 5, 50 and 95 %. The training data are not needed if
    the network is one of isles.models; else the run's problem is imported, or the one of --problem.

    **Examples**

        isles predict runs/digits new.csv

        isles predict runs/mine inputs.npz --problem mine:problem --output predictions.npz
    """
    from isles.cli import arrays

    path = None if to == "-" else Path(to)
    if path is not None and path.suffix not in (".csv", ".npz"):
        raise UsageError(f"--output {to} must end in .csv or .npz, or be - for stdout")
    if json and path is not None:
        raise UsageError(f"--json writes to stdout, and --output to {to}; leave one out")
    posterior = read(run, problem, predicting=True)
    found = arrays.columns(posterior.predict(arrays.read_inputs(inputs, arrays.row_shape(posterior))))
    if json:
        output.show_json({name: values.tolist() for name, values in found.items()})
        return
    arrays.write_columns(found, path)
    if path is not None:
        output.say(f"{len(next(iter(found.values())))} predictions in {path}")


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or files.", show_default=False)
    ],
    test: Test = None,
    data: Data = None,
    problem: ProblemOption = None,
    json: Json = False,
) -> None:
    """Show runs side by side: evidence, diagnostics, cost, and scores where there are test data.

    **Examples**

        isles compare runs/smc runs/hmc --data digits

        isles compare runs/wide runs/narrow --test test.npz --json
    """
    names = [os.fspath(run) for run in runs]
    if len(set(names)) < len(names):
        raise UsageError("a run is given twice; give each once")
    predicting = test is not None or data is not None
    posteriors = {name: read(Path(name), problem, predicting=predicting) for name in names}
    facts: dict[str, dict[str, Any]] = {name: describe(found) for name, found in posteriors.items()}
    if predicting:
        from isles import metrics
        from isles.cli import arrays

        for name, posterior in posteriors.items():
            x, y = arrays.read_test(test, data, arrays.row_shape(posterior)) or ((), ())
            facts[name] |= metrics.evaluate(posterior.predict(x), y)
    weighed = [Path(name) for name, posterior in posteriors.items() if posterior.log_evidence is not None]
    if len(set(filter(None, map(data_of, weighed)))) > 1:
        output.show_warning("these runs are of different data: their log evidences cannot be compared")
    if json:
        key = lambda text: text.replace(",", "").replace(" ", "_")
        named = {name: {key(fact): value for fact, value in found.items()} for name, found in facts.items()}
        messages = {name: list(posterior.warnings) for name, posterior in posteriors.items()}
        output.show_json({name: {**found, "messages": messages[name]} for name, found in named.items()})
        return
    rows = list(dict.fromkeys(row for found in facts.values() for row in found))
    show = lambda value: "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    output.show_table(("", *names), [(row, *(show(facts[name].get(row)) for name in names)) for row in rows])
    for name, posterior in posteriors.items():
        for message in posterior.warnings:
            output.show_warning(f"{name}: {message}")


def data_of(run: Path) -> str | None:
    """The checksum of the data that a run was begun with; a file does not hold it."""
    from isles.store.folder import RunFolder

    if not run.is_dir():
        return None
    return str(RunFolder(run).definition().facts["problem"].get("data"))


def describe(posterior: Posterior) -> dict[str, Any]:
    """What a run is, and what its diagnostics say."""
    sampler = posterior.sampler.partition("(")[0]
    kernel = posterior.sampler.partition("kernel=")[2].partition("(")[0]
    rows = posterior.diagnostics().rows
    what = f"{sampler} with {kernel}" if kernel else sampler
    return {"sampler": what, "parameters": posterior.layout.size, **rows, "warnings": len(posterior.warnings)}


def read(run: Path, problem: str | None, *, predicting: bool) -> Posterior:
    """The posterior of a run, with the network of the problem that is named, or else of the run's own."""
    import isles
    from isles.definition import import_problem

    if not run.exists():
        raise FileNotFoundError(f"there is no {run}; give the folder of a run, or a file of a posterior")
    merge = shlex.join(["isles", "merge", os.fspath(run), "--allow-partial", "--output", "FILE"])
    with telling_how_to_go_on(run, f", {merge} writes what is finished, which can be given instead"):
        if problem is not None:
            return isles.load(run, problem=import_problem(problem))
        own = own_problem(run, predicting=predicting)
        if own is None:
            return isles.load(run)
        try:
            found = import_problem(own)
        except Exception as error:
            raise UsageError(
                f"{run} was begun with problem {own!r}, which is needed here, and which fails: "
                f"{type(error).__name__}: {error}; go to the folder that it is imported from, or give --problem"
            ) from error
        return isles.load(run, problem=found)


def own_problem(run: Path, *, predicting: bool) -> str | None:
    """The import path of a run's problem, where a function or a structure is needed that no file holds."""
    from isles.store.folder import RunFolder

    if not run.is_dir():
        return None
    facts = RunFolder(run).definition().facts
    likelihood = facts.get("likelihood") or {}
    lacks = "network" in likelihood and None in (likelihood["network"], likelihood.get("noise_std", 0.0))
    if (predicting and lacks) or facts.get("layout", {}).get("structure") is None:
        reference: str | None = facts.get("problem", {}).get("reference")
        return reference
    return None
