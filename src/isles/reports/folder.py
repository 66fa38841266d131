"""What a run folder says of itself: its definition, the cost of its blocks, and how far its islands have come."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isles.planning.forecast import show_seconds
from isles.reports.html import Table
from isles.store.folder import RunFolder
from isles.store.status import BlockStatus

MOST_BLOCKS = 40  # shown one by one
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Traces:
    """What a posterior will have as its trace, of a run that may still be going on."""

    trace: Mapping[str, Floats]  # (stages, P), NaN where an island has not come


def read_traces(folder: str | os.PathLike[str], blocks: Sequence[BlockStatus]) -> Traces:
    """All blocks' stages so far."""
    place = RunFolder(folder)
    found = [(block, place.block(block.number).trace()) for block in blocks]
    stages = max((len(records) for _, records in found), default=0)
    islands = sum(block.size for block, _ in found)
    names = next((list(records[0]) for _, records in found if records), [])
    trace = {name: np.full((stages, islands), np.nan) for name in names}
    for block, records in found:
        columns = slice(block.islands[0], block.islands[1] + 1)
        for name, values in trace.items():
            for stage, record in enumerate(records):
                values[stage, columns] = np.array(record.get(name, np.nan), np.float64)  # null becomes NaN
    return Traces(trace)


def describe(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The definition in run.json, as lines for a reader."""
    settings, problem = facts.get("settings", {}), facts.get("problem", {})
    parameters = problem.get("parameters", {})
    sizes = [math.prod(shape[:-1]) for shape in parameters.values()]
    likelihood = facts.get("likelihood") or {}
    network = likelihood.get("network") or {}
    given = ", ".join(f"{name}={value}" for name, value in network.get("settings", {}).items())
    versions, machine = facts.get("versions", {}), facts.get("machine", {})
    rows = {
        "problem": problem.get("reference") or "given as an object",
        "network": f"{network['name']}({given})" if network else "of your own" if likelihood else None,
        "likelihood": likelihood.get("kind") or "of your own",
        "rows of data": problem.get("rows"),
        "parameters": f"{sum(sizes):,} in {len(sizes)} array{'s'[: len(sizes) != 1]}",
        "sampler": settings.get("sampler_text"),
        "islands": settings.get("islands"),
        "islands in a block": settings.get("islands_per_block"),
        "rows evaluated at a time": settings.get("chunk_rows"),
        "seed": settings.get("seed"),
        "threads of a block": settings.get("threads"),
        "draws kept": settings.get("keep"),
        "numbers": "float64" if facts.get("numbers", {}).get("jax_enable_x64") else "float32",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "machine": ", ".join(str(value) for value in machine.values()),
    }
    return {name: value for name, value in rows.items() if value is not None}


def block_table(blocks: Sequence[BlockStatus]) -> Table:
    """A line a block; of many, those under way first."""
    order = sorted(blocks, key=lambda block: (block.state != "under way", block.number))[:MOST_BLOCKS]
    header = ["block", "islands", "state", "done", "stage", "tempering", "acceptance", "epochs", "time", "saved"]
    rows = [_block_row(block) for block in sorted(order, key=lambda block: block.number)]
    if len(blocks) > MOST_BLOCKS:
        rows.append([f"and {len(blocks) - MOST_BLOCKS} more", *[""] * (len(header) - 1)])
    used = [k for k in range(len(header)) if k < 4 or any(row[k] not in ("", "–") for row in rows)]
    return Table([header[k] for k in used], [[row[k] for k in used] for row in rows])


def _block_row(block: BlockStatus) -> list[str]:
    number = lambda value: "–" if value is None else f"{value:.3g}" if isinstance(value, float) else f"{value:,}"
    return [
        str(block.number),
        " to ".join(map(str, dict.fromkeys(block.islands))),
        block.state,
        f"{block.share:.0%}",
        number(block.stage),
        number(block.tempering),
        number(block.acceptance),
        number(block.epochs),
        "–" if block.seconds is None else show_seconds(block.seconds),
        "–" if block.age is None else f"{show_seconds(block.age)} ago",
    ]
