"""Predictive distributions of weighted draws: class probabilities with their entropies, or Gaussian mixtures.

Networks are evaluated for some draws and some rows at a time, and summed up on the host in float64, so that memory
does not grow with their product. Scores of predictions live in `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr, ndtri

from isles import cache, checks, weights
from isles.data_checks import check_inputs, check_labels, check_targets
from isles.intermediates import intermediate_bytes
from isles.layout import Layout, StaticFunction
from isles.likelihoods import GaussianNoise, Likelihood

Floats = np.ndarray[Any, np.dtype[np.float64]]

CHUNK_BYTES = 1 << 26  # of intermediates on the device, and about as much on the host
CHUNK_DRAWS = 64  # evaluated together
BISECTIONS = 60  # halvings of a bracket, enough for every bit of a float64


@dataclass(frozen=True)
class Classes:
    """A predictive distribution over K classes for each of n rows; entropies are in nats."""

    log_probabilities: Floats  # (n, K)
    epistemic: Floats  # (n,) mutual information of label and parameters: what more data could remove
    aleatoric: Floats  # (n,) expected entropy of a draw's own prediction

    def __repr__(self) -> str:
        rows, classes = self.log_probabilities.shape
        return f"Classes({rows} rows, {classes} classes)"

    @property
    def probabilities(self) -> Floats:
        """(n, K), rows sum to 1."""
        return np.exp(self.log_probabilities)

    @property
    def entropy(self) -> Floats:
        """(n,) total: that of `probabilities`, epistemic + aleatoric."""
        return self.epistemic + self.aleatoric

    @property
    def labels(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(n,) the most probable class."""
        return np.argmax(self.log_probabilities, axis=1)

    def log_density(self, y: Any) -> Floats:
        """(n,) log probability of labels y."""
        rows, classes = self.log_probabilities.shape
        return self.log_probabilities[np.arange(rows), check_labels(y, rows, classes)]


@dataclass(frozen=True)
class Values:
    """A predictive distribution of real values: for each row and output a mixture of Gaussians, one a draw.

    `quantile`, `interval` and `log_density` evaluate the network once more, since keeping every draw's mean for
    every row could fill the memory.
    """

    mean: Floats  # (n, ...) as y
    epistemic: Floats  # (n, ...) variance of the draws' means
    aleatoric: Floats  # (n, ...) mean of the draws' noise variances
    mixture: Mixture

    def __repr__(self) -> str:
        return f"Values(mean of shape {self.mean.shape})"

    @property
    def variance(self) -> Floats:
        """epistemic + aleatoric."""
        return self.epistemic + self.aleatoric

    @property
    def std(self) -> Floats:
        """√variance."""
        return np.sqrt(self.variance)

    def quantile(self, q: Any) -> Floats:
        """Quantiles of the mixtures, exact to rounding; an array of levels gives a leading axis."""
        levels = np.asarray(q, np.float64)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q={q} must lie strictly between 0 and 1")
        result = np.empty((levels.size, *self.mean.shape))
        for rows, (means, stds), w in self.mixture.by_rows():
            for number, level in enumerate(levels.ravel()):
                result[number, rows] = _mixture_quantile(means, stds, w, level)
        return result.reshape(*levels.shape, *self.mean.shape)

    def interval(self, level: float = 0.9) -> tuple[Floats, Floats]:
        """Lower and upper ends that leave (1 − level)/2 of the probability on either side."""
        tail = 0.5 * (1 - checks.fraction("level", level))
        low, high = self.quantile([tail, 1 - tail])
        return low, high

    def log_density(self, y: Any) -> Floats:
        """(n,) log density of y; where a row has several outputs, of all of them together."""
        rows, *row = self.mean.shape
        return self.mixture.log_density(check_targets(y, rows, tuple(row)))


@dataclass(frozen=True)
class DrawClasses:
    """Every draw's own class probabilities, with the draws' weights."""

    probabilities: Floats  # (P, N, n, K)
    weights: Floats  # (P, N), sums to 1


@dataclass(frozen=True)
class DrawValues:
    """Every draw's own means and noise standard deviations, with the draws' weights."""

    means: Floats  # (P, N, n, ...)
    stds: Floats  # (P, N, n, ...)
    weights: Floats  # (P, N), sums to 1


