"""Readers of published file formats: bytes in, arrays out. No pickles, and nothing is unpacked to disk."""

from __future__ import annotations

import gzip
import math
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Split = tuple[Array, Array]  # inputs, labels

CIFAR_BATCHES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
IMDB_CLASSES = ("neg", "pos")


def idx(path: Path) -> Array:
    """An array of bytes in the format of MNIST: a magic number, the shape, the entries."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, OSError) as error:
        raise broken(path, str(error)) from error
    dimensions = content[3] if content[:3] == b"\0\0\x08" else 0  # 8: unsigned bytes
    shape = np.frombuffer(content, ">i4", dimensions, offset=4) if len(content) >= 4 + 4 * dimensions else ()
    start = 4 + 4 * dimensions
    if not dimensions or len(content) != start + math.prod(map(int, shape)):
        raise broken(path, "its size does not fit its header")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def cifar(path: Path) -> dict[str, Split]:
    """CIFAR-10 in its binary version: images (rows, 32, 32, 3) of bytes, in their published order."""
    found: dict[str, Array] = {}
    for name, content in _members(path, re.compile(r"cifar-10-batches-bin/(\w+\.bin)")):
        if len(content) % 3073:
            raise broken(path, f"{name} is not made of records of 3073 bytes")
        found[name] = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    splits = {}
    for split, names in CIFAR_BATCHES.items():
        if absent := [name for name in names if name not in found]:
            raise broken(path, f"it lacks {absent[0]}")
        records = np.concatenate([found[name] for name in names])
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        splits[split] = np.ascontiguousarray(images), records[:, 0].copy()
    return splits


def imdb(path: Path) -> dict[str, Split]:
    """IMDb reviews as strings: of each split the negative ones (0), then the positive ones (1), by number."""
    reviews: dict[str, list[tuple[int, int, str]]] = {"train": [], "test": []}
    for name, content in _members(path, re.compile(r"aclImdb/((?:train|test)/(?:neg|pos)/\d+_\d+\.txt)")):
        split, label, file = name.split("/")
        reviews[split].append((IMDB_CLASSES.index(label), int(file.split("_")[0]), content.decode()))
    splits = {}
    for split, rows in reviews.items():
        if not rows:
            raise broken(path, f"it holds no reviews of {split}")
        rows.sort()
        texts = np.empty(len(rows), object)  # an array of fixed width would take gigabytes
        texts[:] = [text for *_, text in rows]
        splits[split] = texts, np.array([label for label, *_ in rows], np.uint8)
    return splits


def splits(path: Path) -> dict[str, Array]:
    """The arrays of an `.npz` file: `x_train`, `y_train`, `x_test`, `y_test` (`q_` for quantised), and others."""
    try:
        # opened here, since np.load leaves a damaged file open
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name.replace("q_", "x_", 1): file[name] for name in file.files}
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise broken(path, str(error)) from error
    for split in ["train", "test"]:
        lengths = [len(arrays.get(f"{axis}_{split}", ())) for axis in "xy"]
        if not lengths[0] == lengths[1] > 0:
            raise broken(path, f"it has {lengths[0]} inputs and {lengths[1]} labels to {split}")
    return arrays


def table(path: Path, shape: tuple[int, int]) -> Array:
    """Numbers in lines, between commas or spaces; a first line of names is left out."""
    try:
        lines = [line.replace(",", " ").split() for line in path.read_text().splitlines()]
        if lines and any(word[:1].isalpha() for word in lines[0]):
            lines = lines[1:]
        numbers = np.array(lines, np.float64)
    except ValueError as error:
        raise broken(path, str(error)) from error
    if numbers.shape != shape:
        raise broken(path, f"it is a table of shape {numbers.shape}, not {shape}")
    return numbers


def broken(path: Path, reason: str) -> ValueError:
    """The error of a file that is not what its name says."""
    return ValueError(
        f"{path} is damaged, or another file of that name ({reason}); remove it or put a good one there"
    )


def _members(path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Files of an archive whose names fit; the name is the pattern's group."""
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                match = pattern.fullmatch(member.name)
                if match and (file := archive.extractfile(member)) is not None:
                    yield match[1], file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise broken(path, str(error)) from error
