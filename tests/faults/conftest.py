"""Counts kills over the whole session, and shows them at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from kills import Kill


@dataclass
class Tally:
    """Kills so far, and those that came too late: their run was over."""

    kills: list[Kill] = field(default_factory=list)
    late: int = 0

    @property
    def at_work(self) -> int:
        """Of processes that were sampling or writing."""
        return sum(kill.phase in ("sampling", "writing") for kill in self.kills)

    def __str__(self) -> str:
        points = Counter(f"{kill.role} {kill.point}" for kill in self.kills)
        phases = Counter(kill.phase for kill in self.kills)
        lines = [f"{len(self.kills)} kills, {self.at_work} while sampling or writing, {self.late} too late"]
        lines += [f"  {count:4} {name}" for name, count in sorted(points.items())]
        lines += ["by phase: " + ", ".join(f"{count} {name}" for name, count in phases.most_common())]
        return "\n".join(lines)


@pytest.fixture(scope="session")
def tally() -> Iterator[Tally]:
    """One count for all tests."""
    found = Tally()
    yield found
    print(f"\n{found}")
