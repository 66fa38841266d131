"""How much work goes to the device at a time: Ctrl-C is heard and checkpoints are written in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import lru_cache

Pause = Callable[[], bool]  # whether work that can be cut shall be, for a checkpoint


def never() -> bool:
    """No pause."""
    return False


class Pace:
    """What work of a kind goes to the device at a time. What is computed does not depend on it."""

    pace = 1  # mutations or steps that take about half a second


@lru_cache(maxsize=1024)
def pace_of(program: int) -> Pace:
    """The pace of a program as this process has seen it so far; a hash stands for the program."""
    return Pace()


def pieces(total: int, program: Pace) -> Iterator[int]:
    """Sizes that add up to `total`, chosen while they are worked off so that each takes about half a second.

    They begin where the last call on the same program ended.
    """
    while total > 0:
        size = min(program.pace, total)
        start = time.perf_counter()
        yield size
        seconds = time.perf_counter() - start
        total -= size
        if seconds > 1:
            program.pace = max(size // 2, 1)
        elif seconds < 0.25 and size == program.pace:
            program.pace *= 2
