"""Reference networks as frozen `init`/`apply` pairs, fast when many particles run at once.

`apply(params, x)` is an ordinary function of one particle's parameters. Under `jax.vmap` over particles it
becomes one pass in which all of them stand side by side: rows of data are the last axis, so that the first
layer of all particles is a single matrix product and no array has to be transposed on the way. Weights are
stored (outputs, inputs), as in PyTorch, which is the layout this needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from isles import checks
from isles.layout import Params
from isles.models.stacking import Prepared, side_by_side

# each activation with its pull-back, written in its output so that its input need not be kept
ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]] = {
    "relu": (jax.nn.relu, lambda output, slope: jnp.where(output > 0, slope, 0)),
    "tanh": (jnp.tanh, lambda output, slope: slope * (1 - output * output)),
    "sigmoid": (jax.nn.sigmoid, lambda output, slope: slope * output * (1 - output)),
}


@dataclass(frozen=True)
class MLP:
    """A fully connected network: `hidden` layers with an activation, then a linear layer.

    Parameters are `{"w1": (hidden, inputs), "b1": (hidden,), "w2": ..., ...}`.

    >>> network = MLP(inputs=4, hidden=(16,), outputs=3)
    >>> params = network.init(jax.random.key(0))
    >>> network.apply(params, jnp.ones((5, 4))).shape
    (5, 3)
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str = "relu"

    def __post_init__(self) -> None:
        hidden = (self.hidden,) if isinstance(self.hidden, int) else tuple(self.hidden)
        object.__setattr__(self, "hidden", hidden)
        for name, width in [("inputs", self.inputs), ("outputs", self.outputs), *[("hidden", h) for h in hidden]]:
            checks.count(name, width)
        checks.choice("activation", self.activation, list(ACTIVATIONS))

    @property
    def layers(self) -> int:
        """Number of linear layers."""
        return len(self.hidden) + 1

    def shapes(self, dtype: Any = jnp.float32) -> dict[str, jax.ShapeDtypeStruct]:
        """The parameters' shapes: enough for a prior, as in `isles.Gaussian(like=network.shapes())`."""
        widths = (self.inputs, *self.hidden, self.outputs)
        shapes = {}
        for layer in range(1, self.layers + 1):
            shapes[f"w{layer}"] = jax.ShapeDtypeStruct((widths[layer], widths[layer - 1]), dtype)
            shapes[f"b{layer}"] = jax.ShapeDtypeStruct((widths[layer],), dtype)
        return shapes

    def init(self, key: Array) -> dict[str, Array]:
        """Random parameters for optimisers to start from: weights N(0, 2/inputs), biases 0."""
        return _init(key, self.shapes())

    def apply(self, params: Params, x: Array) -> Array:
        """Outputs (rows, outputs) for inputs (rows, ...), flattened."""
        x = _rows(x, self.inputs)
        return side_by_side(self)(params, x, x)

    __call__ = apply

    def plain(self, params: Params, x: Array) -> Array:
        """The same as ordinary operations: slower over many particles, and differentiable to any order."""
        activation, _ = ACTIVATIONS[self.activation]
        x = _rows(x, self.inputs)
        for layer in range(1, self.layers):
            x = activation(x @ params[f"w{layer}"].T + params[f"b{layer}"])
        return x @ params[f"w{self.layers}"].T + params[f"b{self.layers}"]

    def _forward(self, params: Params, x: Array) -> tuple[Array, tuple[Array, ...]]:
        activation, _ = ACTIVATIONS[self.activation]
        outputs: list[Array] = []
        value = x.T
        for layer in range(1, self.layers + 1):
            weights, biases = params[f"w{layer}"], params[f"b{layer}"]
            if layer == 1:  # the data are the same for all particles: one product
                value = (weights.reshape(-1, self.inputs) @ value).reshape(*biases.shape, -1)
            else:
                value = weights @ value
            value = value + biases[..., None]
            if layer < self.layers:
                value = activation(value)
                outputs.append(value)
        return value, tuple(outputs)

    def _backward(self, params: Params, x: Array, outputs: tuple[Array, ...], slope: Array) -> dict[str, Array]:
        _, pull_back = ACTIVATIONS[self.activation]
        slopes = {}
        for layer in range(self.layers, 0, -1):
            weights = params[f"w{layer}"]
            slopes[f"b{layer}"] = slope.sum(axis=-1)
            if layer == 1:
                slopes["w1"] = (slope.reshape(-1, len(x)) @ x).reshape(weights.shape)
            else:
                below = outputs[layer - 2]
                slopes[f"w{layer}"] = jnp.einsum("rom,rim->roi", slope, below)
                slope = pull_back(below, jnp.einsum("roi,rom->rim", weights, slope))
        return slopes


