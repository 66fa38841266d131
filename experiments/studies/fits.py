"""Fits of straight lines on logarithmic scales, by least squares."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class PowerLaw(NamedTuple):
    """log MSE = C − log N − a log M, with how far it is from what was measured."""

    exponent: float  # a
    constant: float  # C, on the scale of natural logarithms
    mse: float  # mean squared difference of predicted and measured MSE
    mape: float  # mean absolute difference in per cent of the measured
    cells: int


def power_law(particles: Any, mutations: Any, mse: Any) -> PowerLaw:
    """The paper's fit: Y = log MSE + log N against X = log M, as Y = C − aX.

    >>> n, m = np.meshgrid([100, 200], [16, 64, 256])
    >>> round(power_law(n, m, 3 / (n * m**0.4)).exponent, 6)
    0.4
    """
    n, m, measured = (np.ravel(np.asarray(values, np.float64)) for values in (particles, mutations, mse))
    slope, constant = np.polyfit(np.log(m), np.log(measured) + np.log(n), 1)
    predicted = np.exp(constant + slope * np.log(m)) / n
    return PowerLaw(
        exponent=float(-slope),
        constant=float(constant),
        mse=float(np.mean((predicted - measured) ** 2)),
        mape=float(100 * np.mean(np.abs(predicted / measured - 1))),
        cells=n.size,
    )


def slope(x: Any, y: Any) -> float:
    """Of log y against log x."""
    return float(np.polyfit(np.log(np.asarray(x, np.float64)), np.log(np.asarray(y, np.float64)), 1)[0])
