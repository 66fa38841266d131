"""Draws docs/images/uncertainty.png, the picture of the README, from the README's own example.

Run: python scripts/draw_readme.py
"""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import isles

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run the example, then draw its prediction and its islands."""
    example: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0], example)
    x, y, posterior = example["x"], example["y"], example["posterior"]
    grid = np.linspace(-4, 4, 161)[:, None]
    prediction = posterior.predict(grid)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), width_ratios=(3, 2), layout="constrained", dpi=110)
    for level, alpha in ((0.9, 0.2), (0.5, 0.35)):
        low, high = (np.ravel(end) for end in prediction.interval(level))
        left.fill_between(grid[:, 0], low, high, color=isles.plot.COLOURS[0], alpha=alpha, linewidth=0)
    left.plot(grid, prediction.mean, color=isles.plot.COLOURS[0])
    left.plot(x, y, ".", color=isles.plot.COLOURS[1], markersize=4)
    left.set(xlim=(-4, 4), ylim=(-4, 5), title="a prediction that knows where it has no data")
    isles.plot.island_evidence(posterior, right)
    right.get_legend().remove()
    right.set_title("evidences of islands, and combined")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "images" / "uncertainty.png")


if __name__ == "__main__":
    main()
