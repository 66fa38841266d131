"""A worker process: `python -m isles._worker FD` runs blocks for the process that started it.

It reads a pickled `Work` from stdin, then block numbers, and writes what they give to the file descriptor FD.
The other side of these pipes is `engines/local.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import time
import traceback
from io import FileIO
from queue import SimpleQueue
from threading import Thread
from typing import Any

import cloudpickle

from isles import cache
from isles.engines import Show, Work, frames, run_block

REPORT_SECONDS = 0.1  # between two reports of progress, which may otherwise come thousands a second


def main(descriptor: int) -> None:
    """Run blocks until there is nobody left to run them for, or one raises."""
    os.set_inheritable(descriptor, False)
    replies = FileIO(descriptor, "wb")
    orders = _listen()
    cache.keep_compiled()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # this process ends without a flush
    try:
        work = _read_work(orders.get())
        while True:
            number, life_seen = pickle.loads(orders.get())
            _reply(replies, "outcome", run_block(work, number, _reporter(replies), life_seen=life_seen))
    except BaseException as error:
        _reply(replies, "error", _portable(error), "".join(traceback.format_exception(error)))


def _read_work(message: bytearray) -> Work:
    try:
        return pickle.loads(message)
    except Exception as error:
        error.add_note(
            "a worker process cannot rebuild the problem, the sampler or a collected function; move the classes "
            "they use, pytrees above all, from the script into a module that it imports"
        )
        raise


def _listen() -> SimpleQueue[bytearray]:
    """Messages from stdin, out of reach of users' code. The end of stdin is the end of this process."""
    orders: SimpleQueue[bytearray] = SimpleQueue()
    pipe = FileIO(os.dup(0), "rb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def listen() -> None:
        while (message := frames.receive(pipe)) is not None:
            orders.put(message)
        os._exit(1)  # at once, whatever the other thread computes

    Thread(target=listen, daemon=True).start()
    return orders


def _reporter(replies: FileIO) -> Show:
    last = -REPORT_SECONDS

    def show(share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_SECONDS:
            last = now
            _reply(replies, "progress", share)

    return show


def _reply(replies: FileIO, *message: Any) -> None:
    try:
        frames.send(replies, cloudpickle.dumps(message))
    except BrokenPipeError:
        os._exit(1)


def _portable(error: BaseException) -> BaseException:
    """The error itself, if it survives the way to another process, or its text."""
    with contextlib.suppress(Exception):
        if str(pickle.loads(cloudpickle.dumps(error))) == str(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
