"""The command that makes a page about a run, or serves one while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isles.cli import output
from isles.cli.answers import Asked, Data, Test, read
from isles.cli.app import UsageError, app
from isles.cli.runs import ProblemOption


@app.command()
def report(
    run: Asked,
    test: Test = None,
    data: Data = None,
    ood: Annotated[
        Path | None, typer.Option("--ood", metavar="FILE", help="Inputs unlike the data: a .csv or .npz file.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="By default, report.html in RUN.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Of the page; by default, the name of RUN.")] = None,
    problem: ProblemOption = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve a page on this machine while the run goes on.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="Of --live; by default, a free one.", min=0, max=65535)] = None,
) -> None:
    """Write one HTML file about a run, which opens offline; or watch a run in the browser while it goes on.

    With test data, the page has scores, calibration, entropies, and the most and least certain inputs. --live
    serves a page at 127.0.0.1 that refreshes itself, until Ctrl-C; it only reads, and the run does not notice.

    **Examples**

        isles report runs/digits --data digits

        isles report runs/mine --test test.npz --ood noise.npz --problem mine:problem --output mine.html

        isles report --live runs/mnist --port 8080
    """
    if live:
        if given := [
            name for name, value in {"test": test, "data": data, "ood": ood, "output": to}.items() if value
        ]:
            raise UsageError(f"--{given[0]} is for a finished run; leave it out, or --live")
        watch(run, port or 0)
        return
    if port is not None:
        raise UsageError("--port is for --live; add it, or leave --port out")
    if ood is not None and test is None and data is None:
        raise UsageError("--ood is shown beside test data; add --test or --data")
    posterior = read(run, problem, predicting=bool(test or data))
    import isles
    from isles.cli import arrays

    row = arrays.row_shape(posterior) if test or data else ()
    path = isles.report(
        posterior,
        to or (run / "report.html" if run.is_dir() else run.with_name(f"{run.stem}-report.html")),
        test=arrays.read_test(test, data, row),
        ood=None if ood is None else arrays.read_inputs(ood, row),
        title=title or run.resolve().name,
        folder=run if run.is_dir() else None,
    )
    output.say("open it in a browser; it needs no network")
    typer.echo(path)


def watch(run: Path, port: int) -> None:
    """Serve until Ctrl-C."""
    from isles.reports import live

    try:
        server = live.serve(run, port)
    except (PermissionError, OSError) as error:
        if getattr(error, "errno", None) is None or port == 0:
            raise
        raise OSError(
            f"port {port} cannot be used: {error.strerror}; give another, or leave --port out"
        ) from error
    with server:
        typer.echo(f"http://{live.HOST}:{server.server_port}/")
        output.say("Ctrl-C ends the page, not the run")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            output.say("")
