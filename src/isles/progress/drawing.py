"""A run drawn on stderr by a thread of its own: telling it of progress costs microseconds, drawing does not."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
import threading
import time
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from isles.progress.estimates import Course, epochs_per_second
from isles.progress.tally import Overview, Tally
from isles.samplers.block import Status

TICK = 0.5  # seconds between drawings
LINE_SECONDS = 10.0  # between lines, where nothing can be drawn
LEAST_SECONDS = 1.0  # between lines, however many blocks end
SHOWN = 8  # blocks at a time
BAR = 16  # characters


class Painter(Protocol):
    """Puts a run before a reader's eyes."""

    def begin(self) -> None:
        """Make ready."""
        ...

    def draw(self, tally: Tally) -> None:
        """Show how the run stands."""
        ...

    def say(self, text: str) -> None:
        """Show a message that stays."""
        ...

    def end(self, tally: Tally) -> None:
        """Leave how the run stood at its end."""
        ...


def choose(*, lines: bool) -> Painter | None:
    """What suits stderr; plain lines only if asked for, else None where nothing can be drawn."""
    if sys.stderr is None:  # as under pythonw
        return None
    console = Console(stderr=True)
    if console.is_jupyter:
        drawable = importlib.util.find_spec("ipywidgets") is not None
    else:
        drawable = console.is_terminal and not console.is_dumb_terminal
    if drawable:
        return Screen(console)
    return Lines() if lines else None


class Drawn:
    """A display that a thread draws."""

    def __init__(self, painter: Painter, blocks: int, finished: int, epochs: int) -> None:
        self._painter, self._tally = painter, Tally(blocks, finished, epochs)
        self.begin, self.update = self._tally.begin, self._tally.update
        self.finish, self.leave = self._tally.finish, self._tally.leave
        # unlike other queues, it may be written to by a signal handler at any moment
        self._messages: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._draw, name="isles progress", daemon=True)

    def say(self, text: str) -> None:
        """Show a message that stays."""
        self._messages.put(text)

    def __enter__(self) -> Drawn:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._messages.put(None)
        self._thread.join(timeout=5)  # a reader who stands still shall not keep the run

    def _draw(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more; the run goes on
            self._painter.begin()
            try:
                while (text := self._next_message()) is not None:
                    if text:
                        self._painter.say(text)
                    self._painter.draw(self._tally)
            finally:
                self._painter.end(self._tally)

    def _next_message(self) -> str | None:
        """A message; "" if there is none for a while; None after the last."""
        with contextlib.suppress(Empty):
            return self._messages.get(timeout=TICK)
        return ""


class Screen:
    """A live display, at the lower end of a terminal or in a notebook."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(
            console=console,
            auto_refresh=False,
            # what is printed meanwhile goes above; but stdout may lead elsewhere than to this terminal
            redirect_stdout=console.is_jupyter or (sys.stdout is not None and sys.stdout.isatty()),
        )

    def begin(self) -> None:
        """Take the lower lines."""
        self._live.start()

    def draw(self, tally: Tally) -> None:
        """Blocks under way, and the run as a whole."""
        courses, overview = dict(tally.courses), tally.overview()
        parts: list[Table | Text] = []
        if courses:
            parts.append(draw_blocks(courses))
        if len(courses) > SHOWN:
            parts.append(Text(f"and {len(courses) - SHOWN} more", style="dim"))
        parts.append(
            Text(f"{describe(overview)}, {describe_end(overview.left)}", no_wrap=True, overflow="ellipsis")
        )
        self._live.update(Group(*parts), refresh=True)

    def say(self, text: str) -> None:
        """Above the live lines."""
        self._console.print(Text(text))

    def end(self, tally: Tally) -> None:
        """One line stays."""
        self._live.update(Text(describe(tally.overview())))
        self._live.stop()


class Lines:
    """A line now and then, and when blocks end."""

    def __init__(self) -> None:
        self._last, self._done = -math.inf, -1

    def begin(self) -> None:
        """Nothing."""

    def draw(self, tally: Tally) -> None:
        """A line, if it is time for one."""
        since = time.monotonic() - self._last
        if self._done < 0:
            self._last, self._done = time.monotonic(), tally.done
        elif since >= LINE_SECONDS or (tally.done != self._done and since >= LEAST_SECONDS):
            self._write(tally)

    def say(self, text: str) -> None:
        """A line of its own."""
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def end(self, tally: Tally) -> None:
        """The last line."""
        self.say(describe(tally.overview()))

    def _write(self, tally: Tally) -> None:
        courses, overview = dict(tally.courses), tally.overview()
        self._last, self._done = time.monotonic(), overview.done
        text = f"{describe(overview)}, {describe_end(overview.left)}"
        heard = {number: course.last[1] for number, course in courses.items() if course.last}
        if heard:
            slowest = min(heard, key=lambda number: heard[number].share)
            text += f"; block {slowest}: {describe_status(heard[slowest])}"
        self.say(text)


def draw_blocks(courses: dict[int, Course]) -> Table:
    """One line a block, the first few."""
    chosen = [(number, courses[number]) for number in sorted(courses)[:SHOWN]]
    chains = all(course.last is None or course.last[1].tempering >= 1 for _, course in chosen)
    names = ["step", "acceptance"] if chains else ["stage", "tempering", "ESS", "acceptance"]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("block", *names, "epochs/s", ""):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("share", no_wrap=True)
    for number, course in chosen:
        if course.last is None:
            table.add_row(str(number), "starts")
            continue
        status = course.last[1]
        cells = [f"{status.stage:,}"]
        if not chains:
            cells += [f"{status.tempering:.2g}", _number(status.ess, ".1f")]
        cells += [_number(status.acceptance, ".2f"), _number(epochs_per_second(course), ",.0f")]
        filled = round(BAR * status.share)
        bar = Text.assemble(("━" * filled, "green"), ("━" * (BAR - filled), "dim"))
        table.add_row(str(number), *cells, f"{status.share:.0%}", bar)
    return table


def describe(overview: Overview) -> str:
    """The run as a whole, in words, without its end."""
    rate = overview.epochs_per_second
    parts = [
        f"{overview.done} of {overview.blocks} blocks",
        f"{overview.epochs:,} epochs" + ("" if rate is None else f", {rate:,.0f} a second"),
        f"{clock(overview.elapsed)} elapsed",
    ]
    return ", ".join(parts)


def describe_end(left: float | None, now: float | None = None) -> str:
    """When a run ends, if that is known."""
    if left is None:
        return "estimating the end"
    end = time.localtime((time.time() if now is None else now) + left)
    day = "" if left < 86400 else time.strftime("%a %d %b ", end)
    return f"about {clock(left)} left (until {day}{time.strftime('%H:%M', end)})"


def describe_status(status: Status) -> str:
    """Where a block stands, in words."""
    if status.tempering >= 1:
        parts = [f"step {status.stage:,}"]
    else:
        parts = [f"stage {status.stage}", f"tempering {status.tempering:.2g}"]
        if math.isfinite(status.ess):
            parts.append(f"ESS {status.ess:.1f}")
    if math.isfinite(status.acceptance):
        parts.append(f"acceptance {status.acceptance:.2f}")
    return ", ".join([*parts, f"{status.share:.0%}"])


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3723.4), clock(59.6)
    ('1:02:03', '1:00')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None or not math.isfinite(value) else format(value, form)
