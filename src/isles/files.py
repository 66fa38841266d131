"""Where isles keeps files that it can make again, and how a file gets there whole. No formats, no JAX."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def cache_folder() -> Path:
    """`ISLES_CACHE`, or the user's cache folder."""
    if chosen := os.environ.get("ISLES_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "isles"


def check_folder(path: Path) -> None:
    """Raise if the folder that a file is to be written to is not there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to; make it first")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears under `path` at the end, flushed to disk: whole or not at all."""
    check_folder(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
