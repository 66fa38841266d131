"""What a user sees: results on stdout, everything else on stderr, JSON where it is asked for."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from isles.checks import FolderError, IslesWarning
from isles.cli.app import ExitCode

if TYPE_CHECKING:
    from isles.posterior import Posterior

PLAIN = (FolderError, ValueError, TypeError, FileNotFoundError, RuntimeError, ImportError, MemoryError)
shown: set[str] = set()  # warnings so far, each of which is said once


def show_error(error: BaseException) -> None:
    """One line on stderr."""
    if isinstance(error, typer.TyperException):
        text = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            typer.echo(text, err=True)
            return
        if context := getattr(error, "ctx", None):
            text += f" (see {context.command_path} --help)"
    elif type(error) in PLAIN or type(error).__module__.startswith("isles."):
        text = str(error) or type(error).__name__
    else:
        text = f"{type(error).__name__}: {error}"
    if notes := getattr(error, "__notes__", None):  # long ones are tracebacks of workers
        text += (
            f" ({'; '.join([*(note for note in notes if len(note.splitlines()) == 1), '--debug shows where'])})"
        )
    typer.echo(f"error: {' '.join(text.split())}", err=True)


def show_warning(message: Warning | str, category: type[Warning] = IslesWarning, *_: object, **__: object) -> None:
    """One line on stderr, once; takes what `warnings.showwarning` does."""
    text = " ".join(str(message).split())
    if text not in shown:
        shown.add(text)
        kind = "warning" if issubclass(category, IslesWarning) else category.__name__
        typer.echo(f"{kind}: {text}", err=True)


def say(text: str) -> None:
    """A line on stderr, for whoever watches."""
    typer.echo(text, err=True)


def show_settings(settings: Mapping[str, Any]) -> None:
    """Settings on stderr, a line each."""
    width = max(map(len, settings))
    for name, value in settings.items():
        say(f"{name:<{width}}  {value}")


def show_json(content: Any) -> None:
    """JSON on stdout; NaN and infinities, which JSON does not know, are null."""
    typer.echo(json.dumps(_plain(content), indent=2, allow_nan=False))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout, in colour on a terminal only, and never cut short in a pipe."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(column))
    for row in rows:
        table.add_row(*map(Text, row))  # as it is: brackets are no markup
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def show_posterior(posterior: Posterior, place: str | None, as_json: bool) -> ExitCode:
    """The facts about a run's result, and the exit code they deserve."""
    diagnostics = posterior.diagnostics()
    facts = {name.replace(",", "").replace(" ", "_"): value for name, value in diagnostics.rows.items()}
    if as_json:
        missing, messages = list(posterior.missing), list(posterior.warnings)
        show_json({"posterior": place, "diagnostics": facts, "missing": missing, "warnings": messages})
    else:
        for message in posterior.warnings:
            show_warning(message)
        table = str(diagnostics).splitlines()
        typer.echo("\n".join(table[: len(diagnostics.rows)]))
        if place is not None:
            say(f"isles.load({place!r}) reads the posterior")
    return ExitCode.PARTIAL if posterior.missing else ExitCode.OK


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