@dataclass(frozen=True, repr=False)
class Mixture:
    """Weighted draws of a network and rows of inputs: what predictions are computed from, piece by piece."""

    layout: Layout
    likelihood: Likelihood
    positions: np.ndarray[Any, Any]  # (draws, d)
    weights: Floats  # (draws,), sums to 1
    x: np.ndarray[Any, Any]  # (n, ...)
    chunk_rows: int | None = None

    def predict(self) -> Classes | Values:
        """The predictive distribution."""
        return self._values() if isinstance(self.likelihood, GaussianNoise) else self._classes()

    def log_density(self, y: Any) -> Floats:
        """(n,) log of the predictive density or probability of y."""
        if not isinstance(self.likelihood, GaussianNoise):
            return self._classes().log_density(y)
        y = check_targets(y, len(self.x), self.likelihood.targets)
        total = np.full(len(y), -np.inf)
        for rows, draws, (means, stds) in self.pieces():
            scores = _gaussian_scores(y[rows], means, stds)
            piece = weights.log_sum_exp(_column(np.log(self.weights[draws]), scores) + scores, axis=0)
            total[rows] = np.logaddexp(total[rows], piece)
        return total

    def log_densities(self, y: Any) -> Floats:
        """(draws, n) log of every draw's own density or probability of y."""
        whole = np.empty((len(self.positions), len(self.x)))
        if isinstance(self.likelihood, GaussianNoise):
            y = check_targets(y, len(self.x), self.likelihood.targets)
        else:
            y = check_labels(y, len(self.x), self.likelihood.classes)
        for rows, draws, output in self.pieces(every=True):
            if isinstance(self.likelihood, GaussianNoise):
                whole[draws, rows] = _gaussian_scores(y[rows], *output)
            else:
                whole[draws, rows] = np.take_along_axis(output, y[None, rows, None], axis=2)[..., 0]
        return whole

    def per_draw(self, shape: tuple[int, int]) -> DrawClasses | DrawValues:
        """What each draw predicts, with leading axes `shape`; draws of weight zero too."""
        by_island = lambda array: array.reshape(*shape, *array.shape[1:])
        wholes = [np.empty((len(self.positions), *self.shape)) for _ in range(self._arrays)]
        for rows, draws, output in self.pieces(every=True):
            for whole, piece in zip(wholes, jax.tree.leaves(output), strict=True):
                whole[draws, rows] = piece
        if isinstance(self.likelihood, GaussianNoise):
            means, stds = wholes
            return DrawValues(by_island(means), by_island(stds), by_island(self.weights))
        return DrawClasses(np.exp(by_island(wholes[0])), by_island(self.weights))

    def by_rows(self) -> Iterator[tuple[slice, Any, Floats]]:
        """Some rows at a time, with the outputs of all their draws (draws, rows, ...) and the weights."""
        chosen = np.flatnonzero(self.weights)
        most = min(max(CHUNK_BYTES // (3 * len(chosen) * self._row_bytes), 1), self._rows_at_once())
        for rows in _slices(len(self.x), most):
            parts = [output for _, _, output in self.pieces(rows, size=most)]
            yield rows, jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts), self.weights[chosen]

    def pieces(
        self, within: slice | None = None, *, size: int | None = None, every: bool = False
    ) -> Iterator[tuple[slice, Any, Any]]:
        """(rows, draws, outputs) in float64, for all draws with weight, or for `every` draw.

        Outputs are log probabilities (draws, rows, K), or a pair of means and stds.
        """
        cache.keep_compiled()
        chosen = np.arange(len(self.weights)) if every else np.flatnonzero(self.weights)
        draws_at_once = min(self._draws_at_once, len(chosen))
        rows_at_once = size or self._rows_at_once()
        evaluate = _compiled(self.layout, StaticFunction(self.likelihood))
        first, last, _ = (within or slice(None)).indices(len(self.x))
        for rows in _slices(last - first, rows_at_once):
            rows = slice(first + rows.start, first + rows.stop)
            x = jnp.asarray(_padded(self.x[rows], rows_at_once))
            for part in _slices(len(chosen), draws_at_once):
                draws = chosen[part]
                positions = jnp.asarray(_padded(self.positions[draws], draws_at_once))
                output = jax.tree.map(
                    lambda leaf, draws=draws, rows=rows: np.asarray(
                        leaf[: len(draws), : rows.stop - rows.start], np.float64
                    ),
                    jax.device_get(evaluate(positions, x)),
                )
                yield rows, draws, self._checked(output, draws, rows)

    def _classes(self) -> Classes:
        log_total, aleatoric = np.full(self.shape, -np.inf), np.zeros(len(self.x))
        for rows, draws, log_probabilities in self.pieces():
            w = self.weights[draws]
            mixed = _column(np.log(w), log_probabilities) + log_probabilities
            log_total[rows] = np.logaddexp(log_total[rows], weights.log_sum_exp(mixed, axis=0))
            aleatoric[rows] += w @ entropy(log_probabilities)
        total = entropy(log_total)
        epistemic = np.maximum(total - aleatoric, 0.0)  # rounding may take it below
        return Classes(log_total, epistemic, total - epistemic)

    def _values(self) -> Values:
        mean, squares, noise = np.zeros(self.shape), np.zeros(self.shape), np.zeros(self.shape)
        seen = np.zeros(len(self.x))
        for rows, draws, (means, stds) in self.pieces():
            w = self.weights[draws]
            added, before = w.sum(), seen[rows.start]
            centre = np.tensordot(w, means, 1) / added
            gap = centre - mean[rows]
            # sums of squares about their own means, joined: nothing cancels where means are large
            squares[rows] += np.tensordot(w, (means - centre) ** 2, 1) + gap**2 * (
                before * added / (before + added)
            )
            mean[rows] += gap * (added / (before + added))
            noise[rows] += np.tensordot(w, stds**2, 1)
            seen[rows] += added
        return Values(mean, squares, noise, self)

    @property
    def _draws_at_once(self) -> int:
        most = min(len(self.positions), CHUNK_DRAWS)
        return int(np.clip(CHUNK_BYTES // self.positions[:1].nbytes, 1, most))

    def _rows_at_once(self) -> int:
        """The user's choice, or a function of shapes alone."""
        if self.chunk_rows is not None:
            return min(self.chunk_rows, len(self.x))
        network_bytes = lambda rows: intermediate_bytes(self.likelihood.output, self._arguments(rows))
        row_bytes = max(network_bytes(2) - network_bytes(1), 0) + 16 * self._row_bytes
        return int(np.clip(CHUNK_BYTES // (self._draws_at_once * row_bytes), 1, len(self.x)))

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, K), or that of the targets."""
        if isinstance(self.likelihood, GaussianNoise):
            return (len(self.x), *self.likelihood.targets)
        return (len(self.x), self.likelihood.classes)

    @property
    def _arrays(self) -> int:
        return 2 if isinstance(self.likelihood, GaussianNoise) else 1

    @property
    def _row_bytes(self) -> int:
        """Of one draw's output for one row."""
        return 8 * self._arrays * math.prod(self.shape[1:])

    def _arguments(self, rows: int) -> tuple[Any, Any]:
        dtype = jax.dtypes.canonicalize_dtype(self.x.dtype)
        return self.layout.struct(), jax.ShapeDtypeStruct((rows, *self.x.shape[1:]), dtype)

    def _checked(self, output: Any, draws: np.ndarray[Any, Any], rows: slice) -> Any:
        """Logits become log probabilities; NaN from a draw that has weight is an error."""
        if isinstance(self.likelihood, GaussianNoise):
            means, stds = output
            bad = ~(np.isfinite(means) & np.isfinite(stds) & (stds > 0))
        else:
            output = log_softmax(output)
            bad = np.isnan(output)
        bad = bad.reshape(*bad.shape[:2], -1).any(axis=2) & (self.weights[draws] > 0)[:, None]
        if bad.any():
            draw, row = np.argwhere(bad)[0]
            raise ValueError(
                f"the network's output for row {rows.start + row} of x is not finite for draw {draws[draw]} "
                f"(and {bad.sum() - 1} more); scale x as the training data were, or run in float64"
            )
        return output


def prepare(
    layout: Layout, likelihood: Likelihood, positions: Any, draw_weights: Any, x: Any, chunk_rows: int | None
) -> Mixture:
    """A mixture of checked inputs; positions (P, N, d) and weights (P, N)."""
    if chunk_rows is not None:
        checks.count("chunk_rows", chunk_rows)
    x = check_inputs(x, likelihood.inputs)
    return Mixture(layout, likelihood, positions.reshape(-1, layout.size), draw_weights.ravel(), x, chunk_rows)


def log_softmax(logits: Floats) -> Floats:
    """Log probabilities over the last axis; NaN where logits are NaN or +inf."""
    with np.errstate(invalid="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
        return shifted - np.log(np.einsum("...k->...", np.exp(shifted)))[..., None]  # faster than sum over few


def entropy(log_probabilities: Floats) -> Floats:
    """−Σ p log p over the last axis, in nats, with 0 log 0 = 0."""
    finite = np.maximum(log_probabilities, -1e4)  # e^−10000 is zero
    return -np.einsum("...k,...k->...", np.exp(finite), finite)


def _gaussian_scores(y: Floats, means: Floats, stds: Floats) -> Floats:
    """Log densities (draws, rows); outputs are independent given a draw."""
    z = (y - means) / stds
    scores = -0.5 * z * z - np.log(stds) - 0.5 * np.log(2 * np.pi)
    return np.asarray(scores.reshape(*scores.shape[:2], -1).sum(axis=2))


def _mixture_quantile(means: Floats, stds: Floats, draw_weights: Floats, level: float) -> Floats:
    """Quantiles over the first axis; the upper half by symmetry, where small tails keep their digits."""
    sign = 1.0 if level <= 0.5 else -1.0
    with jax.enable_x64(True):
        solved = _bisect(sign * means, stds, draw_weights, min(level, 1 - level))
        return sign * np.asarray(solved)


@jax.jit
def _bisect(means: Array, stds: Array, draw_weights: Array, level: Array) -> Array:
    components = means + stds * ndtri(level)  # the mixture's quantile lies between those of its parts

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        below = jnp.tensordot(draw_weights, ndtr((middle - means) / stds), 1) < level
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (components.min(axis=0), components.max(axis=0)))
    return 0.5 * (low + high)


@lru_cache(maxsize=64)  # bounded: users give new lambdas in loops
def _compiled(layout: Layout, likelihood: StaticFunction) -> Callable[[Any, Any], Any]:
    output = likelihood.function.output  # type: ignore[attr-defined]
    return jax.jit(jax.vmap(lambda vector, x: output(layout.unravel(vector), x), (0, None)))


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _padded(array: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """One shape, one program: the first entry repeated to the end."""
    return np.concatenate([array, np.repeat(array[:1], length - len(array), axis=0)])


def _column(values: Any, like: Any) -> Any:
    """A vector over draws, shaped to broadcast along the first axis of `like`."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
