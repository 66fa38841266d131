"""What a run says about itself: the table of `posterior.diagnostics()`, and its warnings with remedies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from isles import diagnostics, weights
from isles.adapt import Decorrelate
from isles.samplers.block import Sampler
from isles.samplers.mcmc import MCMC
from isles.samplers.mpmcmc import MPMCMC
from isles.samplers.smc import SMC

if TYPE_CHECKING:
    from isles.posterior import Posterior


TOO_FEW_ACCEPTED = 0.05  # moves
TOO_FAR_FROM_TARGET = 1 / 3  # of the acceptance aimed at
TOO_MUCH_RISE = 0.3  # of the log-likelihood within a stage, in standard deviations; 0 if particles keep up
TOO_MUCH_MEMORY = 0.97  # correlation with the start of a stage, at its end
TOO_FEW_UNRELATED = 0.2  # pairs of particles, to those that resampling alone would leave
KIN_STAGES = 8  # from the prior on; of more, moves that are good enough have forgotten the first ones
GROUP_NUMBERS = 1 << 23  # of draws looked at in float64 at a time


@dataclass(frozen=True)
class Diagnostics:
    """A table of facts about a run, and warnings."""

    rows: dict[str, Any]
    warnings: tuple[str, ...]

    def __getitem__(self, name: str) -> Any:
        return self.rows[name]

    def keys(self) -> list[str]:
        """Names of the facts, so that `dict(diagnostics)` works."""
        return list(self.rows)

    def __str__(self) -> str:
        width = max(map(len, self.rows))
        lines = [f"{name:<{width}}  {_show(value)}" for name, value in self.rows.items()]
        return "\n".join([*lines, *(f"warning: {message}" for message in self.warnings)])


def summarise(posterior: Posterior) -> Diagnostics:
    """The table of a posterior."""
    islands, draws = posterior.log_weights.shape
    rows: dict[str, Any] = {"islands": islands, "draws an island": draws}
    if posterior.kind != "posterior":
        rows["these are"] = posterior.kind
    if posterior.island_log_evidence is not None:
        rows["log evidence"] = posterior.log_evidence
        rows["log evidence, standard error"] = posterior.log_evidence_standard_error
        if caveat := evidence_caveat(posterior):
            rows["log evidence, standard error is"] = caveat
        rows["evidence is"] = posterior.evidence_kind
        rows["stages"] = _range((np.isfinite(posterior.trace["tempering"])).sum(axis=0))
    rows["island weights"] = posterior.weighting
    rows["island ESS"] = posterior.island_ess
    if "elbo" in posterior.trace:
        rows["ELBO"] = mean_of_last(posterior.trace["elbo"])
    if "acceptance" in posterior.trace:
        rows["acceptance, last"] = mean_of_last(posterior.trace["acceptance"])
        rows["step size, last"] = mean_of_last(posterior.trace["step_size"])
    if "correlation" in posterior.trace:
        rows["correlation with stage's start"] = mean_of_last(posterior.trace["correlation"])
    if "unique_ancestors" in posterior.trace:
        rows["unique ancestors, least"] = int(np.nanmin(posterior.trace["unique_ancestors"]))
    if posterior.positions is not None:
        rows |= _agreement(posterior)
    rows["dead first draws"] = int(posterior.dead.sum())
    rows["non-finite evaluations"] = int(posterior.nonfinite.sum())
    rows["epochs, parallel"] = posterior.epochs.parallel
    rows["epochs, total"] = posterior.epochs.total
    return Diagnostics(rows, posterior.warnings)


def evidence_caveat(posterior: Posterior) -> str | None:
    """What to think of the standard error of the log evidence; None if it is as good as any.

    Over P islands it cannot exceed 1, which is what it is when a single island carries the weight: the spread of
    islands then says that the error is large, not how large.
    """
    if posterior.island_log_evidence is None or posterior.log_evidence_standard_error is None:
        return None
    evidence = weights.island_weights(posterior.island_log_evidence)
    carriers = 1 / np.sum(evidence**2)
    return (
        None if carriers >= few_islands(len(evidence)) else "at least so large: too few islands carry the weight"
    )


def few_islands(islands: int) -> float:
    """The effective number of islands below which their weights say that they have not agreed."""
    return min(2, 0.6 * islands)


def find_warnings(posterior: Posterior, sampler: Sampler) -> list[str]:
    """What deserves a look, each with a remedy."""
    found = []
    islands, draws = posterior.log_weights.shape
    ess = posterior.island_ess
    if posterior.weighting == "evidence" and ess is not None and ess < max(few_islands(islands), islands / 4):
        found.append(
            f"island ESS {ess:.1f} of {islands}: few islands carry the weight, so more islands buy little here; "
            f"raise mutations or particles (posterior.with_weights('equal') shows the unweighted answer)"
        )
    if isinstance(sampler, SMC) and sampler.particles == 1 and sampler.schedule is None and sampler.plan is None:
        found.append(
            "particles=1: one particle gives no weights to choose temperings by, so it goes from the prior to the "
            "posterior in one stage; take particles=32, or isles.AIS, whose particles go alone along a schedule"
        )
    trace = posterior.trace
    if trace:
        acceptance = mean_of_last(trace["acceptance"])
        if acceptance < TOO_FEW_ACCEPTED:
            found.append(
                f"mean acceptance {acceptance:.3f} at the end: particles hardly move; lower step_size, "
                f"or leave it None and raise mutations or burn_in so that it can adapt"
            )
        capped = int(np.nansum(trace["capped"]))
        if capped:
            found.append(
                f"max_leapfrogs cut trajectories short in {capped} mutations: raise it or shorten trajectory"
            )
    if "unique_ancestors" in trace and draws >= 20:
        fewest = int(np.nanmin(trace["unique_ancestors"]))
        if fewest < max(2, draws / 20):
            more = (
                "particles or ess_fraction"
                if getattr(sampler, "schedule", None) is None
                else ("particles, or give a finer schedule")
            )
            found.append(f"a stage went on from {fewest} of {draws} particles: raise {more}")
    bad, total = int(posterior.nonfinite.sum()), posterior.epochs.total
    if bad:
        found.append(
            f"{bad} of {total} likelihood evaluations gave NaN, +inf or a non-finite gradient; "
            f"they count as likelihood zero"
            + (
                " (so few are usually divergent trajectories, which are rejected)"
                if bad < 1e-3 * total
                else ": shorter steps (a smaller step_size, or target_acceptance=0.8) help if they diverge; "
                "where draws of the prior give them, too, look for log and / of zero in network and prior"
            )
        )
    if posterior.rounding > 0.1:
        found.append(
            f"log-likelihoods are rounded to {posterior.rounding:.2g} nat, which disturbs acceptances: run in "
            f"float64 (JAX_ENABLE_X64=1, parameters and data in float64)"
        )
    if isinstance(sampler, SMC):
        found += _shortness(posterior, sampler)
    if isinstance(sampler, MCMC):
        found += _rise(posterior, sampler) + _misfit(posterior, sampler)
    if isinstance(sampler, SMC) and isinstance(sampler.mutations, Decorrelate):
        if sampler.particles < 100 and sampler.plan is None:
            found.append(
                f"{type(sampler.mutations).__name__} sees correlations through noise of about 1/sqrt(particles), "
                f"and particles={sampler.particles}: take at least 100, or a fixed number of mutations"
            )
        elif sampler.plan is None and trace and _still_correlated(trace["correlation"], sampler.mutations):
            found.append(
                f"Decorrelate stopped at its max={sampler.mutations.max} before particles decorrelated: raise max"
            )
    if posterior.positions is not None:
        found += _disagreement(posterior, sampler)
    return found


def _agreement(posterior: Posterior) -> dict[str, Any]:
    """R-hats and autocorrelation times that fit the kind of run; the largest over coordinates."""
    islands, draws = posterior.log_weights.shape
    rows: dict[str, Any] = {}
    if posterior.chain_shape is None:
        if islands > 1 and draws > 1 and not posterior.layout.size > 1 << 20:
            rows["R-hat between islands"] = _island_rhat(posterior)
            rows["R-hat between islands, floor"] = diagnostics.nested_rhat_floor(draws)
        return rows
    count, length = posterior.chain_shape
    worst: dict[str, list[float]] = {}
    for chains in _coordinate_groups(posterior.chain_positions()):
        flat = chains.reshape(-1, length, chains.shape[-1])
        if posterior.shared_start and islands > 1 and count > 1:
            worst.setdefault("nested R-hat", []).append(float(np.max(diagnostics.nested_rhat(chains))))
        if length >= 4:
            worst.setdefault("R-hat", []).append(float(np.max(diagnostics.rhat(flat))))
            with contextlib.suppress(ValueError):
                worst.setdefault("IACT", []).append(float(np.max(diagnostics.iact(flat, strict=False))))
    if "nested R-hat" in worst:
        rows["nested R-hat"] = float(np.max(worst["nested R-hat"]))
        rows["nested R-hat, floor"] = diagnostics.nested_rhat_floor(count)
    if "R-hat" in worst:
        rows["R-hat"] = float(np.max(worst["R-hat"]))
    if "IACT" in worst:
        steps = float(np.max(worst["IACT"])) * posterior.draw_steps
        rows["IACT, steps"] = steps
        if "step" in posterior.trace:
            spent = posterior.trace["epochs"].sum(axis=0).max()  # by steps, not by finding starts
            rows["IACT, epochs"] = steps * spent / max(posterior.trace["step"].max(), 1)
        rows["ESS"] = islands * count * length / float(np.max(worst["IACT"]))
    return rows


def _coordinate_groups(chains: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """All chains (..., d), some coordinates at a time, in float64: a copy of all would double what a run needs."""
    dimension = chains.shape[-1]
    size = max(GROUP_NUMBERS * dimension // max(chains.size, 1), 1)
    for start in range(0, dimension, size):
        yield chains[..., start : start + size].astype(np.float64)


def _island_rhat(posterior: Posterior) -> float:
    """√(1 + B/W) with the variances of island means and within islands summed over coordinates."""
    positions = posterior._positions()
    count = positions.shape[1]
    moments = []
    for island in np.flatnonzero(np.isfinite(posterior.log_weights).any(axis=1)):
        within = weights.normalise(posterior.log_weights[island])
        points = positions[island].astype(np.float64)
        mean = within @ points
        moments.append((mean, within @ (points - mean) ** 2 * count / (count - 1)))
    means, squares = (np.array(part) for part in zip(*moments, strict=True)) if moments else (np.empty(0),) * 2
    if len(means) < 2 or squares.sum() == 0:
        return float("inf")
    scale = np.maximum(squares.mean(axis=0), 1e-300)
    return float(np.sqrt(1 + np.mean(means.var(axis=0, ddof=1) / scale)))


def _disagreement(posterior: Posterior, sampler: Sampler) -> list[str]:
    rows = _agreement(posterior)
    between = rows.get("R-hat between islands", 1.0)
    long = posterior.chain_shape is not None and posterior.chain_shape[1] >= 100  # else R-hat sees noise
    if posterior.log_weights.shape[1] >= 8 and between > 1.2:
        more = "steps or burn_in" if isinstance(sampler, MPMCMC) else "mutations or particles"
        return [f"islands disagree (R-hat between islands {between:.2f}, 1 is best): raise {more}"]
    if long and rows["R-hat"] > 1.1:
        return [
            f"chains disagree (R-hat {rows['R-hat']:.2f}, 1 is best): raise burn_in and draws, or change "
            f"leapfrogs or trajectory, which can resonate with the target"
        ]
    if rows.get("nested R-hat", 1.0) > 1.1 * rows.get("nested R-hat, floor", 1.0):
        return [f"chains remember their starts (nested R-hat {rows['nested R-hat']:.2f}): raise burn_in"]
    return []


def _still_correlated(correlation: np.ndarray[Any, Any], rule: Decorrelate) -> bool:
    if type(rule) is not Decorrelate:  # other rules promise no threshold
        return False
    return bool((last_finite(correlation) > rule.threshold).any())


def _shortness(posterior: Posterior, sampler: SMC) -> list[str]:
    """Whether mutations are too few: particles lag behind the tempering, or stay copies of each other."""
    trace, draws = posterior.trace, posterior.log_weights.shape[1]
    if isinstance(sampler.mutations, Decorrelate) or "correlation" not in trace or draws < 8:
        return []
    remedy = f"raise mutations={sampler.mutations}, or the kernel's trajectory or leapfrogs"
    late = trace["rise"][len(trace["rise"]) // 2 :]
    rises = late[np.isfinite(late)]
    # of particles that keep up: a mean after mutations less one of half as many that survived resampling
    noise = np.sqrt(3 / (draws * max(rises.size, 1)))
    rise = float(rises.mean()) if rises.size else 0.0
    if rise > max(TOO_MUCH_RISE, 3 * noise):
        return [
            f"too short: mutations were still raising the mean log-likelihood, by {rise:.2f} of its spread a "
            f"stage in the second half of the stages (0 is best), so particles lag behind their target: {remedy}"
        ]
    remembered = mean_of_last(trace["correlation"])
    if remembered > TOO_MUCH_MEMORY and mean_of_last(trace["acceptance"]) >= TOO_FEW_ACCEPTED:
        return [
            f"too short: at the end of the last stage, particles were still correlated by {remembered:.3f} with "
            f"where they began it, so the copies that resampling made stay copies: {remedy}"
        ]
    return _kinship(trace, remedy) if draws >= 16 and "unrelated" in trace else []


def _kinship(trace: Mapping[str, np.ndarray[Any, Any]], remedy: str) -> list[str]:
    """Whether particles are of fewer families than resampling makes of particles that forget their likelihoods.

    Copies of a particle share its log-likelihood. Unless mutations change it, they are chosen together again.
    """
    stages = min(len(trace["unrelated"]), KIN_STAGES)
    left = mean_of_last(trace["unrelated"][:stages])
    with np.errstate(divide="ignore", invalid="ignore"):
        by_chance = mean_of_last(np.cumprod(1 - 1 / trace["ess"][:stages], axis=0))
    if by_chance < 0.3 or not left < TOO_FEW_UNRELATED * by_chance:
        return []
    return [
        f"too short: {left:.0%} of pairs of particles came from different draws of the prior after {stages} "
        f"stages, where resampling alone would leave {by_chance:.0%}; particles keep the likelihoods that they "
        f"were chosen for, and few families take over: {remedy}"
    ]


def _rise(posterior: Posterior, sampler: MCMC) -> list[str]:
    """Whether log-likelihoods were still rising when the draws were taken."""
    if sampler.burn_in == 0 and sampler.draws == 1:
        return ["too short: burn_in=0 and draws=1 make no step, so draws are where chains began: raise burn_in"]
    trace = posterior.trace.get("log_likelihood")
    half = sampler.burn_in // 2
    if trace is None or half < 10:
        return []
    before = trace[np.searchsorted(posterior.trace["step"][:, 0], half)]
    final = posterior.log_likelihood[np.isfinite(posterior.log_likelihood)]
    if final.size < 8 or not np.isfinite(before).all():
        return []
    rise, spread = float(final.mean() - before.mean()), float(final.std())
    chains = len(trace[0]) * sampler.chains
    if rise < max(0.5 * spread, 4 * spread * np.sqrt(2 / chains)):
        return []
    return [
        f"too short: the mean log-likelihood rose by {rise:.3g} in the second half of burn-in, its spread being "
        f"{spread:.3g}, so chains had not arrived when draws began: raise burn_in={sampler.burn_in}"
    ]


def _misfit(posterior: Posterior, sampler: MCMC) -> list[str]:
    """Whether chains went on, after burn-in had fixed their step size, to where it is too long."""
    target = sampler.kernel.target_acceptance if sampler.kernel.adapts_step_size else None
    if target is None or "step" not in posterior.trace:
        return []
    ends, acceptance = posterior.trace["step"], posterior.trace["acceptance"]
    steps = np.diff(ends, axis=0, prepend=0.0) * (ends > sampler.adapt_until)
    steps[~np.isfinite(acceptance)] = 0.0
    if steps.sum() * sampler.chains < 200:  # a look at fewer says little
        return []
    mean = float(np.average(np.nan_to_num(acceptance), weights=steps))
    if (
        mean_of_last(acceptance) < TOO_FEW_ACCEPTED or mean > TOO_FAR_FROM_TARGET * target
    ):  # that has its own words
        return []
    return [
        f"mean acceptance {mean:.2f} once burn-in had fixed the step size, where it was to be {target:g}: chains "
        f"went on to where steps are too long, and move slowly: raise burn_in={sampler.burn_in}"
    ]


def last_finite(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The last finite entry of each column."""
    finite = np.isfinite(values)
    rows = len(values) - 1 - np.argmax(finite[::-1], axis=0)
    return values[rows, np.arange(values.shape[1])]


def mean_of_last(values: np.ndarray[Any, Any]) -> float:
    """The mean over islands, each at its own last stage."""
    last = last_finite(values)
    return float(last[np.isfinite(last)].mean()) if np.isfinite(last).any() else float("nan")


def _range(counts: np.ndarray[Any, Any]) -> str:
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low} to {high}"


def _show(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
