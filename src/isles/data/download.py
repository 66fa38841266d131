"""Downloads that end with the right file or a clear error. Which files there are is not known here."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

ATTEMPTS = 3  # at each address
PAUSE = 1.0  # seconds before the second attempt, twice that before the third
TIMEOUT = 30.0  # seconds without a byte
PIECE = 1 << 18

Show = Callable[[int], None]  # takes the bytes that are there


class DownloadError(OSError):
    """A file could not be downloaded from any of its addresses, or not be written."""


class _WrongFileError(Exception):
    """The server has another file: asking again is no use."""


class _StalePartError(Exception):
    """What an earlier attempt left does not lead to the file: begin again."""


def download(urls: Sequence[str], path: Path, *, sha256: str, size: int, progress: bool = False) -> None:
    """Download to `path` from the first of `urls` that gives a file of this SHA-256 and size in bytes.

    Bytes are gathered in `<path>.part`, on from where an earlier attempt broke off, and renamed once they are
    whole and checked. Processes that want the same file wait for one another.
    """
    part = path.with_name(path.name + ".part")
    failures = []
    with _alone(path.with_name(path.name + ".lock")), _bar(path.name, size, progress) as show:
        if path.exists():  # another process was faster
            return
        for url in urls:
            for attempt in range(ATTEMPTS):
                time.sleep(PAUSE * attempt)
                try:
                    resumed = _fetch(url, part, size, show)
                    _check(part, sha256, resumed)
                    os.replace(part, path)
                    return
                except DownloadError:
                    raise
                except (_WrongFileError, _StalePartError, http.client.HTTPException, OSError) as error:
                    failure, hopeless = f"{url}: {_reason(error)}", _hopeless(error)
                if hopeless:
                    break
            failures.append(failure)
    raise DownloadError("; ".join(failures))


def _fetch(url: str, part: Path, size: int, show: Show) -> bool:
    """Bring `part` to its full size; True if some of it had been there before."""
    have = part.stat().st_size if part.exists() else 0
    if have >= size:
        return True
    # identity: with a compressed transfer, sizes and ranges would be those of other bytes
    request = urllib.request.Request(url, headers={"User-Agent": "isles", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        reply = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise _stale(part, "the server has no more bytes") from None
            raise
    with reply:
        resumed = reply.status == http.HTTPStatus.PARTIAL_CONTENT
        if not resumed:
            have = 0
            announced = reply.headers.get("Content-Length")
            if announced is not None and announced != str(size):
                raise _WrongFileError(f"has {announced} bytes, not the {size} of the file wanted")
        with _open(part, "ab" if resumed else "wb") as file:
            while have <= size and (piece := reply.read(PIECE)):
                with _writing(part):
                    file.write(piece)
                have += len(piece)
                show(have)
            with _writing(part):
                file.flush()
                os.fsync(file.fileno())
    if have < size:
        raise ConnectionError(f"broke off after {have} of {size} bytes")
    return resumed


def _check(part: Path, sha256: str, resumed: bool) -> None:
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found == sha256:
        return
    message = f"has the SHA-256 {found}, not {sha256}"
    if resumed:
        raise _stale(part, message)
    part.unlink()
    raise _WrongFileError(message)


def _stale(part: Path, message: str) -> _StalePartError:
    part.unlink(missing_ok=True)
    return _StalePartError(message)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _hopeless(error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return 400 <= error.code < 500 and error.code not in (408, 429)  # these two ask for patience
    return isinstance(error, _WrongFileError)


def _open(path: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    with _writing(path):
        return open(path, mode)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DownloadError(f"{path} cannot be written ({error}); make room, or set ISLES_CACHE") from error


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other process holds this lock, where the system has locks; a killed process holds none."""
    with _open(lock, "wb") as file:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _bar(name: str, size: int, progress: bool) -> Iterator[Show]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task(name, total=size)
        yield lambda done: bar.update(task, completed=done)
