"""The run folder: who may write to it, its checkpoints, traces and results. What they mean lives elsewhere.

run.json, run.safetensors            the definition
blocks/0003/state-000012.safetensors + .json   checkpoints, the newest two
blocks/0003/trace.jsonl              a line a stage
blocks/0003/result.safetensors       of a finished block
posterior.safetensors                of a finished run
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from isles.checks import DamagedFileError, FolderError, IslesWarning
from isles.store import files
from isles.store.files import Tensors

KEPT = 2  # checkpoints of a block: the newest, and the one before it
PATIENCE = 120.0  # seconds that a dying process may take to let go of a block
STATE = re.compile(r"state-(\d{6,})\.json")


class Saved(NamedTuple):
    """The content of a checkpoint or a result."""

    tensors: Tensors
    facts: dict[str, Any]


class RunFolder:
    """A folder that holds one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "run.json").exists()

    @property
    def posterior_path(self) -> Path:
        """Where the merged posterior is kept."""
        return self.path / "posterior.safetensors"

    def create(self, definition: Mapping[str, Any], tensors: Tensors) -> None:
        """Begin a run in a folder that is empty or does not exist."""
        with files.writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.check_strangers()
        if tensors:
            files.write(self.path / "run.safetensors", tensors, {})
        files.write_json(self.path / "run.json", {"has_tensors": bool(tensors), **definition})

    def definition(self) -> Saved:
        """What `create` was given."""
        if not self.path.is_dir():
            raise FolderError(f"there is no folder {self.path}; give the folder of a run")
        if not self.holds_run:
            raise FolderError(f"{self.path} holds no run: it has no run.json; give the folder of a run")
        try:
            facts = files.read_json(self.path / "run.json")
            tensors = files.read(self.path / "run.safetensors")[0] if facts.pop("has_tensors", False) else {}
        except (DamagedFileError, FileNotFoundError) as error:
            raise DamagedFileError(f"{error}; restore it from a copy, or begin again in another folder") from error
        return Saved(tensors, facts)

    def block(self, number: int) -> BlockFolder:
        """The folder of one block."""
        return BlockFolder(self.path / "blocks" / f"{number:04d}")

    def check_strangers(self) -> None:
        """Raise if a folder without a run holds what isles did not write."""
        with files.writing(self.path):
            if self.holds_run or not self.path.exists():
                return
            if not self.path.is_dir():
                raise FolderError(f"{self.path} is a file; give a new folder, or an empty one")
            strangers = sorted(entry.name for entry in self.path.iterdir() if not _ours(entry.name))
        if strangers:
            raise FolderError(
                f"{self.path} holds other files ({', '.join(strangers[:3])}); give a new folder, or an empty one"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running this folder."""
        with files.writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with _lock(self.path / "lock", patience=0.0):
            with contextlib.suppress(OSError):  # left by a killed process; it costs space, not answers
                for path in self.path.glob(".*.tmp"):
                    path.unlink(missing_ok=True)
            yield


class BlockFolder:
    """The folder of one block of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working on this block; one that is about to die is waited for."""
        with files.writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with _lock(self.path / "lock", patience=PATIENCE):
            self._tidy()
            yield

    def _tidy(self) -> None:
        """Remove what a killed process left half done; nobody else writes here now."""
        finished = {self._state(number).with_suffix(".safetensors") for number in self._numbers()}
        with contextlib.suppress(OSError):  # it costs space, not answers
            for path in [*self.path.glob(".*.tmp"), *set(self.path.glob("state-*.safetensors")) - finished]:
                path.unlink(missing_ok=True)

    def save(self, saved: Saved, status: Mapping[str, Any]) -> None:
        """Write a checkpoint; the one before it is kept, older ones go."""
        number = max(self._numbers(), default=-1) + 1
        checksum = files.write(self._state(number).with_suffix(".safetensors"), *saved)
        files.write_json(self._state(number), {"tensors": checksum, **status})
        with files.writing(self.path):
            for old in self._numbers()[:-KEPT]:
                self._state(old).unlink(missing_ok=True)
                self._state(old).with_suffix(".safetensors").unlink(missing_ok=True)

    def newest(self) -> Iterator[Saved]:
        """Good checkpoints, the newest first, with a warning for each that is not."""
        for number in reversed(self._numbers()):
            try:
                yield self._read(number)
            except (DamagedFileError, FileNotFoundError) as error:
                warn_of_damage(error, "the checkpoint before it is used, or the block begins anew")

    def status(self) -> dict[str, Any] | None:
        """What the newest readable checkpoint says of itself."""
        for number in reversed(self._numbers()):
            with contextlib.suppress(FolderError, FileNotFoundError):
                return files.read_json(self._state(number))
        return None

    def _read(self, number: int) -> Saved:
        status = files.read_json(self._state(number))
        tensors, facts, checksum = files.read_with_checksum(self._state(number).with_suffix(".safetensors"))
        if status.get("tensors") != checksum:
            raise DamagedFileError(f"{self._state(number)} belongs to other tensors than lie beside it")
        return Saved(tensors, facts)

    def _state(self, number: int) -> Path:
        return self.path / f"state-{number:06d}.json"

    def _numbers(self) -> list[int]:
        if not self.path.is_dir():
            return []
        return sorted(int(found[1]) for name in os.listdir(self.path) if (found := STATE.fullmatch(name)))

    def write_trace(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Begin the trace anew with these records, as after a checkpoint was read."""
        files.write_text(self.path / "trace.jsonl", "".join(map(_line, records)))

    def add_to_trace(self, records: Sequence[Mapping[str, Any]]) -> None:
        """A line for each further stage."""
        with files.writing(self.path), open(self.path / "trace.jsonl", "a") as file:
            file.writelines(map(_line, records))

    def trace(self) -> list[dict[str, Any]]:
        """The records of all stages so far; a line that is being written is left out."""
        try:
            text = (self.path / "trace.jsonl").read_text()
        except FileNotFoundError:
            return []
        records = []
        for line in text.splitlines(keepends=True):
            with contextlib.suppress(json.JSONDecodeError):
                if line.endswith("\n"):
                    records.append(json.loads(line))
        return records

    def save_result(self, saved: Saved) -> None:
        """Write the result; its checkpoints are of no more use."""
        with files.writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        files.write(self.result_path, *saved)
        with files.writing(self.path):
            for number in self._numbers():
                self._state(number).with_suffix(".safetensors").unlink(missing_ok=True)
                self._state(number).unlink(missing_ok=True)

    @property
    def result_path(self) -> Path:
        """Where the result is kept."""
        return self.path / "result.safetensors"

    @property
    def is_locked(self) -> bool:
        """Whether a process works on this block; one that waits for it would not notice the question."""
        with contextlib.suppress(FileNotFoundError, PermissionError), open(self.path / "lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:  # a file system without locks
                return False
        return False

    @property
    def has_begun(self) -> bool:
        """Whether there is a checkpoint or a result."""
        return self.has_result or bool(self._numbers())

    @property
    def saved_at(self) -> float | None:
        """When the newest checkpoint was written, in seconds since the epoch of the clock."""
        for number in reversed(self._numbers()):
            with contextlib.suppress(FileNotFoundError):
                return self._state(number).stat().st_mtime
        return None

    @property
    def seconds(self) -> float | None:
        """From when the last process took this block up to what it saved last; None if that cannot be told."""
        with contextlib.suppress(FileNotFoundError):
            begun = (self.path / "lock").stat().st_mtime
            saved = self.result_path.stat().st_mtime if self.has_result else self.saved_at
            return saved - begun if saved is not None and saved >= begun else None
        return None

    @property
    def has_result(self) -> bool:
        """Whether the block is finished, though its file may be damaged."""
        return (self.result_path).exists()

    def result(self) -> Saved | None:
        """The result; None if there is none that can be read."""
        if not self.has_result:
            return None
        try:
            return Saved(*files.read(self.result_path))
        except DamagedFileError as error:
            warn_of_damage(error, "the block is run again")
            return None


def warn_of_damage(error: Exception, consequence: str) -> None:
    """Say that a file is not used."""
    warnings.warn(f"{error}; {consequence}", IslesWarning, stacklevel=3)


def _ours(name: str) -> bool:
    return name in {"lock", "blocks", "run.safetensors", "log"} or name.endswith(".tmp")


def _line(record: Mapping[str, Any]) -> str:
    plain = {name: np.asarray(value).tolist() for name, value in record.items()}
    return json.dumps(plain).replace("NaN", "null") + "\n"


@contextlib.contextmanager
def _lock(path: Path, patience: float) -> Iterator[None]:
    """Hold a lock that the system lets go of when this process ends, however it ends."""
    with files.writing(path):
        file = open(path, "a+")  # noqa: SIM115
    with file:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FolderError(
                        f"{path.parent} is in use by {_holder(file)}; wait for it, stop it or give another folder"
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                raise FolderError(
                    f"{path.parent} cannot be locked: {error.strerror}; use a local folder"
                ) from error
        file.seek(0)
        file.truncate()
        with contextlib.suppress(OSError):  # a full disk: the lock is held all the same
            file.write(f"process {os.getpid()} on {os.uname().nodename}")
            file.flush()
        yield


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read(200) or "another process"
