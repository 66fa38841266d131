"""Diagnostics of chains and islands: IACT, ESS, R-hat, nested R-hat. Arrays in, numbers out; no files.

Arrays are (chains, draws) or (chains, draws, d); with trailing coordinates, results have shape (d,).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, Any]


class ShortChainsError(ValueError):
    """Chains shorter than 50 autocorrelation times: the estimate cannot be trusted, but is in `.iact`."""

    def __init__(self, iact: Floats, draws: int) -> None:
        self.iact = iact
        super().__init__(
            f"chains of {draws} draws are shorter than 50 autocorrelation times "
            f"(estimated {np.max(iact):.3g}, likely too small): run longer chains, or read .iact of this error"
        )


def iact(chains: Floats, *, strict: bool = True) -> Floats:
    """Integrated autocorrelation time 1 + 2 Σ_s ρ_s, in draws.

    Autocovariances by FFT about the mean of all chains, summed over Geyer's initial monotone sequence.
    With `strict`, chains shorter than 50 of it raise `ShortChainsError`, which carries the value.
    """
    chains = _three_axes(chains)
    draws = chains.shape[1]
    if draws < 4:
        raise ValueError(f"autocorrelations need at least 4 draws a chain, got {draws}")
    centred = chains - chains.mean(axis=(0, 1))
    spectrum = np.fft.rfft(centred, n=2 * draws, axis=1)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), axis=1)[:, :draws].mean(axis=0) / draws  # (draws, d)
    variance = covariance[0]
    still = variance <= 0
    rho = covariance / np.where(still, 1.0, variance)
    pairs = rho[: draws // 2 * 2].reshape(draws // 2, 2, -1).sum(axis=1)  # Γ_k = ρ_2k + ρ_2k+1
    positive = np.cumprod(pairs > 0, axis=0)
    monotone = np.minimum.accumulate(pairs, axis=0) * positive
    time = np.where(still, float(draws), np.maximum(2 * monotone.sum(axis=0) - 1, 1e-12))
    if strict and (draws < 50 * time).any():
        raise ShortChainsError(time, draws)
    return time


def effective_sample_size(chains: Floats) -> Floats:
    """Draws of all chains divided by the autocorrelation time."""
    chains = _three_axes(chains)
    return np.asarray(chains.shape[0] * chains.shape[1] / iact(chains, strict=False))


def rhat(chains: Floats) -> Floats:
    """Split R-hat: each chain cut in two, √((within·(n−1)/n + between) / within)."""
    chains = _three_axes(chains)
    half = chains.shape[1] // 2
    if half < 2:
        raise ValueError(f"R-hat needs at least 4 draws a chain, got {chains.shape[1]}; use nested_rhat")
    halves = np.concatenate([chains[:, :half], chains[:, -half:]])
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    return np.sqrt(_ratio(within * (half - 1) / half + between, within))


def nested_rhat(superchains: Floats) -> Floats:
    """Nested R-hat (Margossian et al. 2024) of (superchains, chains, draws[, d]): √(1 + B/W).

    B is the variance of superchain means; W the mean over superchains of the variance between their
    chains plus the mean variance within them (0 for one draw). Valid only where the chains of a
    superchain share their start. Its floor for converged chains of one draw is `nested_rhat_floor(chains)`.
    """
    superchains = np.asarray(superchains, np.float64)
    if superchains.ndim == 3:
        superchains = superchains[..., None]
    groups, chains, draws = superchains.shape[:3]
    if groups < 2 or chains * draws < 2:
        raise ValueError(f"nested R-hat needs 2 superchains of 2 draws, got {groups} of {chains} x {draws}")
    between = superchains.mean(axis=(1, 2)).var(axis=0, ddof=1)
    inside = np.zeros(superchains.shape[-1])
    if chains > 1:
        inside = inside + superchains.mean(axis=2).var(axis=1, ddof=1).mean(axis=0)
    if draws > 1:
        inside = inside + superchains.var(axis=2, ddof=1).mean(axis=(0, 1))
    return np.sqrt(_ratio(between + inside, inside))


def nested_rhat_floor(chains: int) -> float:
    """What nested R-hat of converged chains of one draw tends to: √(1 + 1/chains)."""
    return float(np.sqrt(1 + 1 / chains))


def _three_axes(chains: Floats) -> Floats:
    chains = np.asarray(chains, np.float64)
    if chains.ndim not in (2, 3):
        raise ValueError(f"chains have shape {chains.shape}; they must be (chains, draws) or (chains, draws, d)")
    return chains if chains.ndim == 3 else chains[..., None]


def _ratio(a: Floats, b: Floats) -> Floats:
    """a/b, with 0/0 = 1 for a coordinate that never moved anywhere and a/0 = inf; NaN stays NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if np.isnan(a).any() or np.isnan(b).any():
            return np.where(np.isnan(a) | np.isnan(b), np.nan, _ratio(np.nan_to_num(a), np.nan_to_num(b)))
        return np.where(b > 0, a / np.where(b > 0, b, 1.0), np.where(a > 0, np.inf, 1.0))
