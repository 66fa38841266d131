"""Commands that ask finished runs: for predictions, and side by side."""

from __future__ import annotations

import os
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
) -> None:
    """Predict for inputs with a run that is finished, and say how certain that is.

    Classes: label, probabilities, and the entropy in nats with its epistemic part (what more data could remove)
    and its aleatoric part. Values: mean, std, and quantiles of 5, 50 and 95 %. The training data are not needed if
    the network is one of isles.models; else --problem gives the network back.

    **Examples**

        isles predict runs/digits new.csv

        isles predict runs/mine inputs.npz --problem mine:problem --output predictions.npz
    """
    from isles.cli import arrays

    path = None if to == "-" else Path(to)
    if path is not None and path.suffix not in (".csv", ".npz"):
        raise UsageError(f"--output {to} must end in .csv or .npz, or be - for stdout")
    posterior = read(run, problem)
    found = arrays.columns(posterior.predict(arrays.read_inputs(inputs, arrays.row_shape(posterior))))
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
    posteriors = {name: read(Path(name), problem) for name in names}
    facts: dict[str, dict[str, Any]] = {name: describe(found) for name, found in posteriors.items()}
    if test is not None or data is not None:
        from isles import metrics
        from isles.cli import arrays

        for name, posterior in posteriors.items():
            x, y = arrays.read_test(test, data, arrays.row_shape(posterior)) or ((), ())
            facts[name] |= metrics.evaluate(posterior.predict(x), y)
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


def describe(posterior: Posterior) -> dict[str, Any]:
    """What a run is, and what its diagnostics say."""
    sampler = posterior.sampler.partition("(")[0]
    kernel = posterior.sampler.partition("kernel=")[2].partition("(")[0]
    rows = posterior.diagnostics().rows
    what = f"{sampler} with {kernel}" if kernel else sampler
    return {"sampler": what, "parameters": posterior.layout.size, **rows, "warnings": len(posterior.warnings)}


def read(run: Path, problem: str | None) -> Posterior:
    """The posterior of a run, with the network of a problem where one is named."""
    import isles
    from isles.definition import import_problem

    if not run.exists():
        raise FileNotFoundError(f"there is no {run}; give the folder of a run, or a file of a posterior")
    with telling_how_to_go_on(run):
        return isles.load(run, problem=None if problem is None else import_problem(problem))
