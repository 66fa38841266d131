"""Make `src/isles/data/mnist_1000.npz`, the part of MNIST inside the package, from the full set.

    python scripts/embed_mnist.py path/to/mnist.npz

`mnist.npz` holds `x_train` (60000, 28, 28) and `x_test` (10000, 28, 28) of bytes, `y_train` and `y_test`. Their
MD5s must be the published ones of the uncompressed files of MNIST.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 1000
TARGET = Path(__file__).parents[1] / "src/isles/data/mnist_1000.npz"
MD5 = {
    "x_train": "6bbc9ace898e44ae57da46a324031adb",
    "y_train": "a25bea736e30d166cdddb491f175f624",
    "x_test": "2646ac647ad5339dbf082846283269ea",
    "y_test": "27ae3e4e09519cfbb04c329615203637",
}


def as_published(array: np.ndarray[Any, Any]) -> bytes:
    """An array of bytes as MNIST's own files hold it."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def main(path: str) -> None:
    """Check the full set, and write its first rows."""
    with np.load(path) as file:
        full = {name: file[name] for name in MD5}
    for name, array in full.items():
        if hashlib.md5(as_published(array), usedforsecurity=False).hexdigest() != MD5[name]:
            sys.exit(f"{name} of {path} is not that of MNIST")
    np.savez_compressed(TARGET, **{name: array[:ROWS] for name, array in full.items()})
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/embed_mnist.py path/to/mnist.npz")
    main(sys.argv[1])
