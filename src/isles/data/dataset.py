"""What a data set is: arrays for training and for testing, and where they come from. No files live here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """Training and test rows of a data set: features float32, labels int32.

    Attributes:
        name: as given to `isles.data.load`.
        x_train, y_train: the training rows; `x` has their number as first axis.
        x_test, y_test: the test rows; there may be none.
        classes: what the labels 0, 1, ... mean, or None.
        licence: on what terms the data may be used.
        source: who made the data, and what was done to them.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: tuple[str, ...] | None
    licence: str
    source: str

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.x_train.shape[1:]))
        rows = f"{len(self.x_train)} training and {len(self.x_test)} test rows"
        return f"<{self.name}: {rows}" + (f" of {shape}" if shape else "") + ">"


def interleave(labels: Array) -> Array:
    """An order of rows in which any first part holds the classes in nearly the proportions of the whole.

    >>> interleave(np.array([0, 0, 0, 0, 1, 1])).tolist()
    [0, 4, 1, 2, 5, 3]
    """
    place = np.empty(len(labels))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        place[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    return np.argsort(place, kind="stable")
