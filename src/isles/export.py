"""Posteriors for other libraries. No numerics live here but the choice of equally weighted draws."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from isles import predictions, weights
from isles.summary import last_finite

if TYPE_CHECKING:
    from isles.posterior import Posterior


def to_arviz(posterior: Posterior, x: Any = None, y: Any = None) -> Any:
    """See `Posterior.to_arviz`."""
    arviz = _arviz()
    if (x is None) != (y is None):
        raise ValueError("x and y belong together: give both for log-likelihoods of every datum, or neither")
    positions = posterior._positions()
    islands, draws, size = positions.shape
    chosen = _chains(posterior) if posterior.chain_shape is not None else _equally_weighted(posterior)
    pick = lambda array: np.asarray(array, np.float64).reshape(islands * draws, *array.shape[2:])[chosen]
    kept = posterior.layout.unravel_numpy(pick(positions))
    statistics = {
        "lp": pick(posterior.log_prior + posterior.log_likelihood),
        "log_prior": pick(posterior.log_prior),
        "total_log_likelihood": pick(posterior.log_likelihood),
        "weight": pick(posterior.weights),
        "island": chosen // draws,
    }
    if "acceptance" in posterior.trace:
        statistics["acceptance_rate"] = last_finite(posterior.trace["acceptance"])[chosen // draws]
    groups = {"posterior": _by_name(posterior, kept), "sample_stats": statistics}
    if x is not None:
        mixture = posterior._mixture(x, None)
        flat = predictions.Mixture(
            mixture.layout, mixture.likelihood, pick(positions).reshape(-1, size).astype(positions.dtype),
            np.full(chosen.size, 1 / chosen.size), mixture.x,
        )  # fmt: skip
        groups["log_likelihood"] = {"y": flat.log_densities(y).reshape(*chosen.shape, -1)}
        groups["observed_data"] = {"y": np.asarray(y)}
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_dict(**groups)
    return arviz.from_dict(groups)


def _chains(posterior: Posterior) -> np.ndarray[Any, Any]:
    """Draws of chains (chains of all islands, draws); chains that never had a likelihood are left out."""
    assert posterior.chain_shape is not None
    numbers = np.arange(posterior.log_weights.size).reshape(-1, posterior.chain_shape[1])
    return numbers[np.isfinite(posterior.log_weights.reshape(numbers.shape)).all(axis=1)]


def _equally_weighted(posterior: Posterior) -> np.ndarray[Any, Any]:
    """As many draws as there are, (P, N), each as often as its weight says.

    They stay in order, so that chain p holds mostly draws of island p, and copies of a draw stay together:
    R-hat sees where islands disagree, and the effective sample size sees the copies.
    """
    shape = posterior.log_weights.shape
    points = (np.arange(posterior.log_weights.size) + 0.5) / posterior.log_weights.size
    return np.asarray(weights.inverse_cdf(posterior.weights.ravel(), points)).reshape(shape)


def _by_name(posterior: Posterior, params: Any) -> dict[str, Any]:
    """Leaves by name; slashes would be groups of a file."""
    names = [name.replace("/", ".") or "parameters" for name in posterior.layout.names]
    return dict(zip(names, jax.tree.leaves(params), strict=True))


def _arviz() -> ModuleType:
    try:
        import arviz
    except ImportError:
        raise ImportError("posterior.to_arviz needs ArviZ; pip install 'isles[arviz]'") from None
    return arviz
