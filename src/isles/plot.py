"""Pictures for notebooks and papers: each function draws on a matplotlib axes (new by default), and returns it.

What is drawn comes from a posterior, or from what `posterior.predict` returned. Files and pages live in `reports`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from isles import checks, metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from isles.posterior import Posterior
    from isles.predictions import Classes, Values

# distinguishable without colour vision (Okabe and Ito), and on light and dark grounds
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MANY = 12  # islands that are told apart by colour; more are drawn as a crowd


class Traced(Protocol):
    """A posterior, or a run that is going on: numbers (stages, P) by name."""

    @property
    def trace(self) -> Mapping[str, Any]:
        """Stage by stage, NaN where an island has not come."""
        ...


def tempering(posterior: Traced, ax: Axes | None = None) -> Axes:
    """The tempering of every island, stage by stage, on a log scale."""
    ax = _lines(posterior, "tempering", ax)
    ax.set(xlabel="stage", ylabel="tempering", yscale="log")
    return ax


def ess(posterior: Traced, ax: Axes | None = None) -> Axes:
    """The effective sample size of every island at every stage, before resampling."""
    ax = _lines(posterior, "ess", ax)
    ax.set(xlabel="stage", ylabel="effective sample size", ylim=(0, None))
    return ax


def acceptance(posterior: Traced, ax: Axes | None = None) -> Axes:
    """Mean acceptance probability of every island."""
    ax = _lines(posterior, "acceptance", ax)
    ax.set(ylabel="acceptance", ylim=(0, 1))
    return ax


def step_size(posterior: Traced, ax: Axes | None = None) -> Axes:
    """The step size of every island."""
    ax = _lines(posterior, "step_size", ax)
    ax.set(ylabel="step size", yscale="log")
    return ax


def log_likelihood(posterior: Traced, ax: Axes | None = None) -> Axes:
    """Mean log-likelihood of every island's particles or chains."""
    ax = _lines(posterior, "log_likelihood", ax)
    ax.set(ylabel="mean log-likelihood")
    return ax


