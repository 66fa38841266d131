"""Runs that are quick to work out and long enough to be killed in."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import isles
import targets

LONG = isles.SMC(isles.MH(), particles=16, mutations=60, schedule=list(np.geomspace(1e-3, 1, 12)))
SETTINGS: dict[str, Any] = {
    "islands": 8, "islands_per_block": 2, "seed": 3, "engine": "local", "workers": 2, "retries": 1000,
    "checkpoint_seconds": 0.01,
}  # fmt: skip


def problem() -> isles.Problem:
    """A conjugate Gaussian."""
    return targets.conjugate(dimension=4, rows=8, seed=1).problem


class Fatal(isles.SMC):
    """SMC that ends its process at island 1's second stage, as long as a file is there."""

    def advance(self, problem: isles.Problem, block: Any, pause: Any = lambda: False) -> Any:
        if block.stage == 1 and 1 in block.islands and os.path.exists(os.environ["ISLES_TEST_FATAL"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().advance(problem, block, pause)


def interrupting(driver: int, trap: str) -> isles.SMC:
    """SMC that interrupts its driver at island 0's second stage, and waits there until it is asked to pause."""

    class Interrupting(isles.SMC):
        def advance(self, problem: isles.Problem, block: Any, pause: Any = lambda: False) -> Any:
            if block.stage == 1 and os.path.exists(trap):
                if 0 in block.islands:  # once: a second Ctrl-C would end the run at once
                    os.kill(driver, signal.SIGINT)
                while not pause():
                    time.sleep(0.01)
            return super().advance(problem, block, pause)

    return Interrupting(isles.MH(), particles=8, mutations=3, schedule=[0.1, 0.5, 1.0])
