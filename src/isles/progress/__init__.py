"""How a run goes, shown to whoever waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from isles.engines.ledger import Display
from isles.samplers.block import Status


class Silent:
    """Shows nothing."""

    def update(self, number: int, status: Status) -> None:
        """Nothing."""

    def finish(self, number: int) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


@contextlib.contextmanager
def display(shown: bool | None, *, blocks: int, finished: set[int]) -> Iterator[Display]:
    """What shows a run of so many blocks; by default, only on a terminal."""
    yield Silent()
