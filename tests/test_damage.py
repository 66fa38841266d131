"""Run folders that are damaged or hostile: never a wrong answer, and no code is run."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isles
from halves import Half, resume
from isles.store import files
from kills import assert_same_bits

pytestmark = pytest.mark.filterwarnings("ignore::isles.IslesWarning")


def attempt(folder: Path) -> isles.Posterior | isles.FolderError:
    try:
        return resume(folder)
    except isles.FolderError as error:
        return error


FILES = [
    "run.json",
    "run.safetensors",
    "blocks/0000/result.safetensors",
    "blocks/0000/trace.jsonl",
    "blocks/0001/newest.json",
    "blocks/0001/newest.safetensors",
    "blocks/0001/older.json",
    "blocks/0001/older.safetensors",
    "blocks/0001/trace.jsonl",
]


def locate(folder: Path, name: str) -> Path:
    """Checkpoints are numbered; a test knows which it means by age."""
    parent, stem, suffix = (folder / name).parent, Path(name).stem, Path(name).suffix
    if stem not in ("newest", "older"):
        return folder / name
    older, newest = sorted(parent.glob(f"state-*{suffix}"))
    return newest if stem == "newest" else older


def flip(path: Path) -> None:
    """One bit in each of five places."""
    content = bytearray(path.read_bytes())
    for place in np.linspace(0, len(content) - 1, 5).astype(int):
        content[place] ^= 1 << (place % 8)
    path.write_bytes(content)


def flip_one(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a byte short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "bits flipped": flip,
    "a bit flipped": flip_one,
    "deleted": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "text": lambda path: path.write_text("once upon a time"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_never_gives_a_wrong_answer(damage: str, half: Half, tmp_path: Path) -> None:
    for number, name in enumerate(FILES):
        folder = half.copy(tmp_path / str(number))
        DAMAGE[damage](locate(folder, name))
        found = attempt(folder)
        if isinstance(found, isles.Posterior):
            assert_same_bits(half.whole, found)
            assert not name.startswith("run.") or damage == "a byte short", f"{name} is needed"
        else:
            assert name.startswith("run.") or damage == "a folder", (name, found)
            assert any(remedy in str(found) for remedy in ("begin again", "give the folder", "mend that")), found


def test_damage_to_all_checkpoints_and_results_begins_anew(half: Half, tmp_path: Path) -> None:
    folder = half.copy(tmp_path / "run")
    for path in folder.rglob("blocks/*/*.safetensors"):
        os.truncate(path, 100)
    with pytest.warns(isles.IslesWarning, match="the block is run again"):
        assert_same_bits(half.whole, resume(folder))


def test_a_result_lost_while_the_run_goes_on_is_a_clear_error(half: Half, tmp_path: Path) -> None:
    folder = half.copy(tmp_path / "run")
    resume(folder)
    os.truncate(folder / "blocks" / "0002" / "result.safetensors", 50)
    with pytest.raises(isles.PartialRunError, match=r"islands \[4, 5\] of 6 are not finished"):
        isles.merge(folder)
    assert_same_bits(half.whole, resume(folder))


# --- content that has a right checksum, and is not of isles ---------------------------------------------------


class Bomb:
    """A pickle that leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_a_pickle_is_never_read(half: Half, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for number, name in enumerate(FILES):
        folder = half.copy(tmp_path / str(number))
        locate(folder, name).write_bytes(pickle.dumps(Bomb(mark)))
        found = attempt(folder)
        if isinstance(found, isles.Posterior):
            assert_same_bits(half.whole, found)
        else:
            assert name.startswith("run.") and isinstance(found, isles.DamagedFileError)
        with pytest.raises((ValueError, OSError)):  # files that isles wrote are no posteriors
            isles.load(locate(folder, name))
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the test would see it"


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Change tensors and facts of a file, and give it a checksum that is right."""
    tensors, facts = files.read(path)
    change(tensors, facts)
    checksum = files.write(path, tensors, facts)
    if path.name.startswith("state-"):
        status = files.read_json(path.with_suffix(".json"))
        files.write_json(path.with_suffix(".json"), status | {"tensors": checksum})


ABSURD: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "one axis more": lambda tensor: tensor[None],
    "empty": lambda tensor: np.zeros(0, tensor.dtype),
    "huge": lambda tensor: np.zeros(300_000, tensor.dtype),
    "bytes": lambda tensor: np.zeros(tensor.shape, np.uint8),
}


@pytest.mark.parametrize("absurd", ABSURD)
@pytest.mark.parametrize("kind", ["half", "half_chains"])
@pytest.mark.parametrize("name", ["blocks/0000/result.safetensors", "blocks/0001/newest.safetensors"])
def test_tensors_of_absurd_shapes_are_not_used(
    name: str, kind: str, absurd: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    half: Half = request.getfixturevalue(kind)
    tensors, _ = files.read(locate(half.folder, name))
    chosen = list(tensors)[:: max(len(tensors) // 12, 1)] if absurd == "one axis more" else list(tensors)[:2]
    assert chosen
    for number, tensor in enumerate(chosen):
        folder = half.copy(tmp_path / str(number))
        rewrite(
            locate(folder, name),
            lambda found, _, tensor=tensor: found.update({tensor: ABSURD[absurd](found[tensor])}),
        )
        assert_same_bits(half.whole, resume(folder))


NESTED = '{"a": ' * 100_000 + "1" + "}" * 100_000
CONTENTS: dict[str, Any] = {
    "code": {"class": "os.system", "fields": {"command": "mkdir mark"}},
    "a class of another kind": {"class": "Plan", "fields": {}},
    "a path that leaves the folder": {"tensor": "../../../../etc/passwd"},
    "a number": 3,
    "nothing": None,
    "lists in lists": [[[["tuple"]]]],
    "foreign": {"foreign": "subprocess.Popen", "fields": {"args": "mkdir mark"}},
    "wrong fields": {"class": "BlockResult", "fields": {"positions": "here"}},
}


@pytest.mark.parametrize("name", ["blocks/0000/result.safetensors", "blocks/0001/newest.safetensors"])
def test_content_that_is_not_of_isles_is_not_used(name: str, half: Half, tmp_path: Path) -> None:
    for number, content in enumerate(CONTENTS.values()):
        folder = half.copy(tmp_path / str(number))
        rewrite(locate(folder, name), lambda _, facts, content=content: facts.update(content=content))
        assert_same_bits(half.whole, resume(folder))


def test_wrong_values_in_a_result_are_seen(half: Half, tmp_path: Path) -> None:
    for number, (field, value) in enumerate(
        {"rounding": "none", "warnings": {"tuple": [1]}, "plan": 3, "records": {"list": [3]}, "sums": 1}.items()
    ):
        folder = half.copy(tmp_path / str(number))
        change = lambda _, facts, field=field, value=value: facts["content"]["fields"].update({field: value})
        rewrite(folder / "blocks" / "0000" / "result.safetensors", change)
        assert_same_bits(half.whole, resume(folder))


@pytest.mark.parametrize(
    "text", [NESTED, "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "[1]", '"run"', "\0" * 100, ""]
)
def test_json_that_is_no_json_is_a_clear_error(text: str, half: Half, tmp_path: Path) -> None:
    folder = half.copy(tmp_path / "run")
    locate(folder, "blocks/0001/newest.json").write_text(text)
    assert_same_bits(half.whole, resume(folder))
    (folder / "run.json").write_text(text)
    with pytest.raises(isles.DamagedFileError, match=r"run.json .*; restore it from a copy, or begin again"):
        resume(folder)


@pytest.mark.parametrize(
    "header",
    [
        {"x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}},
        {"x": {"dtype": "O", "shape": [2], "data_offsets": [0, 8]}},
        {"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}},
        {"../../x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 1 << 60]}},
        {"__metadata__": {"isles": NESTED, "checksum": "0"}},
    ],
)
def test_headers_that_lie_are_seen(header: dict[str, Any], half: Half, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(8)
    folder = half.copy(tmp_path / "run")
    for name in ("blocks/0000/result.safetensors", "blocks/0001/newest.safetensors"):
        locate(folder, name).write_bytes(content)
    assert_same_bits(half.whole, resume(folder))
    (folder / "run.safetensors").write_bytes(content)
    with pytest.raises(isles.DamagedFileError, match="begin again in another folder"):
        resume(folder)


SECTIONS = ["format", "settings", "layout", "problem", "numbers", "versions"]
SETTING_VALUES = {
    "islands": ["many", 0, -1, 10**15, 2.5, None, True],
    "islands_per_block": [0, "1", [2]],
    "chunk_rows": [-1, None, {}],
    "seed": [-1, "0", 1 << 70],
    "threads": ["four", 0],
    "keep": ["some", None, ["all"]],
    "collect": [[], None, {"other": "0"}],
    "sampler": [
        3,
        {"class": "Plan", "fields": {}},
        {"class": "SMC", "fields": {"particles": "x"}},
        {"tensor": "no"},
    ],
}


def change_run(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    facts = files.read_json(folder / "run.json")
    change(facts)
    files.write_json(folder / "run.json", facts)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_definition_that_lacks_a_part_is_refused(section: str, half: Half, tmp_path: Path) -> None:
    for number, value in enumerate([None, [], "text", {}, 7]):
        folder = half.copy(tmp_path / str(number))
        change_run(folder, lambda facts, value=value: facts.update({section: value}))
        if section != "layout" or value != {}:  # resume takes the layout from the problem
            with pytest.raises(isles.FolderError):
                resume(folder)
        if section not in ("numbers", "versions", "problem") or value != {}:  # merge needs none of these
            with pytest.raises(isles.FolderError):
                isles.merge(folder, allow_partial=True)


@pytest.mark.parametrize("setting", SETTING_VALUES)
def test_a_definition_with_absurd_settings_is_refused(setting: str, half: Half, tmp_path: Path) -> None:
    for number, value in enumerate(SETTING_VALUES[setting]):
        folder = half.copy(tmp_path / str(number))
        change_run(folder, lambda facts, value=value: facts["settings"].update({setting: value}))
        with pytest.raises((isles.FolderError, ValueError)) as caught:
            resume(folder)
        assert len(str(caught.value)) > 20


def test_a_problem_named_in_a_folder_is_not_imported_where_one_is_given(half: Half, tmp_path: Path) -> None:
    folder = half.copy(tmp_path / "run")
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    change_run(folder, lambda facts: facts["problem"].update(reference="hostile:problem"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        assert_same_bits(half.whole, resume(folder))
        isles.merge(folder)
    assert not (tmp_path / "mark").exists()
