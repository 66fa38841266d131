"""Features in resumable chunks, by small encoders that are real: hashed words, and a convolution in NumPy."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isles
from isles.data import encoders, encoding

WIDTH = 16
SCRIPT = Path(__file__)


def hashed_words(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Each word adds a random vector that its hash determines."""
    features = np.zeros((len(texts), WIDTH))
    for row, text in enumerate(texts):
        for word in text.split():
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
            features[row] += np.random.default_rng(seed).normal(size=WIDTH)
    return features


def convolved(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Six random 3 × 3 kernels, ReLU, the mean over the image."""
    kernels = np.random.default_rng(1).normal(size=(3, 3, images.shape[3], 6))
    patches = np.lib.stride_tricks.sliding_window_view(images / 255, (3, 3), axis=(1, 2))
    return np.maximum(np.einsum("nhwcij,ijck->nhwk", patches, kernels), 0).mean(axis=(1, 2))


class Interrupted:
    """An encoder that stops at its call number `last`, by an exception or a signal that none survives."""

    name = "hashed words"

    def __init__(self, last: int | None = None, kill: bool = False) -> None:
        self.calls, self.last, self.kill = 0, last, kill

    def __call__(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        if self.calls == self.last and self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.calls == self.last:
            raise KeyboardInterrupt
        self.calls += 1
        return hashed_words(texts)


def texts(rows: int = 50) -> list[str]:
    words = ["good", "bad", "film", "plot", "schön", "無", ""]
    rng = np.random.default_rng(2)
    return [" ".join(rng.choice(words, size=5)) + f" {row}" for row in range(rows)]


encode = partial(isles.data.encode, progress=False)


def test_features_are_the_encoders(tmp_path: Path) -> None:
    features = encode(texts(), hashed_words, tmp_path, chunk=8)
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features, hashed_words(texts()).astype(np.float32))


@pytest.mark.parametrize("chunk", [1, 7, 49, 50, 51])
def test_chunks_cover_all_rows(tmp_path: Path, chunk: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 6, 6, 3), np.uint8)
    features = encode(images, convolved, tmp_path / "a" / "b", chunk=chunk)
    np.testing.assert_allclose(features, convolved(images), rtol=1e-5)


def test_an_exception_costs_the_chunk_at_work(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        encode(texts(), Interrupted(last=3), tmp_path, chunk=8)
    encoder = Interrupted()
    features = encode(texts(), encoder, tmp_path, chunk=8)
    assert encoder.calls == 7 - 3
    np.testing.assert_array_equal(features, hashed_words(texts()).astype(np.float32))
    again = Interrupted(last=0)  # a finished encoding is only read
    np.testing.assert_array_equal(encode(texts(), again, tmp_path, chunk=8), features)


def test_a_killed_process_costs_the_chunk_at_work(tmp_path: Path) -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['killed'](sys.argv[2])"
    found = subprocess.run([sys.executable, "-c", code, str(SCRIPT), str(tmp_path)], check=False)
    assert found.returncode == -signal.SIGKILL
    encoder = Interrupted()
    features = encode(texts(), encoder, tmp_path, chunk=8)
    assert encoder.calls == 7 - 4
    np.testing.assert_array_equal(features, hashed_words(texts()).astype(np.float32))


def killed(folder: str) -> None:
    encode(texts(), Interrupted(last=4, kill=True), folder, chunk=8)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "remove"])
def test_a_damaged_chunk_is_computed_again(tmp_path: Path, damage: str) -> None:
    features = encode(texts(), Interrupted(), tmp_path, chunk=8)
    victim = sorted(tmp_path.glob("*.npy"))[2]
    content = victim.read_bytes()
    if damage == "remove":
        victim.unlink()
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        victim.write_bytes({"truncate": content[:-5], "flip": flipped, "empty": b""}[damage])
    encoder = Interrupted()
    np.testing.assert_array_equal(encode(texts(), encoder, tmp_path, chunk=8), features)
    assert encoder.calls == 1
    assert victim.read_bytes() == content


def test_what_a_killed_write_leaves_is_no_chunk(tmp_path: Path) -> None:
    encode(texts(16), Interrupted(), tmp_path, chunk=8)
    whole = sorted(tmp_path.glob("*.npy"))[1]
    whole.rename(whole.with_name(f".{whole.name}.123.tmp"))
    encoder = Interrupted()
    assert len(encode(texts(16), encoder, tmp_path, chunk=8)) == 16 and encoder.calls == 1


def test_other_inputs_are_refused(tmp_path: Path) -> None:
    encode(texts(), hashed_words, tmp_path, chunk=8)
    for inputs in [texts(49), ["x", *texts()[1:]], texts()[::-1]]:
        with pytest.raises(ValueError, match=r"holds features of other inputs: .*another path"):
            encode(inputs, hashed_words, tmp_path, chunk=8)
    with pytest.raises(ValueError, match=r"encoder='.*hashed_words', not 'hashed words'"):
        encode(texts(), Interrupted(), tmp_path, chunk=8)
    with pytest.raises(ValueError, match=r"chunk=8, not 9"):
        encode(texts(), hashed_words, tmp_path, chunk=9)
    record = tmp_path / encoding.RECORD
    for content in ["{", "[]", "{}"]:
        record.write_text(content)
        with pytest.raises(ValueError, match=r"encode\.json is not readable"):
            encode(texts(), hashed_words, tmp_path, chunk=8)


def test_inputs_that_look_alike_have_their_own_fingerprints() -> None:
    eight = np.arange(8, dtype=np.uint8)
    inputs = [
        ["ab", "c"],
        ["a", "bc"],
        ["abc"],
        ["abc", ""],
        [b"abc"],
        eight,
        eight.reshape(2, 4),
        eight.reshape(4, 2),
        eight.astype(np.int8),
        eight.view(np.uint16),
        list(eight),
        list(eight.reshape(2, 4)),
    ]
    assert len({encoding._fingerprint(each) for each in inputs}) == len(inputs)
    assert encoding._fingerprint(eight) == encoding._fingerprint(np.repeat(eight, 2)[::2])


def test_raw_reviews_are_strings_in_an_array(tmp_path: Path) -> None:
    array = np.array(texts(), object)
    assert encode(array, hashed_words, tmp_path).shape == (50, WIDTH)
    encode(texts(), hashed_words, tmp_path)  # the same inputs


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (lambda batch: np.ones(len(batch)), r"rows 0 to 7 the encoder gave an array of shape \(8,\)"),
        (lambda batch: np.ones((3, 2)), r"shape \(3, 2\); it must be \(8, width\)"),
        (lambda batch: np.ones((8, 0)), r"shape \(8, 0\); it must be \(8, width\)"),
        (
            lambda batch: np.ones((len(batch), len(batch))),
            r"from row 48 on there are 2 features, and 8 before",
        ),
        (lambda batch: np.full((len(batch), 2), np.nan), r"NaN, .* the first is in row 0"),
        (lambda batch: np.full((len(batch), 2), 1e200), r"beyond float32"),
        (3, r"encoder=3 must be a function"),
        ("resnet50", r"encoder='resnet50' must be 'sentence-transformers:NAME' or 'torchvision:NAME'"),
        ("torchvision:", r"must be 'sentence-transformers:NAME'"),
    ],
)
def test_bad_encoders(tmp_path: Path, encoder: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        encode(texts(), encoder, tmp_path, chunk=8)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("one text", r"inputs is of type str; give"),
        (3, r"inputs is of type int"),
        (iter("ab"), r"inputs is of type str_.*iterator"),
        ([], r"inputs is empty"),
        ([object()], r"inputs holds a object; it must hold"),
    ],
)
def test_bad_inputs(tmp_path: Path, inputs: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        encode(inputs, hashed_words, tmp_path)


@pytest.mark.parametrize("spec", ["sentence-transformers:all-mpnet-base-v2", "torchvision:resnet50"])
def test_a_library_that_is_not_installed_is_named(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = spec.partition(":")[0]
    monkeypatch.setitem(sys.modules, library.replace("-", "_"), None)
    message = rf"needs the package {library}: pip install 'isles\[encode\]'"
    with pytest.raises(ModuleNotFoundError, match=message):
        encode(texts(), spec, tmp_path)
    with pytest.raises(ModuleNotFoundError, match=message):
        encoders.named(spec)


def test_kept_features_need_no_library(tmp_path: Path) -> None:
    spec = "torchvision:resnet50"
    named = Interrupted()
    named.name = spec
    features = encode(texts(), named, tmp_path)
    np.testing.assert_array_equal(encode(texts(), spec, tmp_path), features)


def test_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    isles.data.encode(texts(), hashed_words, tmp_path / "shown", chunk=8)
    shown = capsys.readouterr()
    assert "50/50" in shown.err and shown.out == ""
    encode(texts(), hashed_words, tmp_path / "silent", chunk=8)
    assert capsys.readouterr().err == ""


def test_the_folder_is_plain(tmp_path: Path) -> None:
    """Arrays that NumPy reads, under names with a checksum, and a record in JSON."""
    encode(texts(), hashed_words, tmp_path, chunk=32)
    first, second = sorted(tmp_path.glob("*.npy"))
    assert np.load(first).shape == (32, WIDTH) and np.load(second).shape == (18, WIDTH)
    for file in [first, second]:
        assert file.stem.split("-")[1] == hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    assert json.loads((tmp_path / "encode.json").read_text())["chunk"] == 32
    assert len(list(tmp_path.iterdir())) == 3


def test_an_encoder_that_was_changed_between_calls(tmp_path: Path) -> None:
    encode(texts(), Interrupted(), tmp_path, chunk=8)
    sorted(tmp_path.glob("*.npy"))[0].unlink()
    changed = lambda batch: np.ones((len(batch), 3))
    changed.name = Interrupted.name  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"from row 8 on there are 16 features, and 3 before"):
        encode(texts(), changed, tmp_path, chunk=8)
