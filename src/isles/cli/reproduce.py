"""The command that reproduces experiments."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from isles import checks
from isles.cli import output
from isles.cli.app import ExitCode, UsageError, app
from isles.cli.runs import Json
from isles.cli.settings import ENGINES, gather, takes
from isles.reproduce import experiments


@app.command()
@takes(["workers", "max_seconds", "progress"])
def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment; see --list.", show_default=False)] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the experiments and what they cost.")] = False,
    budget: Annotated[str, typer.Option(help="quick, standard, or paper.")] = "standard",
    folder: Annotated[Path, typer.Option(help="Where experiments live.")] = Path("experiments"),
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this method, by its name in settings.toml; may be repeated.", show_default=False),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Only write the page anew from the islands there.")] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            help="local, serial, ray; or slurm, which says how to submit what is left.", show_default=False
        ),
    ] = None,
    json: Json = False,
    **settings: Any,
) -> int:
    """Run one of the published experiments, or go on with it, and write its page.

    Every island that is finished is kept in experiments/NAME/islands; the same command goes on from there.
    **quick** is a small one of the same kind, kept apart; **paper** is the whole of it, for a cluster.

    **Examples**

        isles reproduce --list

        isles reproduce mnist-short --max-seconds 3600

        isles reproduce mnist-short --only smc-m5 --only hmc-parallel-m5

        isles reproduce mnist-short --budget paper --engine ray

        isles reproduce mnist-short --budget paper --engine slurm
    """
    chosen = gather(None, settings) | ({} if engine is None else {"engine": engine})
    try:
        if listed or name is None:
            return show(folder, json)
        checks.choice("budget", budget, experiments.BUDGETS)
        if engine is not None:
            checks.choice("engine", engine, [*ENGINES, "slurm"])
        experiment = experiments.load(folder, name, budget)
        for method in only or ():
            checks.choice("only", method, [one.name for one in experiment.methods])
    except ValueError as error:
        raise UsageError(str(error)) from error
    from isles.reproduce import page as pages
    from isles.reproduce import work

    if budget == "quick":
        experiment = experiments.apart(experiment)
    if engine == "slurm" and not page and chosen.keys() - {"engine", "progress"}:
        raise UsageError("--workers and --max-seconds are for engines that run here; leave them out with slurm")
    complete, folders = True, list[Path]()
    try:
        if engine == "slurm" and not page:
            folders = work.define(experiment, budget, only or ())
            complete = not folders
        elif not page:
            complete = work.run(experiment, budget, only=only or (), say=output.say, **chosen)
    except ValueError as error:  # other data, or other settings, than those of the islands there
        raise UsageError(str(error)) from error
    except KeyboardInterrupt as error:
        work.harvest(experiment)
        pages.write(experiment)
        raise KeyboardInterrupt("stopped; what was saved is kept, and the same command goes on") from error
    work.harvest(experiment)
    pages.write(experiment)
    if folders:
        hand_over(folders, json)
        call = ["isles", "reproduce", str(name), "--budget", budget, "--folder", str(folder)]
        gather_call = shlex.join([*call, *(word for method in only or () for word in ("--only", method))])
        output.say(f"then gather them with {gather_call} --page; without --page, what is missing is run here")
    output.say(f"see {experiment.folder / 'README.md'}")
    return ExitCode.OK if complete else ExitCode.PARTIAL


def hand_over(folders: list[Path], json: bool) -> None:
    """Say how runs that are defined are submitted to SLURM."""
    if json:
        output.show_json({"runs": [str(folder) for folder in folders]})
        return
    output.say(f"{len(folders)} runs are defined; submit them, with the limits of your cluster, with")
    typer.echo("\n".join(shlex.join(["isles", "slurm", str(folder), "--submit"]) for folder in folders))


def show(folder: Path, json: bool) -> int:
    """The experiments, what is done, and what is left to do on this machine."""
    names = experiments.names(folder)
    if not names:
        raise UsageError(f"{folder} holds no experiments; run in a clone of isles' repository, or give --folder")
    from isles.engines.local import usable_cpus
    from isles.reproduce.forecast import forecast, remembered

    rate = remembered(output.say)
    rows = [forecast(experiments.load(folder, name), rate) for name in names]
    if json:
        output.show_json([row._asdict() for row in rows])
    else:
        columns = ("experiment", "islands done", "hours left", "hours in all", "paper's, hours", "title")
        table = [
            (
                row.experiment,
                f"{row.done} of {row.islands}" if row.islands else "paper only",
                *("needs data" if hours is None else f"{hours:.2g}" for hours in row[-3:]),
                row.title,
            )
            for row in rows
        ]
        output.show_table(columns, table)
        known = [row for row in rows if row.hours_left is not None]
        left, whole = (sum(getattr(row, name) for row in known) for name in ("hours_left", "standard_hours"))
        output.say(
            f"{left:.2g} of {whole:.2g} hours are left of all that have their data, on the {usable_cpus()} CPUs "
            f"of this machine and with the data at hand; studies have a list of their own: python -m "
            f"experiments.studies --list"
        )
    return ExitCode.OK
