"""From islands to estimates: means of islands, P of them combined, and their squared errors."""

from __future__ import annotations

from typing import Any

import numpy as np
from experiments.studies.targets import Floats, Target

import isles


def island_means(posterior: isles.Posterior) -> Floats:
    """(P, d) the mean of each island's own weighted draws."""
    weights = posterior.with_weights("equal").weights
    positions = np.asarray(posterior.draws, np.float64)
    return np.einsum("pn,pnd->pd", weights, positions) / weights.sum(axis=1)[:, None]


def combine(means: Floats, log_evidence: Floats | None) -> Floats:
    """(R, d) from islands (R, P, d), weighted by evidence (R, P), or equally if that is None."""
    if log_evidence is None:
        return means.mean(axis=1)
    omega = np.exp(log_evidence - log_evidence.max(axis=1, keepdims=True))
    return np.einsum("rp,rpd->rd", omega / omega.sum(axis=1, keepdims=True), means)


def squared_errors(estimates: Floats, truth: Floats) -> Floats:
    """(R,) ‖estimate − truth‖²."""
    return np.square(estimates - truth).sum(axis=-1)


def prefix_errors(
    target: Target, means: Floats, log_evidence: Floats | None, counts: list[int]
) -> dict[str, Floats]:
    """Squared errors of the first P of the islands (R, P_max, d) for every P: (counts, R) by weighting."""
    ways = {"equal": None} if log_evidence is None else {"evidence": log_evidence, "equal": None}
    return {
        way: np.stack([
            squared_errors(combine(means[:, :count], None if z is None else z[:, :count]), target.mean)
            for count in counts
        ])
        for way, z in ways.items()
    }  # fmt: skip


def realize(target: Target, sampler: Any, realizations: int, seed: int, *, islands: int = 1) -> dict[str, Any]:
    """Realizations of P islands each, side by side in one run: errors of the posterior mean, and what it cost."""
    posterior = isles.sample(target.problem, sampler, islands=realizations * islands, seed=seed, progress=False)
    means = island_means(posterior).reshape(realizations, islands, -1)
    found = costs(posterior, realizations) | {
        "mean_square": float(target.mean @ target.mean),
        "variance": float(np.trace(target.covariance)),
    }
    log_evidence = posterior.island_log_evidence
    if log_evidence is None:
        return found | {"equal": squared_errors(combine(means, None), target.mean)}
    grouped = log_evidence.reshape(realizations, islands)
    found |= {
        "evidence": squared_errors(combine(means, grouped), target.mean),
        "equal": squared_errors(combine(means, None), target.mean),
        "log_evidence_error": log_evidence.mean() - target.log_evidence,
        "log_evidence_variance": log_evidence.var(ddof=1) if log_evidence.size > 1 else None,
    }
    return found | stages(posterior)


def costs(posterior: isles.Posterior, realizations: int) -> dict[str, Any]:
    """Epochs: of all particles, of those of one realization, and those that one particle waits for."""
    waiting = 1 + np.nansum(posterior.trace["epochs"], axis=0)  # the prior draw, and what followed
    return {
        "particle_epochs": posterior.epochs.total,
        "epochs": posterior.epochs.total / realizations,
        "parallel_epochs": float(waiting.mean()),
    }


def stages(posterior: isles.Posterior) -> dict[str, Any]:
    """The mean number of stages, and the mean number of mutations of each."""
    mutations = posterior.trace["mutations"]
    present = np.isfinite(mutations)
    return {
        "stages": float(present.sum(axis=0).mean()),
        "mutations": np.nansum(mutations, axis=1) / np.maximum(present.sum(axis=1), 1),
    }
