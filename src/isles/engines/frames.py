"""Messages over a pipe: eight bytes of length, then that many bytes."""

from __future__ import annotations

from io import FileIO

HALT = b"halt"  # a message that is no pickle: stop after a checkpoint


def send(pipe: FileIO, message: bytes) -> None:
    """Write one message."""
    for part in (len(message).to_bytes(8, "little"), message):
        view = memoryview(part)
        while view:
            view = view[pipe.write(view) :]


def receive(pipe: FileIO) -> bytearray | None:
    """Read one message; None if the other side is gone."""
    header = _read(pipe, 8)
    return None if header is None else _read(pipe, int.from_bytes(header, "little"))


def _read(pipe: FileIO, size: int) -> bytearray | None:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = pipe.readinto(view)
        if not count:
            return None
        view = view[count:]
    return buffer
