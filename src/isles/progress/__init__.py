"""How a run goes, shown to whoever waits for it: live on a terminal, as lines elsewhere, or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from isles.engines.ledger import Display
from isles.samplers.block import Status


class Silent:
    """Shows nothing."""

    def begin(self, number: int) -> None:
        """Nothing."""

    def update(self, number: int, status: Status) -> None:
        """Nothing."""

    def finish(self, number: int, epochs: int) -> None:
        """Nothing."""

    def leave(self, number: int) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


@contextlib.contextmanager
def display(shown: bool | None, *, blocks: int, finished: set[int], epochs: int = 0) -> Iterator[Display]:
    """What shows a run of so many blocks; by default, only on a terminal.

    Blocks `finished` earlier took so many `epochs`.
    """
    if shown is False or (shown is None and not _may_draw()):
        yield Silent()
        return
    from isles.progress import drawing  # rich is slow to import

    painter = drawing.choose(lines=shown is True)
    if painter is None:
        yield Silent()
        return
    with drawing.Drawn(painter, blocks, len(finished), epochs) as drawn:
        yield drawn


def _may_draw() -> bool:
    """False where rich, which knows better, need not be asked: it takes longer than a small run."""
    forced = any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"))
    if forced or "IPython" in sys.modules:
        return True
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # something else in its place, or closed
        return False
