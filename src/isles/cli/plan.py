"""The command that forecasts a run."""

from __future__ import annotations

from typing import Any

import typer

from isles.cli import output
from isles.cli.app import app
from isles.cli.runs import Config, Json, Problem, refer
from isles.cli.settings import MODEL, SAMPLING, build_sampler, gather, takes

PLANNED = ["islands", "workers", "threads", "islands_per_block", "chunk_rows"]
FORECAST = ["stages", "failures_per_hour", "checkpoint_seconds", "retries"]


@app.command()
@takes([*MODEL, *PLANNED, *SAMPLING, *FORECAST])
def plan(problem: Problem = None, config: Config = None, json: Json = False, **settings: Any) -> None:
    """Forecast time, memory and cost of a run, from a few seconds of measuring on this machine.

    **Examples**

        isles plan mnist:problem --islands 64 --workers 16

        isles plan --config run.toml --failures-per-hour 0.5 --json
    """
    chosen = gather(config, {"problem": problem, **settings})
    reference = refer(chosen)
    sampler = build_sampler(chosen)
    import isles
    from isles.definition import import_problem

    passed = {name: chosen[name] for name in (*PLANNED, *FORECAST) if name in chosen}
    forecast = isles.plan(import_problem(reference), sampler, **passed)
    if json:
        output.show_json(forecast.as_dict())
    else:
        typer.echo(str(forecast).rstrip())
