"""The codec, files and folders that runs are kept in."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import isles
from isles.store import codec, files, folder
from isles.store.codec import ForeignClassError
from isles.store.folder import BlockFolder, RunFolder, Saved


class Pair(NamedTuple):
    """A known class."""

    one: Any
    two: Any


@dataclass(frozen=True)
class Settings:
    """Another."""

    size: int = 3


class Plain:
    """Neither dataclass nor named tuple."""


CLASSES = {"Pair": Pair, "Settings": Settings}


def there_and_back(value: Any, tmp_path: Path) -> Any:
    tensors: dict[str, Any] = {}
    content = codec.encode(value, tensors, CLASSES)
    files.write(tmp_path / "file", tensors, {"content": content})
    tensors, facts = files.read(tmp_path / "file")
    return codec.decode(facts["content"], tensors, CLASSES)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**70), "text \ud800 \0 é", 0.1, 5e-324, -0.0, math.inf, -math.inf, (), [], {},
        (1, [2.5, (None,)]), {"a": {"b": "c"}}, Pair(1, (Settings(4),)), [Pair(None, {"x": Settings()})],
        {"tensor": "x"}, {"class": "Pair", "fields": {}}, {"float": "nan"},
    ],
)  # fmt: skip
def test_values_come_back_as_they_went(value: Any, tmp_path: Path) -> None:
    back = there_and_back(value, tmp_path)
    assert back == value and type(back) is type(value)
    assert repr(back) == repr(value), "the sign of zero too"


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i4", "i8", "u1", "u4", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_arrays_come_back_bit_by_bit(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    array = np.frombuffer(rng.bytes(64), np.uint8)[: np.dtype(dtype).itemsize * math.prod(shape)]
    array = (array & 1 if dtype == "?" else array).view(dtype).reshape(shape)
    back = there_and_back({"deep": (array,)}, tmp_path)["deep"][0]
    assert back.dtype == array.dtype and back.shape == shape and back.tobytes() == array.tobytes()


def test_arrays_of_any_kind_and_order(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(3, 4)
    for given in (array.T, array[::2, ::-1], np.asfortranarray(array), jnp.asarray(array), np.float32(2.5)):
        np.testing.assert_array_equal(there_and_back(given, tmp_path), np.asarray(given))
    assert math.isnan(there_and_back(math.nan, tmp_path))
    odd = np.array([0x7FF8000000000123, 0xFFF0000000000001], np.uint64).view(np.float64)
    assert there_and_back(odd, tmp_path).tobytes() == odd.tobytes(), "what a NaN carries"


def test_a_class_that_is_not_known_is_described_and_not_made() -> None:
    class Settings(NamedTuple):  # known by name only
        size: int

    for value in (Plain(), Settings(3), object):
        content = codec.encode((1, value), {}, CLASSES)
        json.dumps(content)
        with pytest.raises(ForeignClassError):
            codec.decode(content, {}, CLASSES)
    assert codec.encode(Settings(3), {}, CLASSES) != codec.encode(Settings(4), {}, CLASSES)


@pytest.mark.parametrize(
    "content",
    [
        {"class": "int", "fields": {}}, {"class": "Pair", "fields": {"one": 1}}, {"class": "Pair", "fields": []},
        {"class": "Settings", "fields": {"__class__": 1}}, {"tensor": "nowhere"}, {"tensor": 3}, {"float": "1e3"},
        {"tuple": {}}, {"dict": []}, [], {}, {"dict": {"a": {"list": [{"what": 1}]}}},
    ],
)  # fmt: skip
def test_content_that_isles_does_not_write(content: Any) -> None:
    with pytest.raises(isles.DamagedFileError, match="not what isles writes"):
        codec.decode(content, {}, CLASSES)


def test_content_nested_too_deep() -> None:
    content: Any = None
    for _ in range(100_000):
        content = {"list": [content]}
    with pytest.raises(isles.DamagedFileError):
        codec.decode(content, {}, CLASSES)
    while content is not None:  # the interpreter's own way of forgetting it is recursive, too
        content = content["list"].pop()


# --- files ----------------------------------------------------------------------------------------------------


def test_every_bit_of_a_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write(path, {"x": np.arange(3.0), "y": np.zeros((0, 2))}, {"a": [1, "b"]})
    files.write_json(tmp_path / "json", {"a": [1, "b"], "c": 0.5})
    whole, text = path.read_bytes(), (tmp_path / "json").read_bytes()
    tensors, facts = files.read(path)
    unnoticed = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found, found_facts = files.read(path)
        except isles.DamagedFileError:
            continue
        unnoticed += 1
        assert found_facts == facts and all(found[name].tobytes() == tensors[name].tobytes() for name in tensors)
    assert unnoticed < len(whole) / 20, "at most padding"
    content, noticed = files.read_json(tmp_path / "json"), 0
    for place in range(len(text)):
        path.write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        try:
            assert files.read_json(path) == content, "white space at most"
        except isles.DamagedFileError:
            noticed += 1
    assert noticed > len(text) * 0.8


def test_a_file_is_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write(path, {"x": np.ones(3)}, {})

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            with pytest.raises(isles.FolderError, match="free some space, then resume"):
                files.write(path, {"x": np.zeros(3)}, {})
    assert files.read(path)[0]["x"].tolist() == [1, 1, 1]
    assert os.listdir(tmp_path) == ["file"]


def test_files_that_are_not_there_or_not_ours(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*; check the path"):
        files.read(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        files.read_json(tmp_path / "nothing")
    with pytest.raises(isles.FolderError):
        files.read(tmp_path)
    with pytest.raises(isles.FolderError, match="cannot read"):
        files.read_json(tmp_path)
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(3)}, tmp_path / "foreign")
    with pytest.raises(isles.DamagedFileError, match="holds tensors, but not of isles"):
        files.read(tmp_path / "foreign")


# --- folders --------------------------------------------------------------------------------------------------


def saved(value: float) -> Saved:
    return Saved({"x": np.full(3, value)}, {"value": value})


def value_of(place: BlockFolder) -> list[float]:
    return [found.facts["value"] for found in place.newest()]


def test_a_block_keeps_two_checkpoints_and_then_its_result(tmp_path: Path) -> None:
    place = RunFolder(tmp_path).block(3)
    assert place.path.name == "0003" and value_of(place) == [] and place.status() is None
    with place.locked():
        for value in range(4):
            place.save(saved(value), {"stage": value})
            assert value_of(place) == [value, value - 1][: value + 1]
        assert place.status()["stage"] == 3
        assert len(list(place.path.glob("state-*"))) == 4
        place.save_result(saved(9))
    assert value_of(place) == [] and place.result().facts == {"value": 9}
    assert {path.name for path in place.path.iterdir()} == {"lock", "result.safetensors"}


def test_what_killed_processes_leave_is_removed(tmp_path: Path) -> None:
    place = BlockFolder(tmp_path / "0000")
    with place.locked():
        place.save(saved(1), {})
        orphan = place.path / "state-000007.safetensors"
        for path in (place.path / ".state-000001.json.99.tmp", orphan):
            path.write_text("half")
        assert value_of(place) == [1]
    with place.locked():
        assert {path.suffix for path in place.path.iterdir()} == {"", ".json", ".safetensors"}
        assert not orphan.exists() and value_of(place) == [1]
    (tmp_path / ".run.json.99.tmp").write_text("half")
    with RunFolder(tmp_path).locked():
        assert not (tmp_path / ".run.json.99.tmp").exists()


def test_checkpoints_that_do_not_belong_together_are_not_used(tmp_path: Path) -> None:
    place = BlockFolder(tmp_path)
    place.save(saved(1), {})
    place.save(saved(2), {})
    (tmp_path / "state-000000.safetensors").replace(tmp_path / "state-000001.safetensors")
    with pytest.warns(isles.IslesWarning) as caught:
        assert value_of(place) == []
    assert "belongs to other tensors than lie beside it" in str(caught[0].message)
    assert "there is no file" in str(caught[1].message)


def test_a_trace_is_begun_anew_and_added_to(tmp_path: Path) -> None:
    place = BlockFolder(tmp_path)
    record = lambda value: {"ess": np.array([value, np.nan])}
    place.write_trace([record(1.0)])
    place.write_trace([record(2.0)])
    place.add_to_trace([record(3.0)])
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert lines == [{"ess": [2.0, None]}, {"ess": [3.0, None]}]


def hold(path: str, ready: Any, leave: Any) -> None:
    with RunFolder(path).locked():
        ready.set()
        leave.wait(600)


def test_a_lock_is_let_go_of_when_its_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "PATIENCE", 600.0)
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    process = context.Process(target=hold, args=(str(tmp_path), ready, leave))
    process.start()
    assert ready.wait(600)
    with (
        pytest.raises(isles.FolderError, match=rf"in use by process {process.pid} on"),
        RunFolder(tmp_path).locked(),
    ):
        raise AssertionError
    process.kill()
    process.join()
    with RunFolder(tmp_path).locked():
        assert f"process {os.getpid()} on" in (tmp_path / "lock").read_text()
