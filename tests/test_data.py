"""Data sets by name. Truth: the full files in ISLES_DATA, published checksums, scikit-learn."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.preprocessing import StandardScaler

import isles
from isles.data import archives, sets, sources

ROOT = Path(__file__).parents[1]
FOLDER = os.environ.get("ISLES_DATA")
files_at_hand = pytest.mark.skipif(not FOLDER, reason="ISLES_DATA is not set")


@pytest.fixture
def full() -> Any:
    with np.load(Path(str(FOLDER)) / "mnist.npz") as file:
        return dict(file)


def test_mnist_of_the_package_needs_no_files(empty: Path) -> None:
    data = isles.data.load("mnist")
    for x, y in [(data.x_train, data.y_train), (data.x_test, data.y_test)]:
        assert x.shape == (1000, 28, 28, 1) and x.dtype == np.float32
        assert y.shape == (1000,) and y.dtype == np.int32
        assert x.min() == 0 and x.max() == 1 and set(y) == set(range(10))
    assert len(data.classes or ()) == 10
    assert "CC BY-SA 3.0" in data.licence and "LeCun" in data.source
    model = RidgeClassifier(alpha=30.0).fit(data.x_train.reshape(1000, -1), data.y_train)
    assert model.score(data.x_test.reshape(1000, -1), data.y_test) > 0.75


def test_mnist_goes_into_the_network(empty: Path) -> None:
    data = isles.data.load("mnist", train=3, test=2)
    network = isles.models.CNN()
    params = {name: np.zeros(shape.shape, shape.dtype) for name, shape in network.shapes().items()}
    assert network.apply(params, data.x_train).shape == (3, 10)


def test_first_rows(empty: Path) -> None:
    whole, part = isles.data.load("mnist"), isles.data.load("mnist", train=10, test=0)
    np.testing.assert_array_equal(part.x_train, whole.x_train[:10])
    np.testing.assert_array_equal(part.y_train, whole.y_train[:10])
    assert part.x_test.shape == (0, 28, 28, 1) and part.y_test.shape == (0,)
    assert repr(part) == "<mnist: 10 training and 0 test rows of 28 × 28 × 1>"


@files_at_hand
def test_mnist_is_the_first_part_of_the_published_set(full: Any) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "embed_mnist.py"))
    for name, published in script["MD5"].items():
        content = script["as_published"](full[name])
        assert hashlib.md5(content, usedforsecurity=False).hexdigest() == published
    data = isles.data.load("mnist")
    for split in ["train", "test"]:
        pixels = np.rint(getattr(data, f"x_{split}")[..., 0] * 255)
        np.testing.assert_array_equal(pixels, full[f"x_{split}"][:1000])
        np.testing.assert_array_equal(getattr(data, f"y_{split}"), full[f"y_{split}"][:1000])


@files_at_hand
def test_a_larger_subset_of_mnist_comes_from_the_full_set(full: Any) -> None:
    data = isles.data.load("mnist", train=5000, test=2000)
    np.testing.assert_array_equal(np.rint(data.x_train[..., 0] * 255), full["x_train"][:5000])
    np.testing.assert_array_equal(data.y_test, full["y_test"][:2000])
    assert len(isles.data.load("mnist", test=1001).x_train) == 1000


def test_mnist_as_published_files(empty: Path) -> None:
    """Files of the published format and names, with random images."""
    empty.mkdir()
    rng = np.random.default_rng(0)
    shapes = {"train": (1500, 28, 28), "t10k": (1200, 28, 28)}
    written = {}
    for split, shape in shapes.items():
        images, labels = rng.integers(0, 256, shape, np.uint8), rng.integers(0, 10, shape[:1], np.uint8)
        for array, name in [(images, "images-idx3"), (labels, "labels-idx1")]:
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            (empty / f"{split}-{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes(), mtime=0))
        written[split] = images, labels
    data = isles.data.load("mnist", train=1100, test=1200)
    np.testing.assert_array_equal(data.x_test[..., 0], written["t10k"][0] / np.float32(255))
    np.testing.assert_array_equal(data.y_train, written["train"][1][:1100])
    with pytest.raises(ValueError, match=r"train=1600 is more than the 1500 training rows"):
        isles.data.load("mnist", train=1600)
    path = empty / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        isles.data.load("mnist", train=1100)
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"))
    with pytest.raises(ValueError, match=r"does not fit its header"):
        isles.data.load("mnist", train=1100)


@files_at_hand
def test_australian() -> None:
    data = isles.data.load("australian")
    assert data.x_train.shape == (690, 15) and data.x_train.dtype == np.float32 and data.y_train.dtype == np.int32
    assert data.x_test.shape == (0, 15)
    assert np.bincount(data.y_train).tolist() == [383, 307]
    table = np.genfromtxt(Path(str(FOLDER)) / "australian.csv", delimiter=",", skip_header=1)
    np.testing.assert_array_equal(data.x_train[:, 0], 1)
    np.testing.assert_allclose(data.x_train[:, 1:], StandardScaler().fit_transform(table[:, :-1]), atol=1e-5)


@files_at_hand
def test_australian_standardises_by_training_rows() -> None:
    data = isles.data.load("australian", test=90)
    assert len(data.x_train) == 600 and len(data.x_test) == 90
    np.testing.assert_allclose(data.x_train[:, 1:].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(data.x_train[:, 1:].std(axis=0), 1, atol=1e-5)
    assert LogisticRegression().fit(data.x_train, data.y_train).score(data.x_test, data.y_test) > 0.8
    few = isles.data.load("australian", train=2, test=90)
    np.testing.assert_array_equal(few.y_test, data.y_test)
    assert abs(few.x_test[:, 1:]).max() < 1e6  # columns that are constant in two rows are centred only
    with pytest.raises(ValueError, match=r"train=601 is more than the 600"):
        isles.data.load("australian", train=601, test=90)
    with pytest.raises(ValueError, match=r"test=690 leaves none of the 690 rows"):
        isles.data.load("australian", test=690)


@files_at_hand
def test_australian_as_published(empty: Path) -> None:
    """The UCI's file is the table without names, between spaces; its checksum is in the table of sources."""
    lines = (Path(str(FOLDER)) / "australian.csv").read_text().splitlines()[1:]
    content = "".join(line.replace(",", " ") + "\n" for line in lines).encode()
    file = sources.FILES["australian.dat"]
    assert hashlib.md5(content, usedforsecurity=False).hexdigest() == "b6fe154b62a8eb00277acec95b608590"
    assert hashlib.sha256(content).hexdigest() == file.sha256 and len(content) == file.bytes
    empty.mkdir()
    (empty / "australian.dat").write_bytes(content[: content.rindex(b"\n", 0, -1) + 1])
    with pytest.raises(ValueError, match=r"it is a table of shape \(689, 15\), not \(690, 15\)"):
        isles.data.load("australian")
    (empty / "australian.dat").write_bytes(content)
    assert np.bincount(isles.data.load("australian").y_train).tolist() == [383, 307]


