"""What is known of a run while it goes on: told by the run, read by whoever draws."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from isles.progress import estimates
from isles.progress.estimates import Course
from isles.samplers.block import Status

REMEMBERED = 64  # durations of finished blocks


class Overview(NamedTuple):
    """A run as a whole."""

    done: int
    blocks: int
    epochs: int
    epochs_per_second: float | None
    elapsed: float
    left: float | None  # seconds; None while nobody can tell


class Tally:
    """Blocks under way and finished.

    One thread writes and another reads, without a lock that a signal handler could wait for: values are replaced,
    never changed.
    """

    def __init__(self, blocks: int, finished: int, epochs: int) -> None:
        self.blocks, self.done, self.epochs = blocks, finished, epochs
        self.began = time.monotonic()
        self._earlier = finished
        self.courses: dict[int, Course] = {}
        self._durations: deque[float] = deque(maxlen=REMEMBERED)
        self._first: tuple[float, int] | None = None  # when epochs were first heard of, and how many
        self._end: tuple[float, float] | None = None  # when the end was last estimated, and when it will be

    def begin(self, number: int) -> None:
        """Someone works on a block."""
        self.courses[number] = Course(time.monotonic())

    def update(self, number: int, status: Status) -> None:
        """A block has come this far."""
        now = time.monotonic()
        course = self.courses.get(number)
        if course is None or (course.last is None and self.done == self._earlier):
            course = Course(now)  # the first blocks wait for processes and compilers, as later ones do not
        self.courses[number] = estimates.follow(course, status, now)

    def finish(self, number: int, epochs: int) -> None:
        """A block is finished."""
        course = self.courses.pop(number, None)
        if course is not None:
            self._durations.append(time.monotonic() - course.begun)
        self.epochs += epochs
        self.done += 1

    def leave(self, number: int) -> None:
        """Nobody works on a block any more, though it is not finished."""
        self.courses.pop(number, None)

    def overview(self) -> Overview:
        """The run as a whole, now."""
        now = time.monotonic()
        courses = list(self.courses.values())
        epochs = self.epochs + sum(course.last[1].epochs for course in courses if course.last)
        if self._first is None and courses and any(course.last for course in courses):
            self._first = now, epochs
        rate = None
        if self._first is not None and now - self._first[0] > 0 and epochs > self._first[1]:
            rate = (epochs - self._first[1]) / (now - self._first[0])
        waiting = self.blocks - self.done - len(courses)
        left = estimates.run_seconds_left(courses, max(waiting, 0), list(self._durations), now)
        if left:
            self._end = now, estimates.settled(self._end, now, now + left)
            left = max(self._end[1] - now, 0.0)
        return Overview(self.done, self.blocks, epochs, rate, now - self.began, left)
