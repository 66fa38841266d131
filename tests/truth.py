"""How truth is tested: error within 4 standard errors, and the standard error itself small."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import isles


def assert_same_but_for_rounding(found: Any, wanted: Any, *, place: str = "") -> None:
    """Nested dicts and lists of numbers and words; sums are rounded differently by other processors."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), place
        for key, value in wanted.items():
            assert_same_but_for_rounding(found[key], value, place=f"{place}/{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), place
        for index, value in enumerate(wanted):
            assert_same_but_for_rounding(found[index], value, place=f"{place}/{index}")
    elif isinstance(wanted, float):
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-12, err_msg=place)
    else:
        assert found == wanted, place


def assert_estimate(value: Any, error: Any, truth: Any, *, bound: Any) -> None:
    """|value − truth| < 4 s.e. for a few numbers, and s.e. < bound."""
    value, error, truth = map(np.asarray, (value, error, truth))
    assert np.all(error < bound), f"standard error {np.max(error)} is not below {bound}: the test is too weak"
    scores = np.abs(value - truth) / error
    assert np.all(scores < 4), f"off by {scores.max():.1f} standard errors: {value} against {truth}"


def assert_moments(posterior: isles.Posterior, mean: Any, covariance: Any, *, bound: float = 0.02) -> None:
    """Mean and covariance as aggregated statistics, in units of the posterior standard deviation.

    In whitened coordinates u = F⁻¹(θ − mean), the truth has E[u] = 0 and E[uuᵀ] = I. Tested: the mean along the
    direction of its own largest error being unknown beforehand, the sum of u over coordinates and its trace, and
    the Mahalanobis distance of the mean against what the errors of its coordinates allow.
    """
    factor = np.linalg.inv(np.linalg.cholesky(covariance))
    d = len(mean)

    def statistics(theta: Any) -> dict[str, Any]:
        u = jnp.asarray(factor) @ (theta - jnp.asarray(mean))
        return {"u": u, "sum": jnp.sum(u) / np.sqrt(d), "trace": jnp.sum(u * u) / d, "outer": jnp.outer(u, u)}

    value, error = posterior.expectation(statistics)
    assert_estimate(value["sum"], error["sum"], 0.0, bound=bound)
    assert_estimate(value["trace"], error["trace"], 1.0, bound=bound)
    # Σ (value/error)² over d coordinates has mean near d and variance near 2d (more for few islands)
    distance = np.sum((value["u"] / error["u"]) ** 2)
    assert distance < d + 4 * np.sqrt(2 * d) * 1.5, (
        f"Mahalanobis distance {distance:.1f} of the mean, {d} expected"
    )
    assert error["u"].max() < 1.5 * bound
    largest = np.max(np.abs(value["outer"] - np.eye(d)) / error["outer"])
    assert largest < 5.5, f"largest error of the covariance is {largest:.1f} standard errors"


def assert_log_evidence(posterior: isles.Posterior, truth: float, *, bound: float = 0.05) -> None:
    """Ẑ/Z against 1: the ratio, since log Ẑ itself is biased by −variance/2."""
    ratios = np.exp(posterior.island_log_evidence - truth)
    error = ratios.std(ddof=1) / np.sqrt(len(ratios))
    assert_estimate(ratios.mean(), error, 1.0, bound=bound)
