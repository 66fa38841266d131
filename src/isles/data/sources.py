"""Where data files come from: the folder in `ISLES_DATA`, the cache, public servers.

What is in the files is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isles import files
from isles.data.download import DownloadError, download


@dataclass(frozen=True)
class File:
    """A public file: its addresses in order of preference, its SHA-256 and its size."""

    urls: tuple[str, ...]
    sha256: str
    bytes: int


_MNIST = ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/")
_UCI = "archive.ics.uci.edu/ml/machine-learning-databases/statlog/australian/australian.dat"
_CIFAR = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")

FILES: dict[str, File] = {
    "train-images-idx3-ubyte.gz": File(
        tuple(mirror + "train-images-idx3-ubyte.gz" for mirror in _MNIST),
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        9_912_422,
    ),
    "train-labels-idx1-ubyte.gz": File(
        tuple(mirror + "train-labels-idx1-ubyte.gz" for mirror in _MNIST),
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        28_881,
    ),
    "t10k-images-idx3-ubyte.gz": File(
        tuple(mirror + "t10k-images-idx3-ubyte.gz" for mirror in _MNIST),
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        1_648_877,
    ),
    "t10k-labels-idx1-ubyte.gz": File(
        tuple(mirror + "t10k-labels-idx1-ubyte.gz" for mirror in _MNIST),
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        4_542,
    ),
    "australian.dat": File(
        (f"https://{_UCI}", f"http://{_UCI}"),
        "3abe5af151afa50b999a9ba21cbc884e80d80a4050b716cf88b34a2e6ecb731c",
        28_735,
    ),
    "aclImdb_v1.tar.gz": File(
        ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
        84_125_825,
    ),
    # the version for C: its pixels and labels are those of the Python version, which is a pickle
    "cifar-10-binary.tar.gz": File(
        tuple(mirror + "cifar-10-binary.tar.gz" for mirror in _CIFAR),
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        170_052_171,
    ),
}


def cache() -> Path:
    """The folder that downloads go to: `data` in isles' cache."""
    return files.cache_folder() / "data"


def folders() -> list[Path]:
    """Where files are looked for before they are downloaded."""
    chosen = os.environ.get("ISLES_DATA")
    return [Path(chosen), cache()] if chosen else [cache()]


def locate(*names: str) -> list[Path] | None:
    """Paths of all these files, in the first folder that has them all; None where there is none."""
    for folder in folders():
        paths = [folder / name for name in names]
        if all(path.is_file() for path in paths):
            return paths
    return None


def obtain(what: str, choices: Sequence[Sequence[str]], *, fetch: bool, progress: bool) -> list[Path]:
    """Paths of the first of `choices` (lists of file names) that is at hand; else the last one, downloaded."""
    for names in choices:
        if (paths := locate(*names)) is not None:
            return paths
    if not fetch:
        raise FileNotFoundError(missing(what, choices, "let isles fetch it by download=True"))
    try:
        return [fetched(name, progress=progress) for name in choices[-1]]
    except DownloadError as error:
        remedy = f"connect to the network and call again, for isles to fetch it (this time it failed: {error})"
        raise FileNotFoundError(missing(what, choices, remedy)) from error


def fetched(name: str, *, progress: bool) -> Path:
    """The path of one file of `FILES`, at hand or downloaded to the cache and checked."""
    if (paths := locate(name)) is not None:
        return paths[0]
    file, folder = FILES[name], cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(
            f"{folder} cannot be made ({error}); set ISLES_CACHE to a folder to write to"
        ) from error
    path = folder / name
    download(file.urls, path, sha256=file.sha256, size=file.bytes, progress=progress)
    return path


def missing(what: str, choices: Sequence[Sequence[str]], third: str) -> str:
    """An error's text: where was looked, and three ways to the data, of which the third depends on them."""
    chosen = os.environ.get("ISLES_DATA")
    looked = "ISLES_DATA is not set" if not chosen else f"ISLES_DATA={chosen} does not hold it"
    if chosen and not Path(chosen).is_dir():
        looked = f"ISLES_DATA={chosen} is not a folder"
    needed = ", or ".join(" and ".join(names) for names in choices)
    return (
        f"{what} is not at hand: {looked}, and it is not in {cache()}. There are three ways: "
        f"(1) set ISLES_DATA to a folder with {needed}; (2) put the same into {cache()}; (3) {third}"
    )
