"""Every picture shows the numbers it was given, and bad input is refused before anything is drawn."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import isles
import targets
from isles import plot
from isles.predictions import Classes

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, size=50)


@pytest.fixture(scope="module")
def posterior(small: targets.Conjugate) -> isles.Posterior:
    return isles.sample(small.problem, isles.SMC(isles.HMC(leapfrogs=4), particles=64), islands=3)


@pytest.fixture
def ax() -> Any:
    return Figure().subplots()


def classes(rows: int = 50, seed: int = 1) -> Classes:
    """A prediction whose entropies are those of a mixture."""
    draws = np.random.default_rng(seed).dirichlet(np.ones(3), size=(4, rows))
    mixed = draws.mean(axis=0)
    entropy = lambda p: -(p * np.log(p)).sum(axis=-1)
    aleatoric = entropy(draws).mean(axis=0)
    return Classes(np.log(mixed), entropy(mixed) - aleatoric, aleatoric)


@pytest.mark.parametrize("name", ["tempering", "ess", "acceptance", "step_size", "log_likelihood"])
def test_traces_are_lines_an_island(name: str, posterior: isles.Posterior, ax: Any) -> None:
    assert getattr(plot, name)(posterior, ax=ax) is ax
    drawn = np.stack([line.get_ydata() for line in ax.lines], axis=1)
    np.testing.assert_array_equal(drawn, posterior.trace[name])
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), np.arange(1, len(drawn) + 1))
    assert ax.get_xlabel() == "stage" and ax.get_ylabel()
    assert ax.get_yscale() == ("log" if name in ("tempering", "step_size") else "linear")


def test_chains_are_drawn_by_step(posterior: isles.Posterior, ax: Any) -> None:
    """And what they do not have is said."""
    steps = np.array([[5.0, 5.0], [10.0, 10.0]])
    chains = dataclasses.replace(
        posterior, trace={"step": steps, "acceptance": np.array([[0.5, 0.6], [0.7, 0.8]])}
    )
    plot.acceptance(chains, ax=ax)
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), [5, 10])
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), [0.6, 0.8])
    assert ax.get_xlabel() == "step"
    with pytest.raises(ValueError, match=r"no trace of tempering; it has step, acceptance"):
        plot.tempering(chains, ax=ax)


def test_many_islands_are_a_crowd(posterior: isles.Posterior, ax: Any) -> None:
    crowd = dataclasses.replace(posterior, trace={"acceptance": np.full((2, 60), 0.5)})
    plot.acceptance(crowd, ax=ax)
    assert len(ax.lines) == 60 and {line.get_color() for line in ax.lines} == {plot.COLOURS[0]}
    assert ax.lines[0].get_alpha() == pytest.approx(12 / 60)


def test_bars_are_island_weights(posterior: isles.Posterior, ax: Any) -> None:
    plot.island_weights(posterior, ax=ax)
    evidence = np.exp(posterior.island_log_evidence - posterior.island_log_evidence.max())
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], evidence / evidence.sum())
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 1 / 3)


def test_points_are_island_evidences(posterior: isles.Posterior, ax: Any) -> None:
    plot.island_evidence(posterior, ax=ax)
    points, combined = ax.lines
    values = posterior.island_log_evidence
    np.testing.assert_array_equal(points.get_ydata(), values)
    np.testing.assert_allclose(combined.get_ydata(), np.log(np.mean(np.exp(values - values[0]))) + values[0])
    (band,) = ax.patches
    assert band.get_height() == pytest.approx(4 * posterior.log_evidence_standard_error)
    with pytest.raises(ValueError, match=r"no evidence: MCMC and baselines estimate none"):
        plot.island_evidence(dataclasses.replace(posterior, island_log_evidence=None), ax=ax)


def test_reliability_bars_are_accuracies(ax: Any) -> None:
    prediction = classes()
    plot.reliability(prediction, LABELS, ax=ax, bins=5)
    confidence = prediction.probabilities.max(axis=1)
    right = prediction.probabilities.argmax(axis=1) == LABELS
    for k, bar in enumerate(ax.patches):
        inside = (confidence > k / 5) & (confidence <= (k + 1) / 5)
        assert bar.get_height() == pytest.approx(right[inside].mean() if inside.any() else 0)
        assert (bar.get_x(), bar.get_width()) == pytest.approx((k / 5, 1 / 5))
    with pytest.raises(ValueError, match=r"labels have shape"):
        plot.reliability(prediction, LABELS[:3], ax=ax)


@pytest.mark.parametrize("part", ["epistemic", "aleatoric", "entropy"])
def test_histograms_hold_the_entropies(part: str, ax: Any) -> None:
    inside, outside = classes(), classes(30, seed=2)
    plot.entropies(inside, outside, ax=ax, part=part)
    for container, prediction in zip(ax.containers, (inside, outside), strict=True):
        edges = [bar.get_x() for bar in container] + [container[-1].get_x() + container[-1].get_width()]
        counted, _ = np.histogram(getattr(prediction, part), edges, density=True)
        np.testing.assert_allclose([bar.get_height() for bar in container], counted)
        assert counted @ np.diff(edges) == pytest.approx(1)  # nothing is left out
    with pytest.raises(ValueError, match=r"part='epistemik' must be one of"):
        plot.entropies(inside, ax=ax, part="epistemik")


def test_selective_accuracy_is_that_of_the_most_certain(ax: Any) -> None:
    prediction = classes()
    plot.selective(prediction, LABELS, ax=ax)
    right = prediction.labels == LABELS
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_xdata(), np.arange(1, 51) / 50)
    by_certainty = right[np.argsort(prediction.entropy)]
    np.testing.assert_allclose(line.get_ydata(), [by_certainty[:count].mean() for count in range(1, 51)])


class Normal:
    """Predictions N(mean, 1)."""

    mean = np.array([2.0, 0.0, 1.0])

    def interval(self, level: float) -> Any:
        assert level == 0.9
        return self.mean - 1.645, self.mean + 1.645


def test_intervals_lie_around_means(ax: Any) -> None:
    plot.intervals(Normal(), [2.5, 0.5, 1.5], ax=ax, x=[30.0, 10.0, 20.0])
    mean, points = ax.lines
    np.testing.assert_array_equal(mean.get_xydata(), [[10, 0], [20, 1], [30, 2]])
    np.testing.assert_array_equal(points.get_xydata(), [[30, 2.5], [10, 0.5], [20, 1.5]])
    corners = ax.collections[0].get_paths()[0].vertices
    assert {(x, round(y, 3)) for x, y in corners} == {
        (x, m + side) for x, m in [(10, 0), (20, 1), (30, 2)] for side in (-1.645, 1.645)
    }
    for wrong in ({"targets": [1.0, 2.0]}, {"targets": [1.0, 2.0, 3.0], "x": [1.0]}):
        with pytest.raises(ValueError, match=r"values, and the prediction 3; give one for each"):
            plot.intervals(Normal(), ax=ax, **wrong)


def test_images_are_the_most_or_least_certain(ax: Any) -> None:
    prediction, x = classes(), RNG.uniform(size=(50, 8, 8, 1))
    plot.images(x, prediction, LABELS, ax=ax, most=False, count=4)
    chosen = np.argsort(-prediction.entropy)[:4]
    shown = np.asarray(ax.images[0].get_array())
    scaled = (x[..., 0] - x.min()) / (x.max() - x.min())
    np.testing.assert_allclose(shown, np.concatenate(scaled[chosen], axis=1))
    labels = [
        f"{p}" if p == y else f"{p} not {y}"
        for p, y in zip(prediction.labels[chosen], LABELS[chosen], strict=True)
    ]
    assert [text.get_text() for text in ax.texts] == labels
    with pytest.raises(ValueError, match=r"x has shape \(50, 3\); images have shape"):
        plot.images(np.zeros((50, 3)), prediction, ax=ax)
    with pytest.raises(ValueError, match=r"x has 7 rows, and the prediction 50"):
        plot.images(x[:7], prediction, ax=ax)


def test_what_looks_like_an_image() -> None:
    flat = plot.as_images(np.tile(np.arange(64.0), (3, 1)))
    assert flat is not None and flat.shape == (3, 8, 8) and (flat.min(), flat.max()) == (0, 1)
    assert plot.as_images(np.zeros((3, 5, 6, 3))).shape == (3, 5, 6, 3)
    for other in (np.zeros((3, 63)), np.full((3, 64), -1.0), np.zeros((3, 5, 5, 2)), np.full((3, 8, 8), np.nan)):
        assert plot.as_images(other) is None


def test_without_axes_a_new_one_is_made(posterior: isles.Posterior) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    made = plot.island_weights(posterior)
    assert len(made.patches) == 3
    pyplot.close(made.figure)
