"""The data sets by name: how each is read and what its rows mean. Where files come from is in `sources.py`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from isles import checks, files
from isles.data import archives, sources
from isles.data.dataset import Array, Dataset, interleave

Rows = int | None
Four = tuple[Array, Array, Array, Array]  # x_train, y_train, x_test, y_test
Find = Callable[[], list[Path]]
Read = Callable[[Rows, Rows, Find], tuple[Four, str]]  # the arrays, and what was done to the published data

DIGITS = tuple("0123456789")
EMBEDDED = 1000  # images of MNIST in each split of the package's own file


@dataclass(frozen=True)
class Kind:
    """What is known of a data set before it is read."""

    summary: str
    read: Read
    choices: tuple[tuple[str, ...], ...]  # files it can be read from, alternatives in order of preference
    classes: tuple[str, ...]
    licence: str
    source: str
    archive: str = ""  # for features: the raw data,
    unpack: Callable[[Path], dict[str, archives.Split]] | None = None  # their reader,
    encoder: str = ""  # and an encoder to compute features with


@dataclass(frozen=True)
class Listing:
    """A line about a data set, whether it can be loaded here without a network, and where it comes from."""

    summary: str
    available: bool
    where: str


class Catalogue(dict[str, Listing]):
    """Data sets by name; printed as a table."""

    def __str__(self) -> str:
        names, summaries = max(map(len, self)), max(len(row.summary) for row in self.values())
        line = lambda name, row: f"{name:<{names}}  {row.summary:<{summaries}}  {row.where}"
        return "\n".join(line(name, row) for name, row in self.items())


def load(
    name: str, *, train: Rows = None, test: Rows = None, download: bool = True, progress: bool | None = None
) -> Dataset:
    """A data set by its name (`isles.data.NAMES`), from `ISLES_DATA`, the cache, or its public source.

    Args:
        name: "mnist", "australian", "imdb", "cifar10" or "digits".
        train: take the first so many training rows; by default all (of MNIST, the 1000 inside the package).
        test: the same for test rows. Of the Australian credit data, which have no test set, the last `test` rows.
        download: whether public servers may be asked for what is not at hand.
        progress: show downloads; by default, when the output is a terminal.

    >>> load("mnist")
    <mnist: 1000 training and 1000 test rows of 28 × 28 × 1>
    """
    kind = _kind(name)
    train = None if train is None else checks.count("train", train)
    test = None if test is None else checks.count("test", test, minimum=0)
    find = partial(_find, name, download=download, progress=_shown(progress))
    arrays, done = kind.read(train, test, find)
    return _dataset(name, arrays, done)


def raw(name: str, *, download: bool = True, progress: bool | None = None) -> Dataset:
    """The raw data of a set of features: IMDb's reviews as strings, CIFAR-10's images as bytes.

    They are what `isles.data.encode` makes features of.
    """
    kind, unpack = _encoded(name)
    what = f"the raw data of {name!r}"
    path, *_ = sources.obtain(what, [(kind.archive,)], fetch=download, progress=_shown(progress))
    splits = unpack(path)
    return _dataset(name, (*splits["train"], *splits["test"]), "raw")


def keep(name: str, x_train: Array, y_train: Array, x_test: Array, y_test: Array, *, encoder: str) -> Path:
    """Put features that were computed with `isles.data.encode` where `load(name)` finds them; return the path.

    The name of the encoder goes with them, into the `source` of the data set.
    """
    kind, _ = _encoded(name)
    arrays: dict[str, Array] = {"encoder": np.array(encoder)}
    for split, x, y in [("train", x_train, y_train), ("test", x_test, y_test)]:
        x, y = np.asarray(x, np.float32), np.asarray(y)
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise ValueError(
                f"x_{split} has shape {x.shape} and y_{split} {y.shape}; they must be (rows, features) and (rows,)"
            )
        if not np.isin(y, range(len(kind.classes))).all():
            raise ValueError(f"y_{split} has labels {np.unique(y)[:20]}; {name} has 0 to {len(kind.classes) - 1}")
        arrays |= {f"x_{split}": x, f"y_{split}": y.astype(np.uint8)}
    sources.cache().mkdir(parents=True, exist_ok=True)
    path = sources.cache() / kind.choices[0][0]
    with files.whole(path) as file:
        np.savez(file, allow_pickle=False, **arrays)
    return path


def default_encoder(name: str) -> str:
    """The encoder that the literature uses for a set of features."""
    return _encoded(name)[0].encoder


def names() -> Catalogue:
    """All data sets, a line each, and whether they are available here."""
    return Catalogue({name: _listing(name, kind) for name, kind in KINDS.items()})


def _mnist(train: Rows, test: Rows, find: Find) -> tuple[Four, str]:
    train = _rows("mnist", "train", EMBEDDED if train is None else train, 60_000)
    test = _rows("mnist", "test", EMBEDDED if test is None else test, 10_000)
    if max(train, test) <= EMBEDDED:
        with resources.as_file(resources.files("isles.data") / "mnist_1000.npz") as path:
            arrays = archives.splits(path)
    elif (paths := find())[0].suffix == ".npz":
        arrays = archives.splits(paths[0])
    else:
        arrays = dict(zip(["x_train", "y_train", "x_test", "y_test"], map(archives.idx, paths), strict=True))
    pixels = lambda x: (x / np.float32(255)).reshape(-1, 28, 28, 1)
    return _first("mnist", arrays, train, test, pixels), "pixels divided by 255"


def _australian(train: Rows, test: Rows, find: Find) -> tuple[Four, str]:
    path, *_ = find()
    table = archives.table(path, (690, 15))
    test = 0 if test is None else test
    if test >= len(table):
        raise ValueError(f"test={test} leaves none of the {len(table)} rows of australian to train on")
    train = _rows("australian", "train", train, len(table) - test)
    covariates, labels = table[:, :-1], table[:, -1]
    seen = covariates[:train]
    varies = np.ptp(seen, axis=0) > 0  # rounding can make the standard deviation of a constant a tiny number
    scaled = (covariates - seen.mean(axis=0)) / np.where(varies, seen.std(axis=0), 1)
    x = np.column_stack([np.ones(len(table)), scaled]).astype(np.float32)
    last = len(table) - test
    done = "an intercept, then covariates standardised by the mean and standard deviation of the training rows"
    return (x[:train], labels[:train], x[last:], labels[last:]), done


def _imdb(train: Rows, test: Rows, find: Find) -> tuple[Four, str]:
    path, *_ = find()
    arrays = archives.splits(path)
    for split in ["train", "test"]:  # the file is sorted by class, and first rows must not be
        order = interleave(arrays[f"y_{split}"])
        arrays |= {name: arrays[name][order] for name in (f"x_{split}", f"y_{split}")}
    encoder = arrays.get("encoder", "all-mpnet-base-v2")
    four = _first("imdb", arrays, train, test, lambda x: x.astype(np.float32))
    return four, f"features of {encoder}, the classes interleaved"


def _cifar10(train: Rows, test: Rows, find: Find) -> tuple[Four, str]:
    path, *_ = find()
    arrays = archives.splits(path)

    def features(x: Array) -> Array:
        x = x.astype(np.float32)
        if "scale" in arrays:  # stored as bytes on a square-root scale, finer where most features lie
            x /= 255
            x *= x
            x *= arrays["scale"]
        return x

    encoder = arrays.get("encoder", "ResNet-50 (ImageNet, pooled)")
    return _first("cifar10", arrays, train, test, features), f"features of {encoder}"


def _digits(train: Rows, test: Rows, find: Find) -> tuple[Four, str]:
    if find_spec("sklearn") is None:
        raise ModuleNotFoundError("the data set 'digits' comes with scikit-learn: pip install 'isles[sklearn]'")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = (bunch.images / 16).astype(np.float32)[..., None], bunch.target
    number = np.array([np.sum(y[:row] == y[row]) for row in range(len(y))])  # of an image within its class
    tested = number % 5 == 4
    arrays = {"x_train": x[~tested], "y_train": y[~tested], "x_test": x[tested], "y_test": y[tested]}
    four = _first("digits", arrays, train, test, lambda x: x)
    return four, "pixels divided by 16; every fifth image of a class is for testing"


KINDS: dict[str, Kind] = {
    "mnist": Kind(
        "handwritten digits, 28 × 28 pixels",
        _mnist,
        (
            ("mnist.npz",),
            (
                "train-images-idx3-ubyte.gz",
                "train-labels-idx1-ubyte.gz",
                "t10k-images-idx3-ubyte.gz",
                "t10k-labels-idx1-ubyte.gz",
            ),
        ),
        DIGITS,
        "CC BY-SA 3.0",
        "MNIST, Yann LeCun, Corinna Cortes, Christopher J. C. Burges",
    ),
    "australian": Kind(
        "credit applications, 14 covariates and an intercept",
        _australian,
        (("australian.csv",), ("australian.dat",)),
        ("-", "+"),
        "CC BY 4.0",
        "Statlog (Australian Credit Approval), UCI Machine Learning Repository",
    ),
    "imdb": Kind(
        "film reviews as features of a sentence encoder",
        _imdb,
        (("imdb_mpnet.npz",),),
        ("negative", "positive"),
        "research use",
        "Large Movie Review Dataset, Maas et al. 2011",
        "aclImdb_v1.tar.gz",
        archives.imdb,
        "sentence-transformers:all-mpnet-base-v2",
    ),
    "cifar10": Kind(
        "photographs as features of a ResNet-50",
        _cifar10,
        (("cifar10_resnet50.npz",),),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        "none stated; cite Krizhevsky 2009",
        "CIFAR-10, Alex Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        "cifar-10-binary.tar.gz",
        archives.cifar,
        "torchvision:resnet50",
    ),
    "digits": Kind(
        "handwritten digits, 8 × 8 pixels",
        _digits,
        (),
        DIGITS,
        "CC BY 4.0",
        "Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, the part in scikit-learn",
    ),
}
NAMES = tuple(KINDS)


def _kind(name: str) -> Kind:
    if name in KINDS:
        return KINDS[name]
    near = difflib.get_close_matches(str(name).lower(), NAMES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"name={name!r} is not a data set; {hint}There are {', '.join(map(repr, NAMES))}")


def _encoded(name: str) -> tuple[Kind, Callable[[Path], dict[str, archives.Split]]]:
    kind = _kind(name)
    if kind.unpack is None:
        encoded = ", ".join(repr(other) for other in NAMES if KINDS[other].unpack)
        raise ValueError(
            f"{name!r} is not made by an encoder: isles.data.load({name!r}) is all (only {encoded} are)"
        )
    return kind, kind.unpack


def _find(name: str, *, download: bool, progress: bool) -> list[Path]:
    kind = KINDS[name]
    if not kind.encoder:
        return sources.obtain(repr(name), kind.choices, fetch=download, progress=progress)
    if (paths := sources.locate(*kind.choices[0])) is not None:
        return paths
    recipe = (
        f"compute the features: raw = isles.data.raw({name!r}) fetches the raw data, "
        f"isles.data.encode(raw.x_train, {kind.encoder!r}, folder) encodes them, the same for raw.x_test, and "
        f"isles.data.keep({name!r}, x_train, raw.y_train, x_test, raw.y_test, encoder=...) puts them into (2)"
    )
    raise FileNotFoundError(sources.missing(repr(name), kind.choices, recipe))


def _listing(name: str, kind: Kind) -> Listing:
    if name == "digits":
        here = find_spec("sklearn") is not None
        return Listing(
            kind.summary, here, "with scikit-learn" if here else "to install: pip install 'isles[sklearn]'"
        )
    found = next((paths for names in kind.choices if (paths := sources.locate(*names))), None)
    where = f"in {found[0].parent}" if found else "to encode" if kind.encoder else "to download"
    if name == "mnist":
        return Listing(kind.summary, True, f"{EMBEDDED} + {EMBEDDED} in the package, all {where}")
    return Listing(kind.summary, found is not None, where)


def _rows(name: str, split: str, wanted: Rows, there: int) -> int:
    if wanted is None:
        return there
    if wanted > there:
        kind = "training" if split == "train" else "test"
        raise ValueError(f"{split}={wanted} is more than the {there} {kind} rows of {name}; take {there} or fewer")
    return wanted


def _first(name: str, arrays: dict[str, Array], train: Rows, test: Rows, finish: Callable[[Array], Array]) -> Four:
    """First rows, their inputs finished: the rest of a large set is not worked on."""
    train = _rows(name, "train", train, len(arrays["x_train"]))
    test = _rows(name, "test", test, len(arrays["x_test"]))
    x_train, x_test = finish(arrays["x_train"][:train]), finish(arrays["x_test"][:test])
    return x_train, arrays["y_train"][:train], x_test, arrays["y_test"][:test]


def _dataset(name: str, arrays: Four, done: str) -> Dataset:
    kind = KINDS[name]
    x_train, y_train, x_test, y_test = arrays
    labels = lambda y: y.astype(np.int32)
    source = f"{kind.source}; {done}"
    return Dataset(name, x_train, labels(y_train), x_test, labels(y_test), kind.classes, kind.licence, source)


def _shown(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress
