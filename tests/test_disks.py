"""Disks that are full, or cannot be written: a clear error, and what was saved stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import isles
from halves import PILOT, Half, problem, resume
from kills import assert_same_bits, drive, finish

pytestmark = pytest.mark.filterwarnings("ignore::isles.IslesWarning")

FULL = """
import resource, isles, halves
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    halves.resume(Path({folder!r}))
except isles.FolderError as error:
    print(error)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("blocks/*/*.safetensors")}


def test_a_full_disk_is_a_clear_error_and_checkpoints_stay(half: Half, tmp_path: Path) -> None:
    folder = half.copy(tmp_path / "run")
    before = contents(folder)
    code, out, errors = finish(drive(FULL.format(folder=str(folder), limit=700)))
    assert code == 0, errors
    assert "cannot write" in out and "File too large" in out, out
    assert "ulimit -f" in out and "then resume: whatever was saved before is still there" in out
    assert contents(folder) == before
    assert not list(folder.rglob(".*.tmp"))
    assert_same_bits(half.whole, resume(folder))


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EROFS, "choose a folder that can be written to"), (errno.ENOSPC, "free some space"),
     (errno.EACCES, "make the folder writable"), (errno.EIO, "mend that")],
)  # fmt: skip
@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_disk_that_refuses_is_a_clear_error_and_checkpoints_stay(
    number: int, remedy: str, function: str, half: Half, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = half.copy(tmp_path / "run")
    before = contents(folder)

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, refuse)
        with pytest.raises(
            isles.FolderError, match=f"cannot write .*{os.strerror(number)}; {remedy}, then resume"
        ):
            resume(folder)
    assert contents(folder) == before
    assert not list(folder.rglob(".*.tmp"))
    assert_same_bits(half.whole, resume(folder))


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(isles.FolderError, match=r"cannot write .*file/run: Not a directory"):
        isles.sample(problem(), PILOT, folder=tmp_path / "file" / "run")
