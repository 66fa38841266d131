"""Inputs, labels and predictions as files: CSV and NumPy's own formats. No command lives here."""

from __future__ import annotations

import csv
import io
import math
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from isles import files
from isles.checks import FolderError
from isles.cli.app import UsageError

if TYPE_CHECKING:
    from isles.data import Dataset
    from isles.posterior import Posterior

Array = np.ndarray[Any, Any]
LEVELS = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def read_inputs(path: Path, row: tuple[int, ...]) -> Array:
    """Rows of inputs: all columns of a CSV file, or the array x (or x_test, or the only one) of an .npz file."""
    if path.suffix == ".csv":
        return as_rows(read_table(path), row, path)
    if path.suffix != ".npz":
        raise UsageError(f"{path} must be a .csv or an .npz file, and end so")
    arrays = read_arrays(path)
    name = next((name for name in ("x", "x_test") if name in arrays), None)
    if name is None and len(arrays) != 1:
        raise UsageError(f"{path} holds {', '.join(arrays) or 'nothing'}; name the inputs x: np.savez(path, x=x)")
    return as_rows(arrays[name] if name else next(iter(arrays.values())), row, path)


def read_test(path: Path | None, data: str | None, row: tuple[int, ...]) -> tuple[Array, Array] | None:
    """Test inputs and labels, from a file or of a data set; None if neither is asked for."""
    if path is not None and data is not None:
        raise UsageError("--test and --data both name test data; leave one out")
    if data is not None:
        found = load_data(data)
        if not len(found.x_test):
            raise UsageError(f"{data} has no test rows of its own; give some by --test FILE.npz")
        return as_rows(found.x_test, row, data), found.y_test
    if path is None:
        return None
    if path.suffix != ".npz":
        raise UsageError(f"{path} must be an .npz file with arrays x and y: np.savez(path, x=x, y=y)")
    arrays = read_arrays(path)
    for x, y in (("x", "y"), ("x_test", "y_test")):
        if x in arrays and y in arrays:
            if len(arrays[x]) != len(arrays[y]):
                raise UsageError(
                    f"{path} has {len(arrays[x])} rows of {x} and {len(arrays[y])} of {y}; give as many"
                )
            return as_rows(arrays[x], row, path), arrays[y]
    raise UsageError(f"{path} holds {', '.join(arrays) or 'nothing'}; it needs x and y: np.savez(path, x=x, y=y)")


def load_data(name: str, train: int | None = None, test: int | None = None) -> Dataset:
    """A data set; a name or a number of rows that it does not have is a mistake in the command."""
    from isles.data import load

    try:
        return load(name, train=train, test=test)
    except ValueError as error:
        raise error if isinstance(error, FolderError) else UsageError(str(error)) from error


def read_arrays(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file; pickles are refused."""
    try:
        with np.load(path, allow_pickle=False) as found:
            if not hasattr(found, "files"):
                raise ValueError("it holds one array without a name")
            return {name: found[name] for name in found.files}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"{path} is no .npz file of plain arrays: {error}; write it by np.savez") from error


def read_table(path: Path) -> Array:
    """The numbers of a CSV file; a first line that holds none is a header."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}; check the file"
        ) from error
    if lines and not any(map(_is_number, lines[0][1])):
        lines = lines[1:]
    if not lines:
        raise UsageError(f"{path} has no rows of numbers; write a row of inputs a line")
    for number, line in lines:
        if len(line) != len(lines[0][1]):
            raise UsageError(f"{path}, line {number}: {len(line)} values where {len(lines[0][1])} are due")
        for value in line:
            if not _is_number(value):
                raise UsageError(f"{path}, line {number}: {value!r} is no number; encode text as numbers first")
            if not math.isfinite(float(value)):
                raise UsageError(f"{path}, line {number}: {value} is not finite; impute it, or leave the line out")
    return np.array([list(map(float, line)) for _, line in lines])


def as_rows(x: Array, row: tuple[int, ...], where: Path | str) -> Array:
    """Rows of the shape that the network was given; flat ones are folded."""
    if x.ndim == 0 or (x.shape[1:] != row and math.prod(x.shape[1:]) != math.prod(row)):
        shape = ", ".join(map(str, ("rows", *row)))
        line = f"; write {math.prod(row)} values a line" if str(where).endswith(".csv") else ""
        raise UsageError(f"the inputs in {where} have shape {x.shape}, and the run needs ({shape}){line}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise UsageError(
            f"{np.count_nonzero(~np.isfinite(x))} inputs in {where} are not finite; impute or remove them"
        )
    return x.reshape(-1, *row)


def row_shape(posterior: Posterior) -> tuple[int, ...]:
    """Of one input of the network that was sampled."""
    if posterior.likelihood is None:
        raise UsageError(
            "the run's log_likelihood is a function that does not say what it predicts; only problems of "
            "isles.classification and isles.regression can be predicted with"
        )
    return posterior.likelihood.inputs


def columns(prediction: Any) -> dict[str, Array]:
    """What `posterior.predict` gave as it is written; the first axis of each array is that of the inputs."""
    if hasattr(prediction, "probabilities"):
        return {
            "label": prediction.labels,
            "probability": prediction.probabilities,
            "entropy": prediction.entropy,
            "epistemic": prediction.epistemic,
            "aleatoric": prediction.aleatoric,
        }
    quantiles = dict(zip(LEVELS, prediction.quantile(list(LEVELS.values())), strict=True))
    return {"mean": prediction.mean, "std": prediction.std, **quantiles}


def write_columns(found: dict[str, Array], path: Path | None) -> None:
    """To a .csv or an .npz file, or as CSV to stdout."""
    if path is None:
        _write_csv(found, sys.stdout)
        return
    with files.whole(path) as file:
        if path.suffix == ".npz":
            np.savez(file, allow_pickle=False, **found)
        else:
            text = io.StringIO()
            _write_csv(found, text)
            file.write(text.getvalue().encode())


def _write_csv(found: dict[str, Array], file: TextIO) -> None:
    flat = {name: values.reshape(len(values), -1) for name, values in found.items()}
    several = lambda name: found[name].ndim > 1
    header = [f"{name}_{k}" if several(name) else name for name in flat for k in range(flat[name].shape[1])]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in range(len(next(iter(flat.values())))):
        writer.writerow([_show(value) for values in flat.values() for value in values[row]])


def _show(value: Any) -> str:
    return str(value) if isinstance(value, np.integer) else f"{value:.9g}"


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