def island_weights(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """The weight of every island, and the equal weight as a line."""
    ax = _axes(ax)
    weights = posterior.island_weights
    ax.bar(np.arange(len(weights)), weights, color=COLOURS[0])
    ax.axhline(1 / len(weights), color=COLOURS[1], linestyle="--", label="equal")
    ax.set(xlabel="island", ylabel="weight", ylim=(0, None))
    _whole_numbers(ax)
    _legend_above(ax)
    return ax


def island_evidence(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Every island's log evidence, and the combined estimate with two standard errors."""
    if posterior.island_log_evidence is None or posterior.log_evidence is None:
        raise ValueError("this posterior has no evidence: MCMC and baselines estimate none; use SMC or AIS")
    ax = _axes(ax)
    values = posterior.island_log_evidence
    ax.plot(np.arange(len(values)), values, "o", color=COLOURS[0], label="islands")
    ax.axhline(posterior.log_evidence, color=COLOURS[1], label="combined")
    error = posterior.log_evidence_standard_error
    if error is not None:
        low, high = posterior.log_evidence - 2 * error, posterior.log_evidence + 2 * error
        ax.axhspan(low, high, color=COLOURS[1], alpha=0.2, label="± 2 standard errors")
    ax.set(xlabel="island", ylabel="log evidence")
    _whole_numbers(ax)
    _legend_above(ax)
    return ax


def reliability(prediction: Classes, labels: Any, ax: Axes | None = None, *, bins: int = metrics.BINS) -> Axes:
    """Accuracy against confidence in bins; a calibrated prediction lies on the diagonal."""
    ax = _axes(ax)
    diagram = metrics.reliability(prediction, labels, bins)
    width = np.diff(diagram.edges)
    ax.bar(diagram.edges[:-1], np.nan_to_num(diagram.accuracy), width, align="edge", color=COLOURS[0], alpha=0.8,
           edgecolor="white", label=f"accuracy (ECE {metrics.ece(prediction, labels, bins):.3f})")  # fmt: skip
    ax.plot([0, 1], [0, 1], "--", color=COLOURS[1], label="calibrated")
    ax.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    ax.legend(frameon=False, loc="upper left")
    return ax


def entropies(
    prediction: Classes, ood: Classes | None = None, ax: Axes | None = None, *, part: str = "epistemic"
) -> Axes:
    """Histograms of an entropy (`"epistemic"`, `"aleatoric"` or `"entropy"`) on test inputs, and on others."""
    checks.choice("part", part, ["epistemic", "aleatoric", "entropy"])
    ax = _axes(ax)
    groups = {"test inputs": getattr(prediction, part)}
    if ood is not None:
        groups["out of distribution"] = getattr(ood, part)
    top = max(float(values.max()) for values in groups.values())
    edges = np.linspace(0, max(top, 1e-6), 41)
    for (name, values), colour in zip(groups.items(), COLOURS, strict=False):
        ax.hist(
            values,
            edges.tolist(),
            density=True,
            alpha=0.75,
            color=colour,
            label=f"{name} (mean {values.mean():.3f})",
        )
    ax.set(xlabel=f"{'total' if part == 'entropy' else part} entropy, nats", ylabel="density")
    _legend_above(ax, columns=1)
    return ax


def selective(prediction: Classes, labels: Any, ax: Axes | None = None) -> Axes:
    """Accuracy among the most certain share of the inputs."""
    ax = _axes(ax)
    curve = metrics.selective_accuracy(prediction, labels)
    ax.plot(curve.fraction, curve.accuracy, color=COLOURS[0])
    ax.set(xlabel="share of inputs, most certain first", ylabel="accuracy", xlim=(0, 1))
    return ax


def intervals(
    prediction: Values, targets: Any, ax: Axes | None = None, *, x: Any = None, level: float = 0.9
) -> Axes:
    """Means with intervals, and targets: against one input `x`, or in the order of the means."""
    mean, y = np.ravel(prediction.mean), np.ravel(targets)
    for name, values in (("targets", y), ("x", mean if x is None else np.ravel(x))):
        if len(values) != len(mean):
            raise ValueError(f"{name} has {len(values)} values, and the prediction {len(mean)}; give one for each")
    ax = _axes(ax)
    low, high = (np.ravel(end) for end in prediction.interval(level))
    place = np.ravel(x) if x is not None else np.argsort(np.argsort(mean))
    order = np.argsort(place)
    ax.fill_between(place[order], low[order], high[order], color=COLOURS[0], alpha=0.25, label=f"{level:.0%}")
    ax.plot(place[order], mean[order], color=COLOURS[0], label="mean")
    ax.plot(place, y, ".", color=COLOURS[1], markersize=3, label="targets")
    ax.set(xlabel="x" if x is not None else "rank of the mean", ylabel="y")
    ax.legend(frameon=False)
    return ax


def images(
    x: Any, prediction: Classes, labels: Any = None, ax: Axes | None = None, *, most: bool = True, count: int = 10
) -> Axes:
    """The most certain inputs as images, or the least certain, with prediction and label."""
    pictures = as_images(x)
    if pictures is None:
        raise ValueError(f"x has shape {np.shape(x)}; images have shape (n, height, width[, channels])")
    if len(pictures) != len(prediction.labels):
        raise ValueError(f"x has {len(pictures)} rows, and the prediction {len(prediction.labels)}; predict for x")
    ax = _axes(ax)
    order = np.argsort(prediction.entropy)
    chosen = order[:count] if most else order[::-1][:count]
    ax.imshow(np.concatenate(pictures[chosen], axis=1), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    height, width = pictures.shape[1:3]
    for place, row in enumerate(chosen):
        text = f"{prediction.labels[row]}"
        if labels is not None and int(np.asarray(labels)[row]) != prediction.labels[row]:
            text += f" not {int(np.asarray(labels)[row])}"
        ax.text((place + 0.5) * width, height * 1.12, text, ha="center", va="top")
    ax.set_axis_off()
    return ax


def as_images(x: Any) -> np.ndarray[Any, Any] | None:
    """`x` as (n, height, width[, 3]) in [0, 1], if its rows look like images; else None."""
    x = np.asarray(x, float)
    if x.ndim == 4 and x.shape[-1] == 1:
        x = x[..., 0]
    if x.ndim == 2:  # flat squares of pixels, as 8 x 8 or 28 x 28
        side = round(x.shape[1] ** 0.5)
        if side * side != x.shape[1] or side < 8 or x.min() < 0:
            return None
        x = x.reshape(-1, side, side)
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[-1] != 3) or not np.isfinite(x).all():
        return None
    return (x - x.min()) / max(float(x.max() - x.min()), 1e-12)


def _lines(posterior: Traced, name: str, ax: Axes | None) -> Axes:
    if name not in posterior.trace:
        raise ValueError(
            f"this posterior has no trace of {name}; it has {', '.join(posterior.trace) or 'none'}: "
            f"the tempering and its effective sample size belong to SMC and AIS"
        )
    ax = _axes(ax)
    values = posterior.trace[name]  # (stages, P)
    steps = posterior.trace["step"] if "step" in posterior.trace else np.arange(1, len(values) + 1)
    crowd = values.shape[1] > MANY
    for island in range(values.shape[1]):
        place = steps[:, island] if np.ndim(steps) == 2 else steps
        colour = COLOURS[0] if crowd else COLOURS[island % len(COLOURS)]
        style = "-" if island < len(COLOURS) or crowd else "--"
        alpha = max(0.05, min(1.0, MANY / values.shape[1])) if crowd else 1.0
        ax.plot(place, values[:, island], style, color=colour, alpha=alpha, linewidth=1.2)
    ax.set_xlabel("step" if "step" in posterior.trace else "stage")
    _whole_numbers(ax)
    return ax


def _whole_numbers(ax: Axes) -> None:
    ax.locator_params(axis="x", integer=True)


def _legend_above(ax: Axes, columns: int = 2) -> None:
    """Outside the picture, where it hides nothing."""
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0}
    ax.legend(frameon=False, fontsize="small", ncols=columns, **place)


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("pictures need matplotlib; install it with: pip install 'isles[plot]'") from error
    return pyplot.subplots(layout="constrained")[1]
