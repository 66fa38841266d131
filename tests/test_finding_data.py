"""Where data sets are looked for: names, the order of places, and clear errors for what is missing or damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import isles


def test_names(empty: Path) -> None:
    found = isles.data.names()
    assert tuple(found) == isles.data.NAMES == ("mnist", "australian", "imdb", "cifar10", "digits")
    assert [row.available for row in found.values()] == [True, False, False, False, True]
    assert "to download" in found["australian"].where and "to encode" in found["imdb"].where
    assert len(str(found).splitlines()) == 5
    empty.mkdir()
    (empty / "australian.dat").write_text("")
    assert isles.data.names()["australian"].where == f"in {empty}"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mnits", "mnist"),
        ("MNIST", "mnist"),
        ("cifar-10", "cifar10"),
        ("imbd", "imdb"),
        ("austrailian", "australian"),
    ],
)
def test_an_unknown_name_offers_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"name='{name}' is not a data set; did you mean '{near}'\?"):
        isles.data.load(name)


def test_a_name_unlike_any() -> None:
    with pytest.raises(ValueError, match=r"name='zzz' is not a data set; There are 'mnist', 'australian'"):
        isles.data.load("zzz")


def test_rows_out_of_range(empty: Path) -> None:
    with pytest.raises(ValueError, match=r"train=70000 is more than the 60000 training rows of mnist"):
        isles.data.load("mnist", train=70000)
    with pytest.raises(ValueError, match=r"test=10001 is more than the 10000 test rows"):
        isles.data.load("mnist", test=10001)
    with pytest.raises(ValueError, match=r"train=0 must be at least 1"):
        isles.data.load("mnist", train=0)
    with pytest.raises(ValueError, match=r"test=-1 must be at least 0"):
        isles.data.load("mnist", test=-1)
    with pytest.raises(TypeError, match=r"train=1\.5 must be a whole number"):
        isles.data.load("mnist", train=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"is more than the \d+ test rows of digits"):
        isles.data.load("digits", test=1000)


def test_what_is_missing_is_said_with_the_ways_to_it(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, files in [
        ("australian", r"australian\.csv, or australian\.dat"),
        ("mnist", r"mnist\.npz, or train-"),
    ]:
        with pytest.raises(
            FileNotFoundError, match=rf"\(1\) set ISLES_DATA to a folder with {files}.*download=True"
        ):
            isles.data.load(name, train=1001 if name == "mnist" else None, download=False)
    with pytest.raises(FileNotFoundError, match=r"isles\.data\.raw\('imdb'\).*encode.*isles\.data\.keep"):
        isles.data.load("imdb")
    with pytest.raises(FileNotFoundError, match=r"cifar-10-binary\.tar\.gz"):
        isles.data.raw("cifar10", download=False)
    with pytest.raises(ValueError, match=r"'mnist' is not made by an encoder.*\(only 'imdb', 'cifar10' are\)"):
        isles.data.raw("mnist")
    monkeypatch.setenv("ISLES_DATA", str(empty / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"ISLES_DATA=.*nowhere is not a folder"):
        isles.data.load("australian", download=False)


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 broken"])
def test_a_damaged_file_is_named(empty: Path, content: bytes) -> None:
    empty.mkdir()
    (empty / "imdb_mpnet.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"imdb_mpnet\.npz is damaged"):
        isles.data.load("imdb")
    (empty / "australian.dat").write_bytes(content)
    with pytest.raises(ValueError, match=r"australian\.dat is damaged"):
        isles.data.load("australian")


def test_a_file_without_labels_is_named(empty: Path) -> None:
    empty.mkdir()
    np.savez(empty / "imdb_mpnet.npz", x_train=np.ones((3, 2)), x_test=np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"it has 3 inputs and 0 labels to train"):
        isles.data.load("imdb")


def test_isles_data_comes_before_the_cache(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    chosen = tmp_path / "chosen"
    tables = {}
    for folder in [empty, chosen]:
        folder.mkdir()
        tables[folder] = np.column_stack([rng.normal(size=(690, 14)), np.arange(690) % 2])
        np.savetxt(folder / "australian.dat", tables[folder])
    labelled = lambda: isles.data.load("australian").x_train[:, 1]
    standard = lambda folder: StandardScaler().fit_transform(tables[folder][:, :1])[:, 0]
    np.testing.assert_allclose(labelled(), standard(empty), atol=1e-5)
    monkeypatch.setenv("ISLES_DATA", str(chosen))
    np.testing.assert_allclose(labelled(), standard(chosen), atol=1e-5)


def test_kept_features_are_loaded(empty: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3)), np.array([0, 0, 0, 1, 1, 1])
    path = isles.data.keep("imdb", x, y, x[:4], y[:4], encoder="my encoder")
    assert path.parent == empty and isles.data.names()["imdb"].available
    data = isles.data.load("imdb")
    assert data.y_train.tolist() == [0, 1, 0, 1, 0, 1] and data.x_test.dtype == np.float32
    np.testing.assert_array_equal(data.x_train, x[[0, 3, 1, 4, 2, 5]].astype(np.float32))
    assert "features of my encoder" in data.source
    isles.data.keep("cifar10", x, y, x, y, encoder="my encoder")
    np.testing.assert_array_equal(isles.data.load("cifar10").x_train, x.astype(np.float32))
    with pytest.raises(ValueError, match=r"x_test has shape \(6, 3\) and y_test \(5,\)"):
        isles.data.keep("imdb", x, y, x, y[:5], encoder="my encoder")
    with pytest.raises(ValueError, match=r"y_train has labels \[0 2\]; imdb has 0 to 1"):
        isles.data.keep("imdb", x, 2 * y, x, y, encoder="my encoder")
