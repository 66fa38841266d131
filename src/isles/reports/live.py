"""A page about a run that is going on, served on this machine only, which reads the folder and changes nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from isles.planning.forecast import show_seconds
from isles.progress import estimates
from isles.progress.estimates import Course
from isles.reports.folder import block_table, describe, read_traces
from isles.reports.html import Page, facts_table
from isles.reports.page import trace_figures
from isles.samplers.block import Status
from isles.store.folder import RunFolder
from isles.store.status import FINISHED, NOT_BEGUN, STARTING, UNDER_WAY, BlockStatus, read_status

HOST = "127.0.0.1"
REFRESH = 5  # seconds
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


class Watch:
    """A run as it goes on; looked at again and again, it learns how fast."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = folder
        self._courses: dict[int, Course] = {}

    def page(self, now: float | None = None) -> Page:
        """How far the run is; `now` in seconds since the epoch of the clock."""
        now = time.time() if now is None else now
        status = read_status(self.folder)
        done = status.count(FINISHED)
        over = done == len(status.blocks)
        page = Page(f"{Path(self.folder).resolve().name}: run {'finished' if over else 'under way'}")
        page.refresh = None if over else REFRESH
        share = sum(block.share * block.size for block in status.blocks) / status.islands
        sentence = f"{done} of {len(status.blocks)} blocks finished, about {share:.0%} of the work done"
        if over:
            page.verdict("sound", f"The run is finished: isles report {self.folder} shows the result.", [])
        else:
            page.verdict("running", f"{sentence}. {self._end(status.blocks, now)}", [])
        page.progress = share
        page.add("Blocks", block_table(status.blocks))
        page.add("How the run goes", *trace_figures(read_traces(self.folder, status.blocks), finished=over))
        page.add("What is run", facts_table(describe(RunFolder(self.folder).definition().facts)))
        return page

    def _end(self, blocks: Sequence[BlockStatus], now: float) -> str:
        under_way = [block for block in blocks if block.state == UNDER_WAY]
        if not under_way:
            return (
                "No block has a checkpoint yet."
                if all(block.state in (NOT_BEGUN, STARTING) for block in blocks)
                else ""
            )
        for block in under_way:
            saved = RunFolder(self.folder).block(block.number).saved_at or now
            course = self._courses.get(block.number) or Course(saved - (block.seconds or 0.0))
            self._courses[block.number] = estimates.follow(course, _status(block), saved)
        durations = [block.seconds for block in blocks if block.state == FINISHED and block.seconds is not None]
        waiting = sum(block.state in (NOT_BEGUN, STARTING) for block in blocks)
        courses = [self._courses[block.number] for block in under_way]
        left = estimates.run_seconds_left(courses, waiting, durations, now)
        if left is None:
            return "Its end can be estimated after a few more checkpoints."
        end = time.strftime("%H:%M on %d %B", time.localtime(now + left))
        return f"About {show_seconds(left)} left, until {end}."


def serve(folder: str | os.PathLike[str], port: int = 0) -> ThreadingHTTPServer:
    """A server of the page at 127.0.0.1, to be run by its `serve_forever`; port 0 is any free one."""
    watch, lock = Watch(folder), threading.Lock()
    watch.page()  # raises here if there is no run

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "isles", ""

        def do_GET(self) -> None:
            """The page, and nothing else."""
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            """Its headers."""
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            # another name for this machine would let a foreign page read this one
            if self.headers.get("Host") not in hosts:
                self.send_error(HTTPStatus.FORBIDDEN)
                return
            if self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            with lock:  # drawing is not for threads
                try:
                    body = watch.page().render().encode()
                except OSError as error:
                    self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
                    return
            self.send_response(HTTPStatus.OK)
            for name, value in {
                "Content-Type": "text/html; charset=utf-8",
                "Content-Length": str(len(body)),
                "Content-Security-Policy": POLICY,
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cache-Control": "no-store",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Silence."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    hosts = tuple(f"{name}:{server.server_port}" for name in (HOST, "localhost"))
    return server


def _status(block: BlockStatus) -> Status:
    missing = float("nan")
    return Status(
        block.share, block.stage or 0, missing if block.tempering is None else block.tempering, missing,
        missing if block.acceptance is None else block.acceptance, block.epochs or 0,
    )  # fmt: skip
