"""Commands that only look at a run. None of them imports JAX."""

from __future__ import annotations

import dataclasses
from typing import Any

from isles.cli import output
from isles.cli.app import app
from isles.cli.runs import Json, RunArgument


@app.command()
def status(folder: RunArgument, json: Json = False) -> None:
    """Show how far a run is, block by block, from its checkpoints.

    **Examples**

        isles status runs/mnist

        isles status runs/mnist --json | jq .finished
    """
    from isles.store.status import FINISHED, NOT_BEGUN, STARTING, UNDER_WAY, read_status

    found = read_status(folder)
    counts = {state: found.count(state) for state in (FINISHED, UNDER_WAY, STARTING, NOT_BEGUN)}
    if json:
        named = {state.replace(" ", "_"): count for state, count in counts.items()}
        output.show_json(
            {**dataclasses.asdict(found), **named, "blocks": [*map(dataclasses.asdict, found.blocks)]}
        )
        return
    rows = [
        (
            str(block.number),
            "-".join(map(str, dict.fromkeys(block.islands))),
            block.state,
            f"{block.share:.0%}",
            _number(block.stage),
            _number(block.tempering),
            _number(block.acceptance),
            _number(block.epochs),
            "-" if block.age is None else _duration(block.age),
        )
        for block in found.blocks
    ]
    columns = ("block", "islands", "state", "done", "stage", "tempering", "acceptance", "epochs", "checkpoint")
    output.show_table(columns, rows)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items() if count or state != STARTING)
    output.say(f"{len(found.blocks)} blocks of {found.islands} islands: {summary}")


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
