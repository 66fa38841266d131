"""The application that commands register with, and what its exit codes mean."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from isles.checks import PartialRunError, SettingsError, UnknownProblemError

HELP = """Bayesian deep learning by parallel SMC and parallel MCMC.

A problem is named as **package.module:function**: a function that returns an isles.Problem;
or it is a data set with a built-in model.

    isles run mnist:problem --folder runs/mnist --islands 8

    isles run digits --model mlp --hidden 10 --folder runs/digits

    isles status runs/mnist

    isles resume runs/mnist

    isles slurm runs/mnist mnist:problem --islands 64 --time 2:00:00

    isles merge runs/mnist --json

Exit codes: **0** done, **1** error, **2** mistake in the command, **3** result partial or budget ended,
**75** (of isles block) stopped by a signal after a checkpoint, **130** interrupted.
"""


class ExitCode(enum.IntEnum):
    """What scripts can tell from how a command ends."""

    OK = 0
    ERROR = 1
    USAGE = 2
    PARTIAL = 3  # islands are missing, or a budget ended the run
    STOPPED = 75  # by SIGTERM or SIGUSR1, after a checkpoint; the EX_TEMPFAIL of sysexits.h
    INTERRUPTED = 130


class UsageError(typer.TyperException):
    """The command cannot mean anything."""

    exit_code = ExitCode.USAGE


class InterruptedCommandError(typer.TyperException):
    """Ctrl-C, with what a run says about it."""

    exit_code = ExitCode.INTERRUPTED


class Commands(TyperGroup):
    """The commands, whose Ctrl-C keeps its message."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise InterruptedCommandError(str(error) or "interrupted") from error


app = typer.Typer(
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def exit_code(error: BaseException) -> int:
    """How a command ends that raised this."""
    if isinstance(error, PartialRunError):
        return ExitCode.PARTIAL
    if isinstance(error, UnknownProblemError | SettingsError):
        return ExitCode.USAGE
    return int(getattr(error, "exit_code", ExitCode.ERROR))


def _show_version(wanted: bool) -> None:
    if wanted:
        from isles import __version__

        typer.echo(f"isles {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; welcome anywhere in the line.")
    ] = False,
) -> None:
    """What every command takes; `--debug` is read before."""
