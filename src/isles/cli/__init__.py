"""The command line, `isles COMMAND`: what a scheduler, a shell script or a hurried user needs of the library.

Nothing here imports JAX before a command has to: help, status and mistakes in the options answer at once.
A new command is a module with functions that `app.command` registers, and a name in the last import below.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence

import typer

from isles.checks import IslesWarning
from isles.cli import output
from isles.cli.app import ExitCode, app, exit_code

from isles.cli import answers, data, look, plan, report, runs, slurm  # isort: skip  # noqa: F401  (each registers its commands)

DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is returned. Errors are one line on stderr, or a traceback with `--debug`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in given or bool(os.environ.get("ISLES_DEBUG"))
    given = [argument for argument in given if argument != DEBUG]  # welcome anywhere in the line
    with warnings.catch_warnings():
        warnings.simplefilter("always", IslesWarning)
        warnings.showwarning = output.show_warning
        output.shown.clear()
        try:
            code = app(given, prog_name="isles", standalone_mode=False)
            sys.stdout.flush()
            return int(code or ExitCode.OK)
        except BrokenPipeError:  # as in `isles status RUN | head`
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.ERROR
        except typer.Abort:
            return ExitCode.INTERRUPTED
        except Exception as error:
            if debug:
                traceback.print_exc()
            else:
                output.show_error(error)
            return exit_code(error)