@files_at_hand
def test_imdb_interleaves_the_classes() -> None:
    data = isles.data.load("imdb", train=1000, test=1000)
    assert data.x_train.dtype == np.float32 and data.x_train.shape == (1000, 768)
    np.testing.assert_allclose(np.linalg.norm(data.x_train, axis=1), 1, atol=2e-3)
    for rows in [10, 100, 1000]:
        assert abs(data.y_train[:rows].mean() - 0.5) <= 0.1
    assert RidgeClassifier().fit(data.x_train, data.y_train).score(data.x_test, data.y_test) > 0.8
    few = isles.data.load("imdb", train=10, test=5)
    np.testing.assert_array_equal(few.x_train, data.x_train[:10])


@files_at_hand
def test_imdb_is_the_whole_file() -> None:
    data = isles.data.load("imdb")
    with np.load(Path(str(FOLDER)) / "imdb_mpnet.npz") as file:
        for split in ["train", "test"]:
            x, y = file[f"x_{split}"], file[f"y_{split}"]
            assert np.bincount(getattr(data, f"y_{split}")).tolist() == np.bincount(y).tolist()
            for label in [0, 1]:  # within a class, in the order of the file
                ours = getattr(data, f"x_{split}")[getattr(data, f"y_{split}") == label]
                np.testing.assert_array_equal(ours, x[y == label])
    assert "all-mpnet-base-v2" in data.source


@files_at_hand
def test_cifar10() -> None:
    data = isles.data.load("cifar10", train=4000, test=1000)
    assert data.x_train.shape == (4000, 2048) and data.x_train.dtype == np.float32
    assert RidgeClassifier(alpha=100.0).fit(data.x_train, data.y_train).score(data.x_test, data.y_test) > 0.85
    with np.load(Path(str(FOLDER)) / "cifar10_resnet50.npz") as file:
        sizes = len(file["y_train"]), len(file["y_test"])
        wanted = np.square(file["q_test"][:1000] / 255.0) * file["scale"]
    np.testing.assert_allclose(data.x_test, wanted, rtol=1e-5)
    whole = isles.data.load("cifar10")
    assert (len(whole.x_train), len(whole.x_test)) == sizes
    with pytest.raises(ValueError, match=rf"train={sizes[0] + 1} is more than the {sizes[0]} training rows"):
        isles.data.load("cifar10", train=sizes[0] + 1)


