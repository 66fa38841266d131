"""The scikit-learn estimators: scikit-learn's own checks, and padding that changes nothing."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import isles

# few particles and short trajectories: the checks are about behaviour, and there are a hundred fits of them
QUICK = {"hidden": (8,), "particles": 16, "mutations": 4, "leapfrogs": 8, "islands": 1, "random_state": 0}


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # so few particles deserve warnings
@parametrize_with_checks([isles.IslesClassifier(**QUICK), isles.IslesRegressor(**QUICK)])
def test_scikit_learns_own_checks(estimator, check) -> None:
    check(estimator)
