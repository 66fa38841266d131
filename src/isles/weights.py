"""Everything with weights: ESS, the tempering solve, resampling, evidence. NumPy float64 on the host.

Arrays are (I, N), islands by particles; log-likelihoods may be −inf (a dead particle) but never NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isles import checks

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

SOLVED = 1e-10  # error of log Δλ
NEAR = 1e-6  # last step toward it: what is left after a Newton step is of the order of its square
BELOW_ONE = np.nextafter(1.0, 0.0)
RESAMPLING = ("systematic", "stratified", "multinomial", "residual")


def log_sum_exp(x: Floats, axis: int | None = -1) -> Floats:
    """log Σ e^x without overflow; −inf where every term is."""
    peak = np.max(x, axis=axis, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.sum(np.exp(x - peak), axis=axis))
    return np.asarray(total + np.squeeze(peak, axis=axis))


def log_mean_exp(x: Floats, axis: int = -1) -> Floats:
    """log of the mean of e^x; dead particles stay in the mean."""
    return log_sum_exp(x, axis) - np.log(x.shape[axis])


def normalise(log_weights: Floats, axis: int | None = -1) -> Floats:
    """Weights that sum to 1; zeros where every log-weight is −inf."""
    peak = np.max(log_weights, axis=axis, keepdims=True)
    weights = np.exp(log_weights - np.where(np.isfinite(peak), peak, 0.0))
    total = weights.sum(axis=axis, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, 1.0))


def reweigh(log_weights: Floats) -> tuple[Floats, Floats]:
    """`normalise` and `log_mean_exp` of log-weights (I, N), by one exponential."""
    peak = log_weights.max(axis=1)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    weights = np.exp(log_weights - peak[:, None])
    total = weights.sum(axis=1)
    if total.all():
        log_total, divisor = np.log(total), total
    else:
        with np.errstate(divide="ignore"):
            log_total, divisor = np.log(total), np.where(total > 0, total, 1.0)
    weights /= divisor[:, None]
    return weights, log_total + peak - np.log(log_weights.shape[1])


def log_ess(log_weights: Floats) -> Floats:
    """log of (Σw)²/Σw²; −inf where every weight is zero."""
    sums = log_sum_exp(log_weights)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(sums), 2 * sums - log_sum_exp(2 * log_weights), -np.inf)


def island_ess(weights: Floats) -> Floats:
    """1/Σw² (I,) of weights (I, N) that sum to 1; 0 where every weight is zero."""
    squares = np.square(weights).sum(axis=1)
    return 1 / squares if squares.all() else np.divide(1, squares, out=np.zeros_like(squares), where=squares > 0)


def ess(weights: Floats) -> float:
    """Effective number of equal weights, (Σw)²/Σw², of one vector of weights."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def next_tempering(
    log_likelihood: Floats, current: Floats, *, ess_fraction: float, dtype: Any = np.float64
) -> Floats:
    """For each island the largest λ ≤ 1 whose incremental weights keep ESS ≥ ess_fraction · (live particles).

    See method.md (2). Newton steps on log Δλ in float64, inside a bracket that starts at a step that is sure to be
    short enough: with all weights in [e^{−Δ·spread}, 1], ESS ≥ n e^{−Δ·spread}. They begin at ESS = n / (1 + Δ²V),
    as if Δ times the standard deviation of log-likelihoods, √V, were small. The result is rounded to `dtype`, the
    kernels' own, so that weights, evidence and kernel use one and the same λ; it always advances.
    """
    alive = np.isfinite(log_likelihood)
    finite = np.where(alive, _from_best(log_likelihood), 0.0)
    live, all_alive = np.maximum(alive.sum(axis=-1), 1), alive.all()
    log_target = np.log(ess_fraction * live)
    whole = 1.0 - current

    def excess(step: Floats) -> tuple[Floats, Floats]:
        """log ESS over its target, and its slope in log Δλ; the best particle weighs 1, so no sum overflows."""
        w = np.exp(step[:, None] * finite)
        w = w if all_alive else np.where(alive, w, 0.0)
        squares = w * w
        total, total_squares = w.sum(axis=-1), squares.sum(axis=-1)
        mean, mean_squares = (w * finite).sum(axis=-1) / total, (squares * finite).sum(axis=-1) / total_squares
        return 2 * np.log(total) - np.log(total_squares) - log_target, 2 * step * (mean - mean_squares)

    spread = -finite.min(axis=-1)
    with np.errstate(all="ignore"):  # islands without live particles, or with equal ones
        done = ~(excess(whole)[0] < 0)
        low = np.log(np.maximum(np.minimum(-np.log(ess_fraction) / spread, whole), 1e-300))
        high = np.log(np.maximum(whole, 1e-300))
        variance = np.square(finite).sum(axis=-1) / live - np.square(finite.sum(axis=-1) / live)
        guess = 0.5 * np.log((1 / ess_fraction - 1) / variance)
        guess = np.where((guess > low) & (guess < high), guess, 0.5 * (low + high))
        for _ in range(80):
            unsolved = ~done & (high - low >= SOLVED)  # islands do not depend on each other's number of steps
            if not unsolved.any():
                break
            value, slope = excess(np.exp(guess))
            newton = guess - value / slope
            near = np.abs(newton - guess) < NEAR
            reached, short = np.where(near, newton, guess), value >= 0
            low = np.where(unsolved & (short | near), reached, low)
            high = np.where(unsolved & (~short | near), reached, high)
            guess = np.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
    solved = np.where(done, 1.0, np.minimum(current + np.exp(low), 1.0)).astype(dtype)
    return np.maximum(solved, np.nextafter(current.astype(dtype), dtype(1.0))).astype(np.float64)


