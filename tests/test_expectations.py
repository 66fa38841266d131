"""Weighted sums of functions of the draws against NumPy, and tensors on disk and back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from isles import expectations, store
from isles.expectations import island_sums
from isles.layout import Layout

LAYOUT = Layout.of({"a": np.zeros(2, np.float32), "b": np.zeros((), np.float32)})
RNG = np.random.default_rng(0)
POSITIONS = RNG.normal(size=(3, 7, 3)).astype(np.float32)
WEIGHTS = RNG.exponential(size=(3, 7))


def moments(params: Any) -> Any:
    a, b = params["a"], params["b"]
    return {"outer": jnp.outer(a, a), "parts": (b, [jnp.sin(a), a.sum() > 0]), "none": jnp.zeros((0, 2)), "one": 1}


def moments_by_numpy(positions: Any, w: Any) -> Any:
    a, b = positions[..., :2].astype(float), positions[..., 2].astype(float)
    return {
        "outer": np.einsum("pn,pni,pnj->pij", w, a, a),
        "parts": (
            np.einsum("pn,pn->p", w, b),
            [np.einsum("pn,pni->pi", w, np.sin(a)), (w * (a.sum(-1) > 0)).sum(1)],
        ),
        "none": np.zeros((len(w), 0, 2)),
        "one": w.sum(axis=1),
    }


def assert_trees_close(given: Any, expected: Any, **tolerance: float) -> None:
    assert jax.tree.structure(given) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, **tolerance)


class TestIslandSums:
    @pytest.mark.parametrize("chunk_bytes", [1, 200, 250, 500, 1 << 26])
    def test_they_are_numpys_whatever_the_chunk(self, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(expectations, "CHUNK_BYTES", chunk_bytes)
        sums = island_sums(LAYOUT, moments, POSITIONS, WEIGHTS)
        assert_trees_close(sums, moments_by_numpy(POSITIONS, WEIGHTS), rtol=1e-6, atol=1e-6)

    def test_the_chunk_changes_the_width_of_the_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def widths(chunk_bytes: int) -> set[int]:
            seen = set()
            real = jax.vmap
            spy = lambda function: lambda rows: seen.add(len(rows)) or real(function)(rows)
            with monkeypatch.context() as patch:
                patch.setattr(expectations, "CHUNK_BYTES", chunk_bytes)
                patch.setattr(jax, "vmap", spy)
                island_sums(LAYOUT, lambda params: params["b"], POSITIONS, WEIGHTS)
            return seen

        assert widths(1) == {1}
        assert widths(8 * 4 * 5) == {5}  # of 3 coordinates and 1 result, 8 bytes each
        assert widths(1 << 26) == {21}

    @pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
    @pytest.mark.parametrize("chunk_bytes", [1, 64, 1 << 26])
    def test_one_island_or_one_particle_is_enough(
        self, shape: tuple[int, int], chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expectations, "CHUNK_BYTES", chunk_bytes)
        positions = np.random.default_rng(2).normal(size=(*shape, 3)).astype(np.float32)
        sums = island_sums(LAYOUT, lambda p: p["a"] * p["b"], positions, np.ones(shape))
        np.testing.assert_allclose(
            sums, (positions[..., :2] * positions[..., 2:]).sum(axis=1), rtol=1e-5, atol=1e-6
        )

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 26])
    def test_draws_of_weight_zero_do_no_harm(
        self, bad: float, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expectations, "CHUNK_BYTES", chunk_bytes)
        positions, w = POSITIONS.copy(), WEIGHTS.copy()
        positions[0, 2], positions[2] = bad, bad
        w[0, 2] = w[2] = 0
        sums = island_sums(LAYOUT, lambda p: p["a"], positions, w)
        expected = np.einsum("pn,pni->pi", w, np.where(w[..., None] > 0, positions[..., :2], 0.0))
        np.testing.assert_allclose(sums, expected, rtol=1e-6)
        assert (sums[2] == 0).all()

    def test_a_nan_that_carries_weight_shows_in_its_island_only(self) -> None:
        positions = POSITIONS.copy()
        positions[1, 3] = np.nan
        sums = island_sums(LAYOUT, lambda p: p["b"], positions, WEIGHTS)
        assert np.isnan(sums).tolist() == [False, True, False]

    def test_sums_are_taken_in_float64(self) -> None:
        positions = np.full((1, 10_000, 3), 1.1, np.float32)
        total = island_sums(LAYOUT, lambda p: p["b"], positions, np.full((1, 10_000), 1e-4))
        assert total.dtype == np.float64
        assert total[0] == pytest.approx(float(np.float32(1.1)), rel=1e-12)

    @pytest.mark.parametrize("nothing", [None, {}, []])
    def test_a_function_that_returns_nothing_is_refused(self, nothing: Any) -> None:
        with pytest.raises(ValueError, match="returns no array"):
            island_sums(LAYOUT, lambda p: nothing, POSITIONS, WEIGHTS)


class Pair(NamedTuple):
    left: Any
    right: Any


X, Z = np.arange(6.0).reshape(2, 3), np.arange(4, dtype=np.int32)
PLAIN = {
    "array": X,
    "scalar": np.array(2.5),
    "dict": {"x": X, "z": Z},
    "nested": {"layers": [{"w": X, "b": (Z, [X])}, (X,)], "scale": Z},
    "slashes": {"a/b": X, "a": {"b": Z, "": X}, "0": X, "a/0": Z},
    "order": {"b": X, "a": Z},
    "empty": {"x": X, "nothing": {}, "none": [], "either": ()},
    "more than ten": [np.full(1, float(i)) for i in range(12)],
}


class TestStore:
    @pytest.mark.parametrize("tree", PLAIN.values(), ids=PLAIN)
    def test_plain_trees_come_back_whole(self, tree: Any, tmp_path: Path) -> None:
        tensors: store.Tensors = {}
        structure = store.pack("tree", tree, tensors)
        store.write(tmp_path / "file", tensors, {"structure": structure})
        read, facts = store.read(tmp_path / "file")
        assert_trees_close(store.unpack("tree", facts["structure"], read), tree, rtol=0)

    def test_several_trees_share_a_file(self, tmp_path: Path) -> None:
        tensors: store.Tensors = {}
        facts = {name: store.pack(f"group/{name}", tree, tensors) for name, tree in PLAIN.items()}
        store.write(tmp_path / "file", tensors, facts)
        read, facts = store.read(tmp_path / "file")
        for name, tree in PLAIN.items():
            assert_trees_close(store.unpack(f"group/{name}", facts[name], read), tree, rtol=0)

    @pytest.mark.parametrize("tree", [Pair(X, Z), {"inner": [Pair(X, Z)]}, {1: X, 2: Z}, {"x": X, "n": None}])
    def test_structures_beyond_json_are_none_but_keep_their_leaves(self, tree: Any) -> None:
        tensors: store.Tensors = {}
        assert store.pack("tree", tree, tensors) is None
        leaves = jax.tree.leaves(tree)
        assert list(tensors) == [f"tree/{i}" for i in range(len(leaves))]
        assert all((tensors[f"tree/{i}"] == leaf).all() for i, leaf in enumerate(leaves))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint32, np.uint8, bool])
    @pytest.mark.parametrize("shape", [(), (1,), (0, 3), (4, 3)])
    def test_dtypes_and_shapes_survive(self, dtype: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
        tensor = np.random.default_rng(1).integers(0, 2, size=shape).astype(dtype)
        store.write(tmp_path / "file", {"t": tensor, "transposed": tensor.T}, {})
        read, facts = store.read(tmp_path / "file")
        assert facts == {}
        for name, expected in (("t", tensor), ("transposed", tensor.T)):
            assert read[name].dtype == dtype and read[name].shape == expected.shape
            np.testing.assert_array_equal(read[name], expected)

    def test_values_that_are_not_finite_survive_bit_for_bit(self, tmp_path: Path) -> None:
        tensor = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 0.1])
        store.write(tmp_path / "file", {"t": tensor}, {"text": "é/ω", "list": [1, None, True]})
        read, facts = store.read(tmp_path / "file")
        assert read["t"].tobytes() == tensor.tobytes()
        assert facts == {"text": "é/ω", "list": [1, None, True]}

    def test_writing_again_replaces_the_file_and_leaves_no_other(self, tmp_path: Path) -> None:
        for value in (1.0, 2.0):
            store.write(tmp_path / "file.safetensors", {"t": np.full(9, value)}, {"value": value})
        tensors, facts = store.read(tmp_path / "file.safetensors")
        assert facts == {"value": 2.0} and (tensors["t"] == 2).all()
        assert os.listdir(tmp_path) == ["file.safetensors"]

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(
        self, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError("no space left on device")

        store.write(tmp_path / "file", {"t": X}, {"old": True})
        with monkeypatch.context() as patch:
            patch.setattr(os, step, full)
            with pytest.raises(OSError, match="no space left"):
                store.write(tmp_path / "file", {"t": Z}, {"old": False})
        assert store.read(tmp_path / "file")[1] == {"old": True}
        assert os.listdir(tmp_path) == ["file"]

    @pytest.mark.parametrize("kept", [0, 4, 8, 50, -1, -17])
    def test_a_truncated_file_is_refused(self, kept: int, tmp_path: Path) -> None:
        store.write(tmp_path / "whole", {"x": X, "z": Z}, {"format": 1})
        (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:kept])
        with pytest.raises(ValueError, match="cut is no readable file of isles"):
            store.read(tmp_path / "cut")

    @pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"isles": "[1]"}, {"isles": "null"}])
    def test_tensors_of_another_program_are_refused(self, metadata: Any, tmp_path: Path) -> None:
        save_file({"x": X}, tmp_path / "other", metadata=metadata)
        with pytest.raises(ValueError, match="other holds tensors, but not of isles"):
            store.read(tmp_path / "other")

    @pytest.mark.parametrize("content", [b"some text, and no tensors at all", b"{}", b"\x00" * 64])
    def test_what_holds_no_tensors_is_refused(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(ValueError, match="text is no readable file of isles"):
            store.read(tmp_path / "text")

    def test_facts_that_are_no_json_are_refused(self, tmp_path: Path) -> None:
        save_file({"x": X}, tmp_path / "odd", metadata={"isles": "{not json"})
        with pytest.raises(ValueError, match="odd is damaged"):
            store.read(tmp_path / "odd")

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="nowhere"):
            store.read(tmp_path / "nowhere")
