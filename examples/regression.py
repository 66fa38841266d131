"""Regression with uncertainty: diabetes progression, with intervals that hold what they promise.

Run: python examples/regression.py
"""

import warnings

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import isles


def main():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isles.IslesWarning)  # of a few divergent trajectories, which were rejected
        model = isles.IslesRegressor(hidden=(8,), noise="learned", random_state=0).fit(X_train, y_train)

    mean, std = model.predict(X_test, return_std=True)
    print(f"root mean squared error {isles.metrics.rmse(mean, y_test):.1f}, of the mean {y_test.std():.1f}")
    for level, width in {0.5: 0.674, 0.9: 1.645}.items():
        share = isles.metrics.coverage(mean - width * std, mean + width * std, y_test)
        print(f"{level:.0%} intervals hold {share:.0%} of {len(y_test)} patients")

    unusual = np.median(X_train, axis=0)
    unusual[2] = 80.0  # a body mass index that is not in the data
    for name, patient in {"the median patient": np.median(X_train, axis=0), "an unusual one": unusual}.items():
        (value,), (doubt,) = model.predict([patient], return_std=True)
        print(f"{name:18} {value:.0f} ± {doubt:.0f}")


if __name__ == "__main__":
    main()
