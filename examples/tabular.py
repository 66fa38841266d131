"""Tabular classification in the scikit-learn way: a Bayesian network in a cross-validation, and whom to ask twice.

Run: python examples/tabular.py
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import isles


def main():
    X, y = load_breast_cancer(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=200, random_state=0)
    usual = make_pipeline(StandardScaler(), MLPClassifier(hidden_layer_sizes=(8,), max_iter=2000, random_state=0))
    ours = isles.IslesClassifier(hidden=(8,), random_state=0)
    for name, model in {"one network": usual, "its posterior": ours}.items():
        model.fit(X_train, y_train)
        loss = log_loss(y_test, model.predict_proba(X_test))
        print(f"{name:14} accuracy {model.score(X_test, y_test):.3f}, negative log-likelihood {loss:.3f}")

    entropy, epistemic = ours.predict_entropy(X_test)
    right = ours.predict(X_test) == y_test
    sure = entropy < np.quantile(entropy, 0.8)
    print(
        f"accuracy on the 80 % it is surest of: {right[sure].mean():.3f}, on the rest: {right[~sure].mean():.3f}"
    )
    print(
        f"of the doubt about the rest, more data could remove {epistemic[~sure].sum() / entropy[~sure].sum():.0%}"
    )


if __name__ == "__main__":
    main()
