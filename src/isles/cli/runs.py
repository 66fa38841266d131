"""Commands that run islands, and the one that gathers their results."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from isles import references
from isles.checks import PartialRunError
from isles.cli import output
from isles.cli.app import ExitCode, UsageError, app
from isles.cli.settings import BUDGET, DEFINING, ENGINE, MODEL, build_sampler, gather, takes
from isles.engines.threads import thread_variables

Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="A TOML file with settings; options win over it.")
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.", show_default=False)]
ProblemOption = Annotated[
    str | None,
    typer.Option(metavar="MODULE:NAME", help="Needed only if the folder holds no import path, or it has moved."),
]

MODELS = "mlp, cnn or logistic"
PARTIAL_HINT = ", --allow-partial does without what is missing"
Problem = Annotated[
    str | None,
    typer.Argument(
        metavar="PROBLEM", help="As package.module:function; or a data set, with --model.", show_default=False
    ),
]


@app.command()
@takes(["folder", *MODEL, *DEFINING, *ENGINE, *BUDGET])
def run(
    problem: Problem = None,
    config: Config = None,
    json: Json = False,
    **settings: Any,
) -> int:
    """Run a problem to its end in a folder, or go on with the same run there.

    **Examples**

        isles run mnist:problem --folder runs/mnist --islands 8 --particles 32 --trajectory 0.1

        isles run digits --model mlp --hidden 10 --prior-std 0.5 --folder runs/digits

        isles run mnist:problem --folder runs/pcn --sampler mcmc --kernel pcn --burn-in 5000 --draws 100

        isles run --config run.toml --seed 7

    run.toml holds lines such as **problem = "mnist:problem"**, **folder = "runs/7"**, **islands = 8**.
    """
    chosen = gather(config, {"problem": problem, **settings})
    name, folder = refer(chosen), needed(chosen, "folder", "--folder")
    sampler = build_sampler(chosen)
    passed = {key: value for key, value in chosen.items() if key in SAMPLE_ARGUMENTS}
    references.find(name)  # raises where there is none
    echo(name, folder, sampler, passed)
    import isles

    with telling_how_to_go_on(folder, PARTIAL_HINT):
        posterior = isles.sample(name, sampler, folder=folder, **passed)
    return finish(posterior, folder, json)


@app.command()
@takes([*ENGINE, *BUDGET])
def resume(folder: RunArgument, problem: ProblemOption = None, json: Json = False, **settings: Any) -> int:
    """Go on with the run in a folder; the result has the bits of a run that was never interrupted.

    **Examples**

        isles resume runs/mnist --workers 2

        isles resume runs/mnist --max-seconds 3600 || echo "not finished yet"
    """
    chosen = gather(None, settings)
    import isles

    with telling_how_to_go_on(folder, PARTIAL_HINT):
        posterior = isles.resume(folder, problem, **chosen)
    return finish(posterior, os.fspath(folder), json)


@app.command()
def merge(
    folder: RunArgument,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Do without islands that are missing.")
    ] = False,
    to: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the posterior.")] = None,
    json: Json = False,
) -> int:
    """Gather the islands that are finished into one posterior, and say what it is worth.

    A complete posterior is written to posterior.safetensors in the folder. One that lacks islands is written only
    to --output, and the exit code is 3. A run that is going on is not disturbed.

    **Examples**

        isles merge runs/mnist

        isles merge runs/mnist --allow-partial --output early.safetensors --json
    """
    from isles import results
    from isles.store.folder import RunFolder

    with telling_how_to_go_on(folder, PARTIAL_HINT):
        posterior = results.merge(folder, allow_partial=allow_partial)
    place = to or (None if posterior.missing else RunFolder(folder).posterior_path)
    if place is not None:
        posterior.save(place)
    return output.show_posterior(posterior, None if place is None else os.fspath(place), json)


@app.command()
@takes(["checkpoint_seconds", "retries"])
def block(
    folder: RunArgument,
    numbers: Annotated[
        list[int], typer.Argument(metavar="NUMBER...", help="Of blocks, from 0.", show_default=False)
    ],
    problem: ProblemOption = None,
    requeue: Annotated[
        bool, typer.Option("--requeue", help="On SIGUSR1, ask SLURM to run this job again.")
    ] = False,
    **settings: Any,
) -> int:
    """Run some blocks of a run, from their newest checkpoints to their ends: what a task of a scheduler does.

    The run must have been defined, as `isles slurm` does. Other tasks may run other blocks at the same time. A
    block that is finished is left alone. SIGTERM and SIGUSR1 end the command after a checkpoint of the moment,
    with exit code 75; the same command goes on from there.

    **Example**

        isles block runs/mnist 0 1 2
    """
    chosen = gather(None, settings)
    set_threads(folder)
    from isles import tasks
    from isles.store.status import read_status

    blocks = len(read_status(folder).blocks)
    for number in numbers:
        if not 0 <= number < blocks:
            raise UsageError(f"there is no block {number} in {folder}; give numbers from 0 to {blocks - 1}")
    report = tasks.run_tasks(folder, numbers, problem, **chosen)
    listed = lambda found: f"block{'s'[: len(found) != 1]} {', '.join(map(str, found))}"
    left = [number for number in numbers if number not in report.finished]
    if report.finished:
        output.say(f"{listed(report.finished)} finished")
    if not left:
        return ExitCode.OK
    stopped = f"{listed(left)} stopped after a checkpoint by {signal.Signals(report.stopped_by).name}"
    output.say(f"{stopped}; the same command goes on")
    if report.stopped_by == signal.SIGINT:
        return ExitCode.INTERRUPTED
    if requeue and report.stopped_by == signal.SIGUSR1:
        from isles.engines import slurm

        output.say(slurm.requeue())
    return ExitCode.STOPPED


SAMPLE_ARGUMENTS = {
    "islands", "seed", "islands_per_block", "chunk_rows", "keep", "threads", *ENGINE, *BUDGET
}  # fmt: skip


def needed(settings: dict[str, Any], name: str, spelling: str) -> str:
    """Take a setting that a command cannot do without."""
    if name not in settings:
        raise UsageError(f"{spelling} is missing; give it, or {name} = ... in the file of --config")
    return str(settings[name])


def refer(settings: dict[str, Any]) -> str:
    """The reference of the problem that settings mean, checked before anything of it is imported."""
    name = needed(settings, "problem", "PROBLEM")
    options = {key: settings[key] for key in MODEL if key in settings}
    if "model" in options:
        from isles import data

        if name not in data.NAMES:
            near = difflib.get_close_matches(name, data.NAMES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "leave --model out"
            raise UsageError(f"--model is for a data set, and {name!r} is none of {', '.join(data.NAMES)}; {hint}")
        return references.write("isles.builtin", "problem", {"data": name, **options})
    if options:
        raise UsageError(f"--{next(iter(options)).replace('_', '-')} needs --model: {MODELS}")
    try:
        references.parse(name)
    except ValueError as error:
        from isles import data

        hint = f"; for the data set, add --model {MODELS}" if name in data.NAMES else ""
        raise UsageError(f"{error}{hint}") from None
    return name


def echo(problem: str, folder: str, sampler: Any, settings: dict[str, Any]) -> None:
    """What will be run."""
    defaults = {"islands": 1, "seed": 0, "threads": 1, "keep": "all"}
    output.show_settings({"problem": problem, "folder": folder, "sampler": sampler, **defaults, **settings})


@contextlib.contextmanager
def telling_how_to_go_on(folder: str | Path, otherwise: str = "") -> Iterator[None]:
    """Errors after which a run can be continued name the command that does, and what else can be done."""
    again = shlex.join(["isles", "resume", os.fspath(folder)])
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"stopped; what was saved is kept: {again}") from error
    except PartialRunError as error:
        cause = str(error).partition(";")[0]
        other = "" if cause.startswith("no island is finished") else otherwise
        raise PartialRunError(f"{cause}; {again} goes on{other}") from error


def finish(posterior: Any, folder: str, as_json: bool) -> int:
    """Show what a run gave."""
    from isles.store.folder import RunFolder

    place = None if posterior.missing else os.fspath(RunFolder(folder).posterior_path)
    return output.show_posterior(posterior, place, as_json)


def set_threads(folder: Path) -> None:
    """Give this process the threads that the run's bits need, which has to be done before JAX is imported."""
    if "jax" in sys.modules or "numpy" in sys.modules:
        return  # too late: a worker process is started instead
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # whatever it is, it is said later
        os.environ.update(
            thread_variables(int(json.loads((folder / "run.json").read_text())["settings"]["threads"]))
        )
