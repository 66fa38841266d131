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
from functools import lru_cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from isles import checks
from isles.layout import Params

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
        return side_by_side(self)(params, _rows(x, self.inputs))

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

    def apply(self, params: Params, x: Array) -> Array:
        """Outputs (rows, outputs)."""
        return side_by_side(self)(params, self._images(x))

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

    def _images(self, x: Array) -> Array:
        shape = (x.shape[0], *self.image)
        if math.prod(x.shape) != math.prod(shape):
            raise ValueError(f"x has shape {x.shape}; this network takes images of shape (rows, {self.image})")
        return x.reshape(shape)

    def _forward(self, params: Params, x: Array) -> tuple[Array, tuple[Array, Array]]:
        particles, rows = len(params["bias"]), len(x)
        height, width = self.pooled
        lanes = particles * self.channels
        kernel, bias = params["kernel"].reshape(lanes, -1), params["bias"].reshape(lanes, 1)
        images = self._padded(x)

        # pooled rows one at a time, so that what a convolution leaves behind never leaves the cache
        def pooled_row(row: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            first, *others = [kernel @ patches for patches in self._patches(images, row)]
            top, winner = first, jnp.zeros(first.shape, jnp.int8)
            for number, value in enumerate(others, 1):
                winner = jnp.where(value > top, jnp.int8(number), winner)
                top = jnp.maximum(top, value)
            top = top + bias  # pooling commutes with the bias and with ReLU: a quarter of the work
            winner = jnp.where(top > 0, winner, jnp.int8(-1))
            put = lambda whole, part: jax.lax.dynamic_update_index_in_dim(whole, part, row, 1)
            return put(carry[0], jax.nn.relu(top)), put(carry[1], winner)

        shape = (lanes, height, width * rows)
        start = (jnp.zeros(shape, kernel.dtype), jnp.zeros(shape, jnp.int8))
        features, winner = jax.lax.fori_loop(0, height, pooled_row, start)
        features = features.reshape(particles, -1, rows)
        value = params["w"] @ features + params["b"][..., None]
        return value, (features, winner.reshape(features.shape))

    def _backward(self, params: Params, x: Array, kept: tuple[Array, Array], slope: Array) -> dict[str, Array]:
        features, winner = kept
        particles, rows = len(params["bias"]), len(x)
        lanes, images = particles * self.channels, self._padded(x)
        shape = (lanes, self.pooled[0], self.pooled[1] * rows)
        below = jnp.einsum("roi,rom->rim", params["w"], slope).reshape(shape)
        winner = winner.reshape(shape)

        def pooled_row(row: Array, total: Array) -> Array:
            below_row = jax.lax.dynamic_index_in_dim(below, row, 1, keepdims=False)
            winner_row = jax.lax.dynamic_index_in_dim(winner, row, 1, keepdims=False)
            for number, patches in enumerate(self._patches(images, row)):
                with_bias = jnp.concatenate([patches, jnp.ones_like(patches[:1])])
                total += jnp.where(winner_row == number, below_row, 0) @ with_bias.T
            return total

        taps = self.kernel**2 * self.image[2]
        total = jax.lax.fori_loop(0, self.pooled[0], pooled_row, jnp.zeros((lanes, taps + 1), below.dtype))
        return {
            "kernel": total[:, :taps].reshape(params["kernel"].shape),
            "bias": total[:, taps].reshape(params["bias"].shape),
            "w": jnp.einsum("rom,rim->roi", slope, features),
            "b": slope.sum(axis=-1),
        }

    def _padded(self, x: Array) -> Array:
        """Images (height, width, inputs, rows) with the padding of the convolution."""
        margin = (self.kernel // 2,) * 2
        return jnp.pad(jnp.moveaxis(x, 0, -1), (margin, margin, (0, 0), (0, 0)))

    def _patches(self, images: Array, row: Array) -> list[Array]:
        """For each place in a pooling window of one pooled row, the patches under it: (taps, width · rows)."""
        size, rows = self.kernel + self.pool - 1, images.shape[-1]
        strip = jax.lax.dynamic_slice_in_dim(images, row * self.pool, size)
        span = self.pool * (self.pooled[1] - 1) + 1
        columns = jnp.stack([strip[:, shift : shift + span : self.pool] for shift in range(size)], axis=1)
        columns = jnp.moveaxis(columns, 3, 2).reshape(size, size, self.image[2], -1)
        taps = self.kernel
        places = [(down, right) for down in range(self.pool) for right in range(self.pool)]
        return [
            columns[down : down + taps, right : right + taps].reshape(-1, self.pooled[1] * rows)
            for down, right in places
        ]


class Network(Protocol):
    """What `side_by_side` needs; hashable."""

    def plain(self, params: Params, x: Array) -> Array:
        """Outputs (rows, outputs) of one particle."""
        ...

    def _forward(self, params: Params, x: Array) -> tuple[Array, Any]:
        """Stacked params (particles, ...) and x (rows, ...) to outputs (particles, outputs, rows), and what the
        backward pass needs, particles first.
        """
        ...

    def _backward(self, params: Params, x: Array, kept: Any, slope: Array) -> Params:
        """The slopes of the stacked params from those of the outputs."""
        ...


@lru_cache
def side_by_side(network: Network) -> Callable[[Params, Array], Array]:
    """`apply(params, x)` of one particle, whose vmap over particles is one pass over all of them."""
    run_forward, run_backward = _over_particles(network._forward), _over_particles(network._backward)

    @jax.custom_vjp
    def apply(params: Params, x: Array) -> Array:
        return run_forward(params, x)[0].T

    def keep(params: Params, x: Array) -> tuple[Array, Any]:
        value, kept = run_forward(params, x)
        return value.T, (params, x, kept)

    def pull_back(saved: Any, slope: Array) -> tuple[Params, Array]:
        params, x, kept = saved
        (slope_x,) = jax.vjp(lambda x: network.plain(params, x), x)[1](slope)  # costs nothing unless it is used
        return run_backward(params, x, kept, slope.T), slope_x

    apply.defvjp(keep, pull_back)

    def checked(params: Params, x: Array) -> Array:
        return apply(params, x.astype(jax.tree.leaves(params)[0].dtype))

    return checked


def _over_particles(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of stacked particles, second argument shared, as one of a single particle with its own vmap."""

    def single(params: Params, x: Array, *rest: Any) -> Any:
        one = lambda tree: jax.tree.map(lambda leaf: leaf[None], tree)
        return jax.tree.map(lambda leaf: leaf[0], function(one(params), x, *one(rest)))

    call = custom_vmap(single)

    @call.def_vmap
    def rule(size: int, batched: Any, params: Params, x: Array, *rest: Any) -> Any:
        if batched[1]:  # every particle has its own inputs
            axes = jax.tree.map(lambda flag: 0 if flag else None, tuple(batched))
            value = jax.vmap(single, axes)(params, x, *rest)
        else:
            whole = lambda leaf, flag: leaf if flag else jnp.broadcast_to(leaf, (size, *leaf.shape))
            params, rest = jax.tree.map(whole, (params, rest), (batched[0], tuple(batched[2:])))
            value = function(params, x, *rest)
        return value, jax.tree.map(lambda _: True, value)

    return call


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