@dataclass(frozen=True)
class CNN:
    """One convolution with same padding, ReLU, max-pooling, and a linear layer.

    The defaults are a small network for MNIST: 4 channels of 3×3 kernels, 2×2 pooling, 7,890 parameters:
    `{"kernel": (channels, 3, 3, inputs), "bias": (channels,), "w": (outputs, features), "b": (outputs,)}`.
    Inputs are images (rows, height, width) or (rows, height, width, inputs).

    >>> network = CNN()
    >>> network.apply(network.init(jax.random.key(0)), jnp.ones((5, 28, 28))).shape
    (5, 10)
    """

    image: tuple[int, int, int] = (28, 28, 1)
    channels: int = 4
    outputs: int = 10
    kernel: int = 3
    pool: int = 2

    def __post_init__(self) -> None:
        image = (*self.image, 1) if len(self.image) == 2 else tuple(self.image)
        object.__setattr__(self, "image", image)
        for name in ["channels", "outputs", "kernel", "pool"]:
            checks.count(name, getattr(self, name))
        if len(image) != 3 or min(image[:2]) < self.pool or min(image) < 1:
            raise ValueError(
                f"image={self.image} must be (height, width, inputs), not smaller than pool={self.pool}"
            )
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel} must be odd, so that padding is the same on all sides")
        if self.pool > 11:
            raise ValueError(f"pool={self.pool} must be at most 11")

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width after pooling; rows and columns that do not fill a window are left out."""
        return self.image[0] // self.pool, self.image[1] // self.pool

    def shapes(self, dtype: Any = jnp.float32) -> dict[str, jax.ShapeDtypeStruct]:
        """The parameters' shapes: enough for a prior, as in `isles.Gaussian(like=network.shapes())`."""
        features = self.channels * math.prod(self.pooled)
        shapes: dict[str, tuple[int, ...]] = {
            "kernel": (self.channels, self.kernel, self.kernel, self.image[2]),
            "bias": (self.channels,),
            "w": (self.outputs, features),
            "b": (self.outputs,),
        }
        return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}

    def init(self, key: Array) -> dict[str, Array]:
        """Random parameters for optimisers to start from: weights N(0, 2/inputs), biases 0."""
        return _init(key, self.shapes())

    def apply(self, params: Params, x: Array | Prepared) -> Array:
        """Outputs (rows, outputs)."""
        if isinstance(x, Prepared):
            return side_by_side(self)(params, x.x, x.seen)
        x = self._images(x)
        return side_by_side(self)(params, x, self._padded(x))

    __call__ = apply

    def plain(self, params: Params, x: Array) -> Array:
        """The same by XLA's own operations: slower over many particles, and differentiable to any order."""
        x = self._images(x)
        dimensions = ("NHWC", "OHWI", "NHWC")
        value = jax.lax.conv_general_dilated(
            x.astype(params["kernel"].dtype), params["kernel"], (1, 1), "SAME", dimension_numbers=dimensions
        )
        window = (1, self.pool, self.pool, 1)
        value = jax.nn.relu(value + params["bias"])
        value = jax.lax.reduce_window(value, -jnp.inf, jax.lax.max, window, window, "VALID")
        features = jnp.moveaxis(value, 3, 1).reshape(len(x), -1)
        return features @ params["w"].T + params["b"]

    def prepare(self, x: Array) -> Prepared:
        """Images, and what all pooling windows see of them: (height, side · side · inputs, width · rows)."""
        x = self._images(x)
        images = self._padded(x.astype(jnp.result_type(x, jnp.float32)))
        return Prepared(x, jax.vmap(partial(self._windows, images))(jnp.arange(self.pooled[0])))

    @property
    def _side(self) -> int:
        """Of what a pooling window sees."""
        return self.kernel + self.pool - 1

    @property
    def _places(self) -> list[tuple[int, int]]:
        """In a pooling window."""
        return [(down, right) for down in range(self.pool) for right in range(self.pool)]

    @property
    def _pads_kernels(self) -> bool:
        """To the size of a window, so that nothing has to be copied, unless most of that would be zeros."""
        return self._side**2 <= 2 * self.kernel**2

    def _images(self, x: Array) -> Array:
        shape = (x.shape[0], *self.image)
        if math.prod(x.shape) != math.prod(shape):
            raise ValueError(f"x has shape {x.shape}; this network takes images of shape (rows, {self.image})")
        return x.reshape(shape)

    def _padded(self, x: Array) -> Array:
        """Images (height, width, inputs, rows) with the padding of the convolution."""
        margin = (self.kernel // 2,) * 2
        return jnp.pad(jnp.moveaxis(x, 0, -1), (margin, margin, (0, 0), (0, 0)))

    def _windows(self, seen: Array, row: Array) -> Array:
        """What the windows of one pooled row see: (side · side · inputs, width · rows), from images or as made."""
        if seen.ndim == 3:
            return _at(seen, row)
        strip = jax.lax.dynamic_slice_in_dim(seen, row * self.pool, self._side)
        span = self.pool * (self.pooled[1] - 1) + 1
        shifted = [strip[:, shift : shift + span : self.pool] for shift in range(self._side)]
        columns = jnp.moveaxis(jnp.stack(shifted, axis=1), 3, 2)  # (side, side, inputs, width, rows)
        return columns.reshape(self._side**2 * self.image[2], -1)

    def _patches(self, windows: Array) -> list[Array]:
        """What a kernel sees at each place of the windows: (taps, width · rows)."""
        windows = windows.reshape(self._side, self._side, self.image[2], -1)
        taps = self.kernel
        seen = [windows[down : down + taps, right : right + taps] for down, right in self._places]
        return [patch.reshape(taps * taps * self.image[2], -1) for patch in seen]

    def _forward(self, params: Params, seen: Array) -> tuple[Array, tuple[Array, Array]]:
        particles, (height, width) = len(params["bias"]), self.pooled
        lanes, places = particles * self.channels, len(self._places)
        kernel, bias = params["kernel"].reshape(lanes, -1), params["bias"].reshape(lanes, 1)
        if self._pads_kernels:
            kernel = self._in_windows(params["kernel"])

        # pooled rows one at a time, so that what a convolution leaves behind never leaves the cache
        def pooled_row(row: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            windows = self._windows(seen, row)
            values: Any = (
                (kernel @ windows).reshape(places, lanes, -1)
                if self._pads_kernels
                else [kernel @ patch for patch in self._patches(windows)]
            )
            top, winner = values[0], jnp.zeros(values[0].shape, jnp.int8)
            for number in range(1, places):
                winner = jnp.where(values[number] > top, jnp.int8(number), winner)
                top = jnp.maximum(top, values[number])
            top = top + bias  # pooling commutes with the bias and with ReLU: a quarter of the work
            winner = jnp.where(top > 0, winner, jnp.int8(-1))
            put = lambda whole, part: jax.lax.dynamic_update_index_in_dim(whole, part, row, 1)
            return put(carry[0], jax.nn.relu(top)), put(carry[1], winner)

        rows = seen.shape[-1] // (width if seen.ndim == 3 else 1)
        shape = (lanes, height, width * rows)
        start = (jnp.zeros(shape, kernel.dtype), jnp.zeros(shape, jnp.int8))
        features, winner = jax.lax.fori_loop(0, height, pooled_row, start)
        features = features.reshape(particles, -1, rows)
        value = params["w"] @ features + params["b"][..., None]
        return value, (features, winner.reshape(features.shape))

    def _backward(self, params: Params, seen: Array, kept: tuple[Array, Array], slope: Array) -> dict[str, Array]:
        features, winner = kept
        lanes, places = params["bias"].size, len(self._places)
        shape = (lanes, self.pooled[0], self.pooled[1] * features.shape[-1])
        below = jnp.einsum("roi,rom->rim", params["w"], slope).reshape(shape)
        winner = winner.reshape(shape)
        numbers = jnp.arange(places, dtype=jnp.int8)[:, None, None]

        def pooled_row(row: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
            windows, below_row, winner_row = self._windows(seen, row), _at(below, row, 1), _at(winner, row, 1)
            bias = total[1] + jnp.where(winner_row >= 0, below_row, 0).sum(axis=-1)
            if self._pads_kernels:
                won = jnp.where(winner_row == numbers, below_row, 0).reshape(places * lanes, -1)
                return total[0] + won @ windows.T, bias
            kernel = total[0]
            for number, patch in enumerate(self._patches(windows)):
                kernel += jnp.where(winner_row == number, below_row, 0) @ patch.T
            return kernel, bias

        inputs = self.image[2]
        slopes = (
            (places * lanes, self._side**2 * inputs) if self._pads_kernels else (lanes, self.kernel**2 * inputs)
        )
        start = jnp.zeros(slopes, below.dtype), jnp.zeros(lanes, below.dtype)
        kernel, bias = jax.lax.fori_loop(0, self.pooled[0], pooled_row, start)
        if self._pads_kernels:
            kernel = self._from_windows(kernel)
        return {
            "kernel": kernel.reshape(params["kernel"].shape),
            "bias": bias.reshape(params["bias"].shape),
            "w": jnp.einsum("rom,rim->roi", slope, features),
            "b": slope.sum(axis=-1),
        }

    def _in_windows(self, kernel: Array) -> Array:
        """Kernels at each place of a window: (places · lanes, side · side · inputs), zero around them."""
        kernel = kernel.reshape(-1, *kernel.shape[-3:])
        room = self.pool - 1
        around = lambda down, right: ((0, 0), (down, room - down), (right, room - right), (0, 0))
        placed = jnp.stack([jnp.pad(kernel, around(*place)) for place in self._places])
        return placed.reshape(-1, self._side**2 * self.image[2])

    def _from_windows(self, slopes: Array) -> Array:
        """The slopes of kernels (lanes, ...) from those of kernels in windows."""
        slopes = slopes.reshape(len(self._places), -1, self._side, self._side, self.image[2])
        taps, places = self.kernel, enumerate(self._places)
        at_places = [slopes[n, :, down : down + taps, right : right + taps] for n, (down, right) in places]
        return jnp.sum(jnp.stack(at_places), axis=0)


def _at(array: Array, index: Array, axis: int = 0) -> Array:
    return jax.lax.dynamic_index_in_dim(array, index, axis, keepdims=False)


def _init(key: Array, shapes: dict[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(one, leaf.shape, leaf.dtype) * math.sqrt(2 / math.prod(leaf.shape[1:]))
        if len(leaf.shape) > 1
        else jnp.zeros(leaf.shape, leaf.dtype)
        for one, (name, leaf) in zip(keys, shapes.items(), strict=True)
    }


def _rows(x: Array, inputs: int) -> Array:
    if math.prod(x.shape[1:]) != inputs:
        raise ValueError(f"x has shape {x.shape}; this network takes {inputs} inputs a row")
    return x.reshape(x.shape[0], inputs)
