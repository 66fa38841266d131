"""The command that hands a run to SLURM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from isles import references
from isles.cli import output
from isles.cli.app import UsageError, app
from isles.cli.runs import Config, Json, RunArgument, echo, refer
from isles.cli.settings import DEFINING, MODEL, SLURM, build_sampler, gather, takes


@app.command()
@takes([*MODEL, *DEFINING, "checkpoint_seconds", *SLURM])
def slurm(
    folder: RunArgument,
    problem: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROBLEM]",
            help="As package.module:function, or a data set with --model; not for a run that exists.",
        ),
    ] = None,
    config: Config = None,
    submit: Annotated[bool, typer.Option("--submit", help="Run sbatch, rather than saying how.")] = False,
    json: Json = False,
    **settings: Any,
) -> None:
    """Define a run in a folder, and write the SLURM scripts that work it out.

    RUN/slurm/array.sh is a job array, a block a task. A task that is killed, requeued or submitted again goes on
    from its newest checkpoint; one that comes close to its time limit writes a checkpoint and queues itself again.
    RUN/slurm/merge.sh gathers the results when all tasks have ended. The result has the bits of `isles run`.

    **Examples**

        isles slurm runs/mnist mnist:problem --islands 64 --time 2:00:00 --partition cpu --mem 4G --submit

        isles slurm runs/mnist --submit      # again: only the blocks that are not finished
    """
    from isles.engines.slurm import Slurm, write_scripts
    from isles.engines.slurm import submit as submit_scripts
    from isles.store.folder import RunFolder
    from isles.store.status import read_status

    chosen = gather(config, {"problem": problem, **settings})
    try:
        request = Slurm(**{name: chosen[name] for name in SLURM if name in chosen})
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    reference = refer(chosen) if "problem" in chosen else None
    if reference is not None or not RunFolder(folder).holds_run:
        define(folder, chosen)
    elif changed := [name for name in (*MODEL, *DEFINING) if name in chosen]:
        raise UsageError(
            f"{folder} holds a run, whose {changed[0]} cannot be changed; leave it out, or give PROBLEM"
        )
    status = read_status(folder)
    if not status.unfinished:
        output.say(f"all {len(status.blocks)} blocks are finished; gather them with: isles merge {folder}")
        return
    scripts = write_scripts(
        folder, status.unfinished, request,
        problem=None if reference == status.problem else reference,
        checkpoint_seconds=chosen.get("checkpoint_seconds"),
    )  # fmt: skip
    if scripts.tasks > 1000:
        output.show_warning(
            f"{scripts.tasks} tasks: many clusters allow 1000; raise --blocks-per-task if sbatch objects"
        )
    jobs = submit_scripts(scripts, request.dependency) if submit else None
    commands = scripts.commands(request.dependency)
    if json:
        output.show_json(
            {
                "array": str(scripts.array),
                "merge": str(scripts.merge),
                "tasks": scripts.tasks,
                "jobs": jobs,
                "commands": commands,
            }
        )
    elif jobs:
        typer.echo(f"{scripts.tasks} tasks are job {jobs[0]}; job {jobs[1]} gathers them")
    else:
        output.say(f"{scripts.tasks} tasks; submit them, and the job that gathers them, with")
        typer.echo("\n".join(commands))


def define(folder: Path, settings: dict[str, Any]) -> None:
    """Begin the run in its folder, or see that it is the one that is there."""
    problem = refer(settings)
    sampler = build_sampler(settings)
    names = ("islands", "seed", "islands_per_block", "chunk_rows", "keep", "threads")
    passed = {name: settings[name] for name in names if name in settings}
    references.find(problem)  # raises where there is none
    echo(problem, os.fspath(folder), sampler, passed)
    from isles import tasks

    tasks.define_run(folder, problem, sampler, **passed)