def increments(log_likelihood: Floats, step: Floats) -> Floats:
    """Δλ · ℓ with 0 · (−inf) = 0, (I, N)."""
    if step.all():
        return np.asarray(step[:, None] * log_likelihood)
    with np.errstate(invalid="ignore"):
        return np.where(step[:, None] == 0, 0.0, step[:, None] * log_likelihood)


def resample(method: str, weights: Floats, uniforms: Floats, count: int | None = None) -> Integers:
    """Ancestor indices (I, A), sorted, by uniforms (I, A); every method has E[copies of i] = A · weight i.

    Systematic resampling needs one uniform number an island; give A as `count` then.

    >>> resample("systematic", np.array([[0.5, 0.0, 0.5]]), np.array([[0.5, 0.1, 0.1]])).tolist()
    [[0, 2, 2]]
    """
    checks.choice("resampling", method, RESAMPLING)
    islands, particles = weights.shape
    count = uniforms.shape[1] if count is None else count
    strata = np.arange(count)
    ancestors = np.empty((islands, count), np.int64)
    for island in range(islands):
        u, w = uniforms[island], weights[island]
        if method == "systematic":
            ancestors[island] = inverse_cdf(w, (strata + u[0]) / count)
        elif method == "stratified":
            ancestors[island] = inverse_cdf(w, (strata + u) / count)
        elif method == "multinomial":
            ancestors[island] = inverse_cdf(w, np.sort(u))
        else:
            expected = count * w / w.sum()
            copies = np.floor(expected * (1 + 1e-15)).astype(np.int64)
            rest = count - copies.sum()
            if rest:
                drawn = inverse_cdf(np.maximum(expected - copies, 0.0), u[:rest])
                copies += np.bincount(drawn, minlength=particles)
            ancestors[island] = np.repeat(np.arange(particles), copies)
    return ancestors


def unrelated(founders: Any) -> Floats:
    """(I,) share of pairs of particles that descend from different founders (I, N), numbered from 0 to N − 1.

    >>> unrelated(np.array([[0, 1, 2, 3], [2, 2, 2, 0]])).tolist()
    [1.0, 0.5]
    """
    islands, particles = founders.shape
    numbered = founders + particles * np.arange(islands)[:, None]
    families = np.bincount(numbered.ravel(), minlength=islands * particles).reshape(islands, particles)
    pairs = particles * (particles - 1)
    return np.asarray(1 - (families * (families - 1)).sum(axis=1) / max(pairs, 1))


def island_weights(log_evidence: Floats) -> Floats:
    """ω_p ∝ Z_p, method.md (5), in log space: islands may differ by any number of nats."""
    return normalise(log_evidence)


def combined_log_evidence(log_evidence: Floats) -> tuple[float, float | None]:
    """log of the mean of Z_p, method.md (7), and its standard error over islands (None for one island)."""
    combined = float(log_mean_exp(log_evidence))
    count = len(log_evidence)
    if count < 2 or not np.isfinite(combined):
        return combined, None
    relative = np.exp(log_evidence - combined)  # mean 1
    return combined, float(relative.std(ddof=1) / np.sqrt(count))


def _from_best(log_likelihood: Floats) -> Floats:
    best = np.max(log_likelihood, axis=-1, keepdims=True)
    return np.asarray(log_likelihood - np.where(np.isfinite(best), best, 0.0))


def inverse_cdf(weights: Floats, points: Floats) -> Any:
    """First index whose cumulative weight exceeds each point: never one of weight zero."""
    cumulative = weights.cumsum()
    cumulative /= cumulative[-1]
    return cumulative.searchsorted(np.minimum(points, BELOW_ONE), side="right")


def mean(weights: Floats, values: Floats) -> Floats:
    """Means (I,) of values (I, N) by weights that sum to 1; a value without weight may be anything."""
    return np.asarray((weights * np.where(weights > 0, values, 0.0)).sum(axis=1))
