"""`Problem`: a prior times a likelihood over data, evaluated in chunks of rows. Tempering lives in kernels.

Samplers see parameters as flat vectors; the user's functions see their own pytree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from isles import additivity, checks, preparing, row_sums
from isles.devices import DATA, PARTICLES
from isles.intermediates import intermediate_bytes
from isles.lanes import lay
from isles.layout import Layout, Params, StaticFunction
from isles.priors import Custom, Gaussian, PriorLike, flat_prior

CHUNK_BYTES = 1 << 24  # intermediates of one chunk and all particles: what a core can hope to keep in its caches
LIGHT_BYTES = 64  # of a row: where there is less, arrays are passed over, not multiplied, and half will do ...
LONG_BYTES = 1 << 13  # ... but of each particle there should be enough for loops to be long ...
MANY_BYTES = 1 << 27  # ... as long as all of them take no more than this
SUM_BYTES = 1 << 22  # a gradient of all particles that no longer stays in cache while chunks are added up ...
SUM_ROW_BYTES = 1 << 15  # ... so that a chunk should have a row for each so many bytes of it
SUM_ROWS = 1024  # enough rows, however long the gradient
SUM_SHARE = 4  # and its intermediates take no more than so many gradients, so that memory grows like particles
WHOLE = 64, 16, 8  # rows that fill vector registers: a chunk of at least two times so many is a multiple
JACOBIAN_BYTES = 1 << 13  # of one particle, that a chunk may always take
USUAL_PARTICLES = 32  # evaluated together, until `for_particles` says how many


class State(NamedTuple):
    """One particle: where it is, and what was found there. Untempered, so a new tempering costs nothing."""

    position: Array  # (d,)
    log_prior: Array  # ()
    log_likelihood: Array  # () −inf for zero likelihood and for a non-finite evaluation
    low_bits: Array  # () what rounding took from log_likelihood while summing chunks
    gradient: Array | None  # (d,) of the log likelihood; None for kernels that need no gradient
    nonfinite: Array  # () bool: the likelihood was NaN or +inf, or its gradient not finite
    fisher: Array | None = None  # (d, d) Fisher information of the likelihood, for kernels that need it


@jax.tree_util.register_pytree_node_class
class Problem:
    """What to sample from: posterior ∝ prior × likelihood.

    Args:
        prior: `isles.Gaussian`, or any object with `sample(key)` and `log_prob(params)`.
        log_likelihood: `log_likelihood(params, batch)`, the *sum* over the rows of `batch`; or, without
            `data`, `log_likelihood(params)`. It returns one scalar.
        data: a pytree of arrays with equal first axes (the rows), copied on entry.
        chunk_rows: rows evaluated at a time, so that memory does not grow with the data set. The default
            is a function of shapes alone: rows, parameters, and particles evaluated together. All rows, if
            your function must see them together.

    >>> prior = Gaussian(like=np.zeros(3))
    >>> data = (np.ones((100, 3)), np.zeros(100))
    >>> def log_likelihood(theta, batch):
    ...     x, y = batch
    ...     return -0.5 * jnp.sum((y - x @ theta) ** 2)
    >>> Problem(prior, log_likelihood, data)
    Problem(3 parameters, 100 rows in chunks of 100)
    """

    prior: Gaussian | Custom
    log_likelihood: Callable[..., Array]
    data: Any
    rows: int  # 0 without data
    chunk_rows: int
    chunk_chosen: bool  # by the user
    fixed_bytes: int  # of intermediates of one evaluation, however many rows
    row_bytes: int  # and for each row
    mesh: Mesh | None = None  # devices; then `data` are (rows in equal parts on its data axis, rows left over)
    ready: preparing.Ready | None = None  # inside a program: the data as `prepared` made them

    def __init__(
        self,
        prior: Gaussian | Custom | PriorLike,
        log_likelihood: Callable[..., Array],
        data: Any = None,
        *,
        chunk_rows: int | None = None,
    ) -> None:
        if not callable(log_likelihood):
            raise TypeError(f"log_likelihood={log_likelihood!r} must be a function of the parameters")
        self.prior = flat_prior(prior)
        self.log_likelihood = log_likelihood
        # a copy: JAX may share memory with the caller's array, whose later writes would show through
        self.data = None if data is None else jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), data)
        self.rows = 0 if data is None else _rows(self.data)
        _check_scalar(self._shape_of_value(), self.rows)
        if chunk_rows is not None and not self.rows:
            raise ValueError(f"chunk_rows={chunk_rows} needs data= to split; this problem has none")
        self.fixed_bytes, self.row_bytes = self._intermediate_bytes(split=chunk_rows is None)
        self.chunk_chosen = chunk_rows is not None
        if chunk_rows is None:
            chunk_rows = self._default_chunk(USUAL_PARTICLES)
        self.chunk_rows = min(checks.count("chunk_rows", chunk_rows), self.rows)
        self._check_chunks()
        if not self.chunk_chosen or self.chunk_rows < self.rows:
            additivity.check(self)

    def __repr__(self) -> str:
        rows = f", {self.rows} rows in chunks of {self.chunk_rows}" if self.rows else ""
        return f"Problem({self.dimension} parameters{rows})"

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
        """Prior and data are traced by jit, never baked into programs; the rest is part of the program."""
        return (self.prior, self.data), (
            StaticFunction(self.log_likelihood),
            self.rows,
            self.chunk_rows,
            self.chunk_chosen,
            self.fixed_bytes,
            self.row_bytes,
            self.mesh,
        )

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], traced: tuple[Any, Any]) -> Problem:
        """The inverse of `tree_flatten`, without the checks."""
        problem = object.__new__(cls)
        problem.prior, problem.data = traced
        program, problem.rows, problem.chunk_rows, problem.chunk_chosen, *rest = static
        problem.log_likelihood = program.function
        problem.fixed_bytes, problem.row_bytes, problem.mesh = rest
        return problem

    def with_chunk_rows(self, chunk_rows: int) -> Problem:
        """The same problem, evaluated in chunks of another size."""
        if not self.rows:
            raise ValueError(f"chunk_rows={chunk_rows} needs data= to split; this problem has none")
        problem = copy.copy(self)  # the data are shared
        problem.ready = None
        problem.chunk_rows, problem.chunk_chosen = min(checks.count("chunk_rows", chunk_rows), self.rows), True
        return problem

    def of_rows(self, rows: Array) -> Problem:
        """The same problem with the data of these rows alone, as often as they are named."""
        if self.mesh is not None and self.mesh.shape[DATA] > 1:
            raise ValueError(
                f"rows of data lie on {self.mesh.shape[DATA]} devices, and minibatches need them on each; take "
                f"batch_rows=None, or a mesh with data=1"
            )
        problem = copy.copy(self)
        problem.data = jax.tree.map(lambda leaf: leaf[rows], self.data if self.mesh is None else self.data[0])
        problem.mesh = problem.ready = None
        problem.rows, problem.chunk_rows = len(rows), min(self.chunk_rows, len(rows))
        return problem

    def for_particles(self, particles: int) -> Problem:
        """The same problem, in chunks that suit so many particles at once, unless the user chose them."""
        if self.chunk_chosen or not self.rows:
            return self
        problem = copy.copy(self)
        problem.ready = None
        problem.chunk_rows = min(self._default_chunk(particles), self.rows)
        try:
            problem._check_chunks()
        except Exception:  # a likelihood that knows one size only keeps the one it was seen to work with
            return self
        return problem

    def prepared(self) -> Problem:
        """The same problem for many evaluations inside one program.

        What the likelihood can make of its data before it looks at parameters is made here, once, unless it takes
        much memory.
        """
        if not self.rows or self.mesh is not None:
            return self
        problem = copy.copy(self)
        problem.ready = preparing.ready(self.log_likelihood, self.data, self.chunk_rows)
        return problem

    def _shape_of_value(self) -> Any:
        try:
            return jax.eval_shape(self.log_likelihood, *self.arguments(self.rows))
        except TypeError as error:
            if self.rows or "positional argument" not in str(error):
                raise
            raise TypeError(
                f"log_likelihood takes more than the parameters ({error}); without data= it is called as "
                f"log_likelihood(params): give data=, or a function of the parameters alone"
            ) from error

    def _check_chunks(self) -> None:
        """The shapes that sampling will use: whole chunks, and the remainder."""
        for rows in {self.chunk_rows, self.rows % max(self.chunk_rows, 1)} - {0}:
            _check_scalar(jax.eval_shape(self.log_likelihood, *self.arguments(rows)), rows)

    def _default_chunk(self, particles: int) -> int:
        """As many rows as fit the caches, and enough that adding up gradients is not what takes the time."""
        row = max(self.row_bytes, 1)
        fits = (CHUNK_BYTES // 2 if row < LIGHT_BYTES else CHUNK_BYTES) // (particles * row)
        fits = max(fits, min(LONG_BYTES, MANY_BYTES // particles) // row)
        gradient = particles * self.dimension * self.dtype.itemsize
        affordable = SUM_SHARE * gradient // (particles * row)
        pays = min(gradient // SUM_ROW_BYTES, SUM_ROWS, affordable) if gradient > SUM_BYTES else 8
        rows = int(np.clip(fits, pays, max(self.rows, SUM_ROWS)))
        steps = WHOLE if rows < self.rows else ()
        return next((rows - rows % step for step in steps if rows >= 2 * step), rows)

    def on(self, mesh: Mesh) -> Problem:
        """The same problem on several devices: particles on the axis "particles", rows of data on "data".

        A user's sum cannot be padded, so the rows left over by equal parts go to every device.
        """
        parts = mesh.shape[DATA]
        if parts > max(self.rows, 1):
            raise ValueError(
                f"data={parts} devices cannot share {self.rows} rows of data; take fewer, or more for particles"
            )
        problem = copy.copy(self)
        problem.mesh, problem.ready = mesh, None
        if self.rows:
            split = self.rows - self.rows % parts
            put = lambda tree, spec: jax.device_put(tree, NamedSharding(mesh, spec))
            head = put(jax.tree.map(lambda leaf: leaf[:split], self.data), PartitionSpec(DATA))
            tail = put(jax.tree.map(lambda leaf: leaf[split:], self.data), PartitionSpec())
            problem.data = head, tail
        return problem

    def over_particles(self, function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """`jax.vmap` of a function of one particle, told of the devices that particles live on."""
        return jax.vmap(function, in_axes, spmd_axis_name=PARTICLES if self.mesh is not None else None)

    def place(self, tree: Any) -> Any:
        """Arrays with a leading axis of particles, on the devices they belong to."""
        if self.mesh is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, NamedSharding(self.mesh, PartitionSpec(PARTICLES)))

    @property
    def layout(self) -> Layout:
        """Structure of the parameters."""
        return self.prior.layout

    @property
    def dimension(self) -> int:
        """Number of coordinates, d."""
        return self.layout.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Working dtype."""
        return self.layout.dtype

    def evaluate(self, position: Array, *, gradient: bool) -> State:
        """One epoch: the likelihood over all rows, and its gradient if asked for.

        NaN, +inf and a non-finite gradient become a likelihood of zero with `nonfinite` set, so that a bad
        number can never win a weight or an acceptance; so do NaN and +inf of the prior's density. −inf is a
        legitimate zero.
        """
        params = self.layout.unravel(position)
        if gradient:
            value, low, slope = self._sum_over_rows(jax.value_and_grad(self._log_likelihood), params)
            slope = self.layout.ravel(slope)
            finite = jnp.sum(lay(~jnp.isfinite(slope)), dtype=jnp.int32) == 0  # `all` is slower where d is small
            unusable = (value > -jnp.inf) & ~finite
            slope = jnp.where(finite, slope, 0.0)
        else:
            function = lambda params, *batch: (self._log_likelihood(params, *batch), ())
            value, low, _ = self._sum_over_rows(function, params)
            slope, unusable = None, jnp.bool_(False)
        nonfinite = jnp.isnan(value) | (value == jnp.inf) | unusable
        log_prior = self.prior.log_density(position)
        if isinstance(self.prior, Custom):  # what has no density a priori must not win by its likelihood
            nonfinite |= self.prior.is_broken(position)
            value = jnp.where(log_prior > -jnp.inf, value, -jnp.inf)
        value = jnp.where(nonfinite, -jnp.inf, value)
        low = jnp.where(jnp.isfinite(low) & jnp.isfinite(value), low, 0.0)
        return State(position, log_prior, value, low, slope, nonfinite)

    def sum_matrix(self, function: Callable[..., Array], position: Array, row_bytes: int = 0) -> Array:
        """Σ over rows of function(params, batch) -> (d, d), such as a Fisher information; zeros if not finite.

        Rows that need `row_bytes` each are taken in smaller chunks, so that memory stays that of an evaluation.
        """
        problem = copy.copy(self)
        problem.ready = None
        if row_bytes and self.rows:
            fits = max(self.chunk_rows * self.row_bytes, JACOBIAN_BYTES) // row_bytes
            problem.chunk_rows = int(np.clip(fits, 1, self.chunk_rows))
        added = lambda params, *batch: (jnp.zeros((), self.dtype), function(params, *batch).astype(self.dtype))
        matrix = problem._sum_over_rows(added, self.layout.unravel(position))[2]
        return jnp.where(jnp.isfinite(matrix).all(), matrix, 0.0)

    def log_likelihood_ratio(self, new: State, old: State, tempering: Array) -> Array:
        """λ (ℓ(new) − ℓ(old)); −inf, never NaN, where `new` may not be accepted."""
        difference = (new.log_likelihood - old.log_likelihood) + (new.low_bits - old.low_bits)
        ratio = jnp.where(tempering == 0, 0.0, tempering * difference)
        return jnp.where(jnp.isnan(ratio) | new.nonfinite, -jnp.inf, ratio)

    def log_ratio(self, new: State, old: State, tempering: Array) -> Array:
        """log π_λ(new) − log π_λ(old) for the π_λ of method.md (1), from differences; never NaN."""
        prior = self.prior.log_ratio(new.position, old.position)
        ratio = prior + self.log_likelihood_ratio(new, old, tempering)
        return jnp.where(jnp.isnan(ratio), -jnp.inf, ratio)

    def _log_likelihood(self, params: Params, *batch: Any) -> Array:
        return jnp.asarray(self.log_likelihood(params, *batch), self.dtype)

    def _sum_over_rows(self, function: Callable[..., Any], params: Params) -> tuple[Array, Array, Any]:
        """Σ over rows of function(params, batch) -> (value, tree); the value as a (high, low) pair."""
        if not self.rows:
            value, tree = function(params)
            return value, jnp.zeros((), self.dtype), tree
        if self.mesh is None:
            return row_sums.over_chunks(function, params, self.data, self.chunk_rows, self.ready)
        everywhere, parts = PartitionSpec(), PartitionSpec(DATA)

        def part(params: Params, data: Any) -> tuple[Array, Array, Any]:
            high, low, tree = row_sums.over_chunks(function, params, data, self.chunk_rows)
            highs = jax.lax.all_gather(high, DATA)
            total, low = highs[0], jax.lax.psum(low, DATA)
            for one in highs[1:]:  # in order, with what rounding takes
                total, error = row_sums.two_sum(total, one)
                low = low + error
            return total, low, jax.lax.psum(tree, DATA)

        whole = jax.shard_map(
            part, mesh=self.mesh, in_specs=(everywhere, parts), out_specs=everywhere, check_vma=False
        )
        head, tail = self.data
        total = whole(params, head)
        if self.rows % self.mesh.shape[DATA]:
            total = row_sums.add(total, *function(params, tail))
        return total

    def arguments(self, rows: int) -> tuple[Any, ...]:
        """Shapes of the likelihood's arguments for a batch of `rows`."""
        if not rows:
            return (self.layout.struct(),)
        data = self.data if self.mesh is None else self.data[0]
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), data)
        return self.layout.struct(), batch

    @property
    def evaluation_bytes(self) -> int:
        """Intermediates of evaluating one chunk for one particle."""
        return self.fixed_bytes + self.chunk_rows * self.row_bytes

    def _intermediate_bytes(self, split: bool) -> tuple[int, int]:
        """Bytes of the likelihood's intermediates that do not grow with rows, and that grow with each.

        Told apart by a look at half the rows, unless the user chose a chunk: the function may know that size only.
        """
        whole = intermediate_bytes(self.log_likelihood, self.arguments(self.rows))
        if self.rows < 2:
            return whole, 0
        if not split:
            return 0, -(-whole // self.rows)
        half = self.rows // 2
        row = (whole - intermediate_bytes(self.log_likelihood, self.arguments(half))) // (self.rows - half)
        return max(whole - row * self.rows, 0), max(row, 0)


def _rows(data: Any) -> int:
    leaves = jax.tree_util.tree_flatten_with_path(data)[0]
    if not leaves:
        raise ValueError("data holds no array; leave it out, or give arrays with equal first axes")
    lengths = {jax.tree_util.keystr(path): np.shape(leaf)[:1] for path, leaf in leaves}
    if () in lengths.values() or len(set(lengths.values())) > 1:
        shown = ", ".join(f"data{name}: {length[0] if length else 'a scalar'}" for name, length in lengths.items())
        raise ValueError(f"the arrays in data must have equal first axes, one row a datum; got {shown}")
    rows = next(iter(lengths.values()))[0]
    if rows == 0:
        raise ValueError("data has no rows; leave data out to sample a likelihood without data")
    return rows


def _check_scalar(result: Any, rows: int) -> None:
    shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", np.dtype(object))
    if shape != ():
        hint = "sum over the batch's rows, as in jnp.sum(...)" if rows else "return one scalar"
        raise ValueError(f"log_likelihood returns shape {shape}, it must return shape (): {hint}")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"log_likelihood returns dtype {dtype}, it must be floating point")
