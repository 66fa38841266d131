"""What an experiment is: methods with settings from a TOML file, and the queue of islands to run. No JAX.

A table's row for P islands takes the first P islands of a realization, so islands are run in the order in which
they complete rows. A long chain is cut into parts, which then stand for islands. Long chains that know nothing of
each other may be run a few at a time: what is kept then are shards, some of which make up an island.
"""

from __future__ import annotations

import dataclasses
import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isles import checks

BUDGETS = ("quick", "standard", "paper")
METRICS = ("accuracy", "nll", "epistemic", "entropy")
NUMBERED = 1 << 10  # numbers of islands that a realization has for itself
OF_METHOD = {
    "name", "group", "column", "rows", "parts", "shards", "shares", "together", "epochs", "standard", "paper",
    "problem",
}  # fmt: skip


@dataclass(frozen=True)
class Extent:
    """How much of a method a budget runs."""

    realizations: int = 0
    islands: int = 0


@dataclass(frozen=True)
class Method:
    """One column of a table."""

    name: str
    group: str  # columns of one group stand in one table
    column: str
    problem: str
    sampling: Mapping[str, Any]  # settings of the sampler, as in a run's TOML file
    rows: tuple[int, ...]  # numbers of islands, or of parts, that a table has rows for
    parts: int  # that the draws of a chain are cut into
    shards: int  # that an island is run as
    shares: bool  # whether rows are shares of one chain, not numbers of islands
    together: int  # islands of one block
    epochs: float  # that one particle is expected to take, for forecasts
    extents: Mapping[str, Extent]
    printed: Mapping[
        str, tuple[float | None, ...]
    ]  # the paper's, row by row; errors of accuracy as accuracy_error

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides what an island finds, but for its seed and its number."""
        return {"problem": self.problem, **self.sampling}

    @property
    def weighs(self) -> bool:
        """Whether islands have evidence to be weighed by."""
        return self.sampling.get("sampler", "smc") != "mcmc"

    @property
    def width(self) -> int:
        """Particles of an island."""
        return self.shards * self.shard_width

    @property
    def shard_width(self) -> int:
        """Particles that are run together."""
        return int(self.sampling.get("particles", 32))

    def draws(self, row: int) -> int:
        """Of all particles together, in a row: NP."""
        return row * self.width * int(self.sampling.get("draws", 1)) // self.parts

    def particle_epochs(self, budget: str) -> float:
        """Expected cost of all that a budget runs."""
        extent = self.extents[budget]
        islands = 1 if self.parts > 1 else extent.islands
        return self.epochs * self.width * islands * extent.realizations


@dataclass(frozen=True)
class Place:
    """One island of one realization."""

    realization: int
    island: int

    @property
    def number(self) -> int:
        """What random numbers know it by."""
        return self.realization * NUMBERED + self.island


@dataclass(frozen=True)
class Piece:
    """Islands that are run as one."""

    method: Method
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Experiment:
    """Methods on one data set, and the folder where their results are kept."""

    name: str
    folder: Path
    title: str
    about: str
    data: str
    test: int | None  # the first so many test rows
    methods: tuple[Method, ...]
    paper_rows: tuple[int, int] | None = None  # training and test rows of the paper's data
    left_out: str = ""
    panels: tuple[str, ...] = ()  # groups that the figure shows, if not all
    sides: tuple[Mapping[str, Any], ...] = ()  # tables that set methods side by side

    def seed(self, method: Method) -> int:
        """Another one for every method."""
        return zlib.crc32(f"{self.name}/{method.name}".encode()) & 0x7FFFFFFF

    def queue(self, budget: str) -> list[Piece]:
        """All islands of a budget, those first that complete the rows with few islands."""
        checks.choice("budget", budget, BUDGETS)
        steps = ["standard", "paper"] if budget == "paper" else [budget]
        pieces, seen = list[Piece](), set[tuple[str, Place]]()
        for step in steps:
            for low, high in _levels(self.methods):
                for method in self.methods:
                    extent = method.extents[step]
                    islands = range(low, min(high, extent.islands))
                    if method.parts > 1:  # the whole chain, which is long, when others have as many islands
                        islands = range(low < method.parts <= high)
                    places = [
                        Place(r, p * method.shards + shard)  # an island is of use when all its shards are there
                        for p in islands
                        for r in range(extent.realizations)
                        for shard in range(method.shards)
                    ]
                    fresh = tuple(place for place in places if (method.name, place) not in seen)
                    if fresh:
                        seen |= {(method.name, place) for place in fresh}
                        pieces.append(Piece(method, fresh))
        return pieces


def _levels(methods: tuple[Method, ...]) -> list[tuple[int, int]]:
    ends = sorted({rows for method in methods for rows in method.rows})
    return list(zip([0, *ends], ends, strict=False))


def names(folder: Path) -> list[str]:
    """Experiments that a folder has settings of."""
    return sorted(path.parent.name for path in folder.glob("*/settings.toml"))


def load(folder: Path, name: str, budget: str = "standard") -> Experiment:
    """The experiment of that name; for the budget "quick" a small one of the same kind."""
    found = names(folder)
    if not found:
        raise ValueError(f"{folder} holds no experiments; run in a clone of isles' repository, or give --folder")
    if name not in found and (folder / name / "study.toml").exists():
        raise ValueError(
            f"{name} is a study, which has a command of its own: python -m experiments.studies {name}"
        )
    checks.choice("experiment", name, found)
    path = folder / name / "settings.toml"
    try:
        facts = tomllib.loads(path.read_text())
        quick = facts.get("quick", {}) if budget == "quick" else {}
        chosen = quick.get("methods", [entry["name"] for entry in facts["method"]])
        methods = tuple(_method(facts, entry, quick) for entry in facts["method"] if entry["name"] in chosen)
        return Experiment(
            name, folder / name, facts["title"], facts["about"], facts["data"], quick.get("test"), methods,
            tuple(facts["paper_rows"]) if "paper_rows" in facts else None,
            facts.get("left_out", ""), tuple(facts.get("panels", ())), tuple(facts.get("side", ())),
        )  # fmt: skip
    except (KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is no experiment: {error!r}; compare it with one that works") from error


def _method(facts: Mapping[str, Any], entry: Mapping[str, Any], quick: Mapping[str, Any]) -> Method:
    sampling = {
        key: value for key, value in entry.items() if key not in OF_METHOD and not key.startswith("paper_")
    }
    caps = quick.get("at_most", {})
    sampling = {key: min(value, caps[key]) if key in caps else value for key, value in sampling.items()}
    parts, rows = int(entry.get("parts", 1)), tuple(entry["rows"])
    if quick:
        rows = tuple(row for row in rows if row <= quick["islands"])
        parts = max(rows) if parts > 1 else 1
        if "draws" in sampling and parts > 1:
            sampling["draws"] = 4 * parts
    if sampling.get("sampler") == "mcmc" and sampling.get("draws", 1) % parts:
        raise ValueError(f"{entry['name']}: draws={sampling['draws']} cannot be cut into parts={parts}")
    shards = checks.count(f"{entry['name']}: shards", entry.get("shards", 1))
    if shards > 1 and (sampling.get("sampler"), sampling.get("tune"), parts) != ("mcmc", "alone", 1):
        raise ValueError(f"{entry['name']}: shards={shards} are for sampler='mcmc', tune='alone' and parts=1")
    extents = {budget: Extent(**entry.get(budget, {})) for budget in BUDGETS[1:]}
    extents["quick"] = Extent(1, min(max(rows, default=0), quick.get("islands", 0)))
    return Method(
        name=entry["name"],
        group=entry["group"],
        column=entry["column"],
        problem=quick.get("problem", entry.get("problem", facts["problem"])),
        sampling=sampling,
        rows=rows,
        parts=parts,
        shards=shards,
        shares=bool(entry.get("shares", False)),
        together=int(entry.get("together", 1)),
        epochs=float(entry["epochs"]),
        extents=extents,
        printed={
            key.removeprefix("paper_"): tuple(None if value == "-" else value for value in values)
            for key, values in entry.items()
            if key.startswith("paper_")
        },
    )


def apart(experiment: Experiment) -> Experiment:
    """The same experiment in a folder of its own, so that a quick run does not mix with the islands that count."""
    title = f"{experiment.title}: a quick trial, whose figures mean nothing"
    return dataclasses.replace(experiment, title=title, folder=experiment.folder / "quick")
