"""Files that are written whole or not at all: safetensors with JSON facts, and plain JSON. Never a pickle.

A file goes to a temporary name, is flushed to disk and renamed. Each carries a checksum of its content, so that a
damaged one is seen when it is read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from isles.checks import DamagedFileError, FolderError
from isles.files import whole

Tensors = dict[str, np.ndarray[Any, Any]]
FileName = str | os.PathLike[str]


def write(path: FileName, tensors: Tensors, facts: Mapping[str, Any]) -> str:
    """Write tensors and JSON facts; their checksum is returned."""
    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    text = json.dumps(facts)
    checksum = _checksum(contiguous, text)
    _write_whole(Path(path), save(contiguous, metadata={"isles": f"{checksum} {text}"}))
    return checksum


def read(path: FileName) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and facts of a file that `write` wrote, unharmed."""
    tensors, facts, _ = read_with_checksum(path)
    return tensors, facts


def read_with_checksum(path: FileName) -> tuple[Tensors, dict[str, Any], str]:
    """Tensors, facts and the checksum they agree with."""
    with _reading(path):
        try:
            with safe_open(os.fspath(path), framework="np") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, MemoryError) as error:
            raise DamagedFileError(f"{path} is no readable file of isles: {error}") from error
        checksum, _, text = metadata.get("isles", "").partition(" ")
        if not text:
            raise DamagedFileError(f"{path} holds tensors, but not of isles; give a file that isles wrote")
        if _checksum(tensors, text) != checksum:
            raise DamagedFileError(f"{path} is damaged: its content does not match its checksum")
        return tensors, _facts(path, text), checksum


def read_tensor(path: FileName, name: str) -> np.ndarray[Any, Any]:
    """One tensor of a file, which is read no further, so that damage elsewhere goes unnoticed."""
    with _reading(path):
        try:
            with safe_open(os.fspath(path), framework="np") as file:
                return file.get_tensor(name)
        except (SafetensorError, ValueError, TypeError, KeyError) as error:
            raise DamagedFileError(f"{path} is no readable file of isles: {error}") from error


def write_json(path: FileName, content: Mapping[str, Any]) -> None:
    """Write a JSON file that carries its checksum."""
    whole = {"checksum": _checksum({}, json.dumps(content)), **content}
    _write_whole(Path(path), (json.dumps(whole, indent=1) + "\n").encode())


def read_json(path: FileName) -> dict[str, Any]:
    """The content of a file that `write_json` wrote, unharmed."""
    with _reading(path):
        content = _facts(path, Path(path).read_bytes().decode(errors="replace"))
    if content.pop("checksum", None) != _checksum({}, json.dumps(content)):
        raise DamagedFileError(f"{path} is damaged: its content does not match its checksum")
    return content


def write_text(path: FileName, text: str) -> None:
    """Write a text file."""
    _write_whole(Path(path), text.encode())


@contextlib.contextmanager
def writing(path: FileName) -> Iterator[None]:
    """Turn an error of the file system into one that says what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FolderError):
            raise
        if error.errno is None:  # of `files.whole`, which has said it all
            raise FolderError(str(error)) from error
        remedy = {
            errno.ENOSPC: "free some space",
            errno.EDQUOT: "free some of your quota",
            errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
            errno.EACCES: "make the folder writable",
            errno.EPERM: "make the folder writable",
            errno.EROFS: "choose a folder that can be written to",
        }.get(error.errno or 0, "mend that")
        raise FolderError(
            f"cannot write {path}: {error.strerror or error}; {remedy}, then resume: whatever was saved before is "
            f"still there"
        ) from error


@contextlib.contextmanager
def _reading(path: FileName) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}; check the path") from None
    except OSError as error:
        if isinstance(error, DamagedFileError):
            raise
        raise FolderError(f"cannot read {path}: {error.strerror or error}; mend that, and try again") from error


def _facts(path: FileName, text: str) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
        raise DamagedFileError(f"{path} is no readable file of isles: {error}") from error
    if not isinstance(facts, dict):
        raise DamagedFileError(f"{path} is no readable file of isles: it holds {type(facts).__name__}, not facts")
    return facts


def _write_whole(path: Path, content: bytes) -> None:
    with writing(path):
        with whole(path) as file:
            file.write(content)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames last through a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _checksum(tensors: Tensors, text: str) -> str:
    digest = hashlib.sha256(text.encode(errors="surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype.str}\0{tensor.shape}\0".encode(errors="surrogatepass"))
        if tensor.size:
            digest.update(tensor.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
