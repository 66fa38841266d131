"""A worker process: `python -m isles._worker FD` runs blocks for the process that started it.

It reads a pickled `Work` and a run folder from stdin, then block numbers. Checkpoints and results go to the
folder, what happened to the file descriptor FD.
The other side of these pipes is `engines/local.py`.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from io import FileIO
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import cloudpickle

from isles import cache
from isles.engines import frames
from isles.engines.blocks import Done, Kept, Reached, Work, follow_in_folder
from isles.engines.local import REPORT_SECONDS, portable
from isles.store.folder import RunFolder


def main(descriptor: int) -> None:
    """Run blocks until there is nobody left to run them for, or one raises."""
    os.set_inheritable(descriptor, False)
    replies = FileIO(descriptor, "wb")
    halt = Event()
    orders = _listen(halt)
    cache.keep_compiled()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # this process ends without a flush
    try:
        work, folder = _read_work(orders.get())
        warnings.showwarning = lambda message, *_, **__: _reply(replies, "warning", str(message))
        while True:
            number, life_seen = pickle.loads(orders.get())
            _run(work, RunFolder(folder), number, life_seen, halt.is_set, replies)
    except BaseException as error:
        _reply(replies, "error", portable(error), "".join(traceback.format_exception(error)))


def _run(
    work: Work, folder: RunFolder, number: int, life_seen: bool, halt: Callable[[], bool], replies: FileIO
) -> None:
    last = -math.inf
    for event in follow_in_folder(work, folder, number, life_seen=life_seen, halt=halt):
        match event:
            case Done(result):
                _reply(replies, "done", int(result.epochs.sum()))
            case Reached() | Kept():
                if time.monotonic() - last >= REPORT_SECONDS:
                    last = time.monotonic()
                    _reply(replies, "event", Reached(event.status))
            case _:
                _reply(replies, "event", event)


def _read_work(message: bytearray) -> tuple[Work, str]:
    try:
        return pickle.loads(message)
    except Exception as error:
        error.add_note(
            "a worker process cannot rebuild the problem, the sampler or a collected function; move the classes "
            "they use, pytrees above all, from the script into a module that it imports"
        )
        raise


def _listen(halt: Event) -> SimpleQueue[bytearray]:
    """Messages from stdin, out of reach of users' code. The end of stdin is the end of this process."""
    orders: SimpleQueue[bytearray] = SimpleQueue()
    pipe = FileIO(os.dup(0), "rb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def listen() -> None:
        while (message := frames.receive(pipe)) is not None:
            if message == frames.HALT:
                halt.set()
            else:
                orders.put(message)
        os._exit(1)  # at once, whatever the other thread computes

    Thread(target=listen, daemon=True).start()
    return orders


def _reply(replies: FileIO, *message: Any) -> None:
    try:
        frames.send(replies, cloudpickle.dumps(message))
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
