"""Who runs what: the blocks still to run, how far the others are, what is spent, and when to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from isles.checks import DeadIslandsError
from isles.engines.blocks import Dead, Done, Event, Halted, Kept, Reached, Work
from isles.samplers.block import Status

Interrupted = Callable[[], bool]


class Display(Protocol):
    """Who is told how a run goes."""

    def begin(self, number: int) -> None:
        """Someone works on a block."""
        ...

    def update(self, number: int, status: Status) -> None:
        """A block has come this far."""
        ...

    def finish(self, number: int, epochs: int) -> None:
        """A block is finished, with so many epochs of all its particles."""
        ...

    def leave(self, number: int) -> None:
        """Nobody works on a block any more, though it is not finished."""
        ...

    def say(self, text: str) -> None:
        """Something happened that a user wants to know."""
        ...


@dataclass(frozen=True)
class Budget:
    """When no further block is begun."""

    max_seconds: float | None = None
    max_epochs: int | None = None  # of all particles
    finish_started: bool = True  # else blocks under way are stopped, too, which favours fast islands


class Ledger:
    """The blocks of a run: to run, under way, dead so far, failed, finished."""

    def __init__(
        self,
        work: Work,
        display: Display,
        budget: Budget,
        interrupted: Interrupted,
        *,
        finished: set[int] | None = None,
        spent: int = 0,
    ) -> None:
        self.work, self.display, self.budget = work, display, budget
        self.finished: set[int] = set(finished or ())
        self.todo = deque(number for number in range(len(work.blocks)) if number not in self.finished)
        self.failed: dict[int, str] = {}  # block -> why
        self.deaths: Counter[int] = Counter()
        self._interrupted = interrupted
        self._dead: dict[int, str] = {}  # wait until another block shows life
        self._epochs: Counter[int] = Counter()
        self._spent = spent  # epochs of blocks finished earlier
        self._begun = time.monotonic()
        self._life_seen = bool(self.finished)

    @property
    def life_seen(self) -> bool:
        """Whether some block has a live particle."""
        return self._life_seen

    @property
    def is_over_budget(self) -> bool:
        """Whether no further block may begin."""
        budget = self.budget
        late = budget.max_seconds is not None and time.monotonic() - self._begun >= budget.max_seconds
        spent = self._spent + self._epochs.total()
        return late or (budget.max_epochs is not None and spent >= budget.max_epochs)

    @property
    def interrupted(self) -> bool:
        """Whether the user wants the run to stop."""
        return self._interrupted()

    @property
    def halting(self) -> bool:
        """Whether blocks under way shall stop."""
        return self.interrupted or (not self.budget.finish_started and self.is_over_budget)

    def take(self) -> int | None:
        """The next block to run; None if there is none, or none may begin."""
        if not self.todo or self.interrupted or self.is_over_budget:
            return None
        number = self.todo.popleft()
        self.display.begin(number)
        return number

    @property
    def can_take(self) -> int:
        """How many blocks may begin now."""
        return 0 if self.interrupted or self.is_over_budget else len(self.todo)

    def hear(self, number: int, event: Event) -> None:
        """A block has said what happened."""
        match event:
            case Reached(status) | Kept(_, status, _, _):
                self._show_life()
                # a block that goes on from a checkpoint makes epochs again that are spent already
                self._epochs[number] = max(status.epochs, self._epochs[number])
                self.display.update(number, status)
            case Done():
                self._show_life()
                self.close(number, int(event.result.epochs.sum()))
            case Dead(why):
                self.display.leave(number)
                if self._life_seen:
                    self.todo.append(number)
                else:
                    self._dead[number] = why
            case Halted():
                self.display.leave(number)
                self.todo.appendleft(number)

    def close(self, number: int, epochs: int) -> None:
        """A block is finished."""
        self._show_life()
        self._epochs[number] = epochs
        self.finished.add(number)
        self.display.finish(number, epochs)

    def lose(self, number: int, why: str, retries: int) -> None:
        """Whoever ran a block is gone. It is run again, `retries` times."""
        self.display.leave(number)
        self.deaths[number] += 1
        name, deaths = self.work.named(number), self.deaths[number]
        if deaths > retries:
            self.failed[number] = f"{name}: {why}, {deaths} times in all"
            self.display.say(f"{self.failed[number]}; the other blocks go on")
        else:
            self.display.say(f"{name}: {why}; it is run again from its newest checkpoint")
            self.todo.appendleft(number)

    def check_life(self) -> None:
        """Raise if every block was looked at, and none has shown life."""
        if self._dead and not (self._life_seen or self.todo or self.failed):
            raise DeadIslandsError(self._dead[min(self._dead)])

    def _show_life(self) -> None:
        self._life_seen = True
        self.todo.extend(self._dead)
        self._dead.clear()


@contextlib.contextmanager
def hearing_interrupts(display: Display, *, remedy: str | None) -> Iterator[Interrupted]:
    """The first Ctrl-C asks a run to stop after a checkpoint; the second ends it at once.

    `remedy` says how to go on later. None: there is no way, and the first Ctrl-C ends the run.
    """
    if remedy is None or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    heard = False

    def hear(number: int, frame: object) -> None:
        nonlocal heard
        if heard:
            raise KeyboardInterrupt(f"stopped at once; from the last checkpoints, {remedy}")
        heard = True
        display.say("stopping after a checkpoint; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: heard
    finally:
        signal.signal(signal.SIGINT, before)