def test_digits() -> None:
    data = isles.data.load("digits")
    assert data.x_train.shape[1:] == (8, 8, 1) and data.x_train.max() == 1
    rows = lambda x, y: sorted(zip(np.rint(x.reshape(-1, 64) * 16).astype(int).tolist(), y.tolist(), strict=True))
    bunch = load_digits()
    both = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    assert rows(*both) == rows(bunch.data / 16, bunch.target)
    train, test = np.bincount(data.y_train), np.bincount(data.y_test)
    assert (abs(test / (train + test) - 0.2) < 0.005).all()
    model = RidgeClassifier().fit(data.x_train.reshape(-1, 64), data.y_train)
    assert model.score(data.x_test.reshape(-1, 64), data.y_test) > 0.94


def test_digits_without_scikit_learn() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import isles.data\n"
        "assert not isles.data.names()['digits'].available\n"
        "isles.data.load('digits')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr.strip().endswith(
        "ModuleNotFoundError: the data set 'digits' comes with scikit-learn: pip install 'isles[sklearn]'"
    )


def test_data_need_no_jax(tmp_path: Path) -> None:
    """The package `isles` itself imports JAX; a bare stand-in shows that `isles.data` does not."""
    code = (
        "import sys, types\n"
        "sys.modules['jax'] = sys.modules['jaxlib'] = None\n"
        "sys.modules['isles'] = bare = types.ModuleType('isles')\n"
        f"bare.__path__ = [{str(Path(isles.__file__).parent)!r}]\n"
        "import isles.data\n"
        "print(isles.data.load('mnist'), isles.data.encode(['a'], lambda batch: [[1.0]], sys.argv[1], 1, False))"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "<mnist: 1000 training and 1000 test rows of 28 × 28 × 1> [[1.]]", found.stderr


def archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


def test_raw_cifar10(empty: Path) -> None:
    empty.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 10
    records = np.column_stack([labels, images.transpose(0, 3, 1, 2).reshape(12, -1)])
    batches = {f"data_batch_{number}": records[2 * number - 2 : 2 * number] for number in [3, 1, 2, 5, 4]}
    batches["test_batch"] = records[10:]
    members = {f"cifar-10-batches-bin/{name}.bin": part.tobytes() for name, part in batches.items()}
    archive(empty / "cifar-10-binary.tar.gz", members)
    data = isles.data.raw("cifar10")
    np.testing.assert_array_equal(data.x_train, images[:10])
    np.testing.assert_array_equal(data.x_test, images[10:])
    assert data.y_train.tolist() == labels[:10].tolist() and data.classes is not None
    members.popitem()
    archive(empty / "cifar-10-binary.tar.gz", members)
    with pytest.raises(ValueError, match=r"it lacks test_batch\.bin"):
        isles.data.raw("cifar10")


def test_raw_imdb(empty: Path) -> None:
    empty.mkdir()
    members = {
        "aclImdb/train/pos/0_9.txt": "schön".encode(),
        "aclImdb/train/neg/10_1.txt": b"tenth",
        "aclImdb/train/neg/2_3.txt": b"second",
        "aclImdb/train/unsup/0_0.txt": b"no label",
        "aclImdb/train/urls_neg.txt": b"http://",
        "aclImdb/../test/pos/7_7.txt": b"elsewhere",
        "aclImdb/test/pos/1_10.txt": b"good",
        "aclImdb/test/neg/0_2.txt": b"bad",
    }
    path = empty / "aclImdb_v1.tar.gz"
    archive(path, members)
    data = isles.data.raw("imdb")
    assert data.x_train.tolist() == ["second", "tenth", "schön"] and data.y_train.tolist() == [0, 0, 1]
    assert data.x_test.tolist() == ["bad", "good"] and data.y_test.tolist() == [0, 1]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"aclImdb_v1\.tar\.gz is damaged"):
        archives.imdb(path)


@pytest.mark.parametrize("counts", [(50, 50), (90, 10), (1, 1000), (30, 20, 10)])
def test_interleaved_rows_keep_the_proportions(counts: tuple[int, ...]) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    order = sets.interleave(labels)
    assert sorted(order) == list(range(len(labels)))
    for label, count in enumerate(counts):
        rows = np.arange(1, len(labels) + 1)
        assert (abs(np.cumsum(labels[order] == label) - rows * count / len(labels)) <= len(counts) / 2).all()


def test_the_notice_is_in_the_package() -> None:
    from importlib import resources

    folder = resources.files("isles.data")
    assert (folder / "mnist_1000.npz").is_file()
    assert "CC BY-SA 3.0" in (folder / "mnist_1000.NOTICE").read_text()
