"""When a run will end, from the way it has come: pure functions of what was seen and when."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from isles.samplers.block import Status

SMOOTHING = 0.3  # weight of the newest stage


class Course(NamedTuple):
    """A block under way: where it stands, and how fast it came there."""

    begun: float  # seconds on some clock, as all times here
    first: tuple[float, Status] | None = None  # when it was first heard of; after a resume, not at its beginning
    last: tuple[float, Status] | None = None
    turned: float = 0.0  # when its last stage ended
    advance: float | None = None  # of log-tempering in a stage, smoothed
    pace: float | None = None  # seconds of a stage, smoothed


def follow(course: Course, status: Status, now: float) -> Course:
    """The course with one more thing known of it."""
    if course.first is None or course.last is None:
        return course._replace(first=(now, status), last=(now, status), turned=now)
    before = course.last[1]
    stages = status.stage - before.stage
    course = course._replace(last=(now, status))
    if stages <= 0:
        return course
    weight = 1 - (1 - SMOOTHING) ** stages
    pace = _smooth(course.pace, (now - course.turned) / stages, weight)
    advance = course.advance
    if 0 < before.tempering < status.tempering:
        advance = _smooth(advance, math.log(status.tempering / before.tempering) / stages, weight)
    return course._replace(turned=now, pace=pace, advance=advance)


def epochs_per_second(course: Course) -> float | None:
    """Mean since the block was first heard of; None before anything is known."""
    if course.first is None or course.last is None or course.last[0] <= course.first[0]:
        return None
    return (course.last[1].epochs - course.first[1].epochs) / (course.last[0] - course.first[0])


def seconds_left(course: Course, now: float) -> float | None:
    """Until a block is finished; None while nobody can tell.

    Chains know their length. Tempering goes on as it does: by the same factor in each stage.
    """
    if course.first is None or course.last is None:
        return None
    status = course.last[1]
    if status.tempering >= 1:
        gained = status.share - course.first[1].share
        if gained <= 0:
            return None
        left = (1 - status.share) * (course.last[0] - course.first[0]) / gained
        return max(left - (now - course.last[0]), 0.0)
    stages = stages_left(status.tempering, course.advance)
    if stages is None or course.pace is None:
        return None
    return max(stages * course.pace - (now - course.turned), 0.0)


def stages_left(tempering: float, advance: float | None) -> int | None:
    """Until tempering 1, if its logarithm goes on to grow by `advance` in a stage; None if that is not known.

    >>> stages_left(0.1, math.log(2))  # 0.2, 0.4, 0.8, 1
    4
    """
    if advance is None or advance <= 0 or tempering <= 0:
        return None
    return max(math.ceil(-math.log(tempering) / advance - 1e-9), 0)


def run_seconds_left(
    courses: Sequence[Course], waiting: int, durations: Sequence[float], now: float
) -> float | None:
    """Until the last block is finished, if blocks that wait begin as others end; None while nobody can tell.

    A block that waits will take as long as the finished ones took, or else as those under way seem to take.
    """
    if not courses:
        return None if waiting else 0.0
    lefts = [seconds_left(course, now) for course in courses]
    whole = list(durations) or [
        now - course.begun + left for course, left in zip(courses, lefts, strict=True) if left is not None
    ]
    if not whole:
        return None
    usual = sum(whole) / len(whole)
    ends = [
        max(usual - (now - course.begun), 0.0) if left is None else left
        for course, left in zip(courses, lefts, strict=True)
    ]
    return last_end(ends, waiting, usual)


def last_end(ends: Sequence[float], waiting: int, duration: float) -> float:
    """When the last of blocks that wait is done, if each begins as soon as another ends, and takes `duration`.

    >>> last_end([3.0, 5.0], 3, 4.0)  # 3 → 7 → 11, 5 → 9
    11.0
    """
    ends, latest = list(ends), max(ends)
    heapq.heapify(ends)
    while waiting and (latest - ends[0] > duration or waiting % len(ends)):
        latest = max(latest, ends[0] + duration)
        heapq.heapreplace(ends, ends[0] + duration)
        waiting -= 1
    return latest + waiting // len(ends) * duration  # from here on they take turns


def settled(before: tuple[float, float] | None, now: float, end: float) -> float:
    """The end of a run, smoothed over a twentieth of what is left; `before` is when it was said to be when."""
    if before is None:
        return end
    span = max((end - now) / 20, 1.0)
    return _smooth(before[1], end, 1 - math.exp((before[0] - now) / span))


def _smooth(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)
