"""Features of raw data by an encoder, in chunks that survive an interruption. Data sets are not known here."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isles import checks, files
from isles.data import encoders
from isles.data.dataset import Array

RECORD = "encode.json"


def encode(
    inputs: Sequence[Any] | Array,
    encoder: str | Callable[[Any], Any],
    path: str | os.PathLike[str],
    chunk: int = 256,
    progress: bool = True,
) -> Array:
    """Features (rows, width) of all inputs in float32, computed `chunk` rows at a time and kept in `path`.

    A chunk is written whole and with its checksum as soon as it is done. Called again after an interruption,
    `encode` computes what is missing or damaged, and no more; for other inputs or another encoder, it refuses.

    Args:
        inputs: an array with rows as first axis, or a sequence of strings, bytes or arrays.
        encoder: a function of a batch (a slice of `inputs`) that gives an array (rows, width); or
            "sentence-transformers:NAME" for texts, "torchvision:NAME" for images (rows, height, width, 3), bytes.
            A function is known by its name or its attribute `name`: change `path` when it computes something else.
        path: a folder for the chunks, made where it does not exist; it can be removed afterwards.
        chunk: rows that the encoder gets at a time.
        progress: show a bar.
    """
    inputs = _checked(inputs)
    chunk = checks.count("chunk", chunk)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    _same(folder, {"inputs": _fingerprint(inputs), "encoder": _name(encoder), "chunk": chunk})
    kept = {file.name.split("-")[0]: file for file in sorted(folder.glob("*-*.npy"))}
    pieces: list[Array] = []
    columns = (TextColumn("encoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("", total=len(inputs))
        for number, start in enumerate(range(0, len(inputs), chunk)):
            label = f"{number:06d}"
            piece = _read(kept[label]) if label in kept else None
            if piece is None:
                if isinstance(encoder, str):  # only now: kept features need no encoder
                    encoder = encoders.named(encoder)
                batch = inputs[start : start + chunk]
                piece = _features(encoder(batch), start, len(batch))
                _write(folder, label, _as_wide(piece, pieces, start))
            pieces.append(_as_wide(piece, pieces, start))
            bar.advance(task, len(piece))
    return np.concatenate(pieces)


def _checked(inputs: Sequence[Any] | Array) -> Sequence[Any] | Array:
    if isinstance(inputs, (str, bytes)) or not hasattr(inputs, "__getitem__") or not hasattr(inputs, "__len__"):
        kind = type(inputs).__name__
        raise TypeError(f"inputs is of type {kind}; give an array, or a list of strings, bytes or arrays")
    if isinstance(inputs, np.ndarray) and inputs.dtype == object:
        inputs = inputs.tolist()
    if not len(inputs):
        raise ValueError("inputs is empty; there is nothing to encode")
    return inputs


def _fingerprint(inputs: Sequence[Any] | Array) -> str:
    """A hash of all inputs, each with its kind and shape, so that different inputs cannot look alike."""
    digest = hashlib.sha256()

    def add(kind: str, content: Any) -> None:
        content = memoryview(content).cast("B") if len(content) else b""
        digest.update(f"{kind} {len(content)}:".encode())
        digest.update(content)

    for item in [inputs] if isinstance(inputs, np.ndarray) else inputs:
        if isinstance(item, str):
            add("text", item.encode("utf-8", "surrogatepass"))
        elif isinstance(item, bytes):
            add("bytes", item)
        else:
            array = np.asarray(item)
            if array.dtype.hasobject:
                raise TypeError(
                    f"inputs holds a {type(item).__name__}; it must hold strings, bytes or arrays of numbers"
                )
            add(f"{array.dtype.str}{array.shape}", np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def _name(encoder: str | Callable[[Any], Any]) -> str:
    if isinstance(encoder, str):
        encoders.split(encoder)
        return encoder
    if not callable(encoder):
        raise TypeError(f"encoder={encoder!r} must be a function of a batch, or {encoders.FORMS}")
    named = encoder if hasattr(encoder, "__qualname__") else type(encoder)
    return str(getattr(encoder, "name", f"{named.__module__}.{named.__qualname__}"))


def _same(folder: Path, asked: dict[str, Any]) -> None:
    """Record what is being encoded, or compare with the record."""
    record = folder / RECORD
    if not record.exists():
        with files.whole(record) as file:
            file.write(json.dumps(asked, indent=1).encode())
        return
    try:
        begun = json.loads(record.read_text())
        differing = [key for key in asked if begun[key] != asked[key]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{record} is not readable ({error!r}); give another path, or remove {folder}") from None
    for key in differing:
        shown = "other inputs" if key == "inputs" else f"{key}={begun[key]!r}, not {asked[key]!r}"
        raise ValueError(
            f"{folder} holds features of {shown}: call with the same, give another path, or remove that folder"
        )


def _features(output: Any, start: int, rows: int) -> Array:
    output = np.asarray(output)
    at = f"for rows {start} to {start + rows - 1} the encoder gave"
    if output.ndim != 2 or len(output) != rows or not output.shape[1]:
        raise ValueError(f"{at} an array of shape {output.shape}; it must be ({rows}, width)")
    with np.errstate(over="ignore"):
        features = output.astype(np.float32)
    if not np.isfinite(features).all():
        row = start + int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise ValueError(f"{at} NaN, an infinity or a number beyond float32; the first is in row {row}")
    return features


def _as_wide(piece: Array, pieces: list[Array], start: int) -> Array:
    if pieces and piece.shape[1] != pieces[0].shape[1]:
        raise ValueError(
            f"from row {start} on there are {piece.shape[1]} features, and {pieces[0].shape[1]} before; "
            f"an encoder must give as many for every row (if it was changed, give another path)"
        )
    return piece


def _write(folder: Path, label: str, piece: Array) -> None:
    buffer = io.BytesIO()
    np.save(buffer, piece, allow_pickle=False)
    content = buffer.getvalue()
    with files.whole(folder / f"{label}-{_checksum(content)}.npy") as file:
        file.write(content)


def _read(file: Path) -> Array | None:
    """A chunk, unless it is damaged: then it is removed."""
    content = file.read_bytes()
    if file.stem.split("-")[1] == _checksum(content):
        return np.load(io.BytesIO(content), allow_pickle=False)
    file.unlink()
    return None


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
