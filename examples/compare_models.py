"""Which model? The evidence of polynomials of several degrees, beside its exact value.

Run: python examples/compare_models.py
"""

import numpy as np

import isles

NOISE = 0.3


def exact_log_evidence(features, y):
    """y ~ N(0, features·featuresᵀ + noise² I) when the coefficients are standard normal."""
    covariance = features @ features.T + NOISE**2 * np.eye(len(y))
    log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
    return -0.5 * (y @ np.linalg.solve(covariance, y) + log_det)


def line(coefficients, features):
    return features @ coefficients


def main(degrees=range(1, 6)):
    rng = np.random.default_rng(0)
    x = np.linspace(-1, 1, 30)
    y = 1 - 2 * x + 1.5 * x**2 + NOISE * rng.normal(size=30)  # the truth has degree 2
    sampler = isles.SMC(isles.HMC(leapfrogs=10), particles=128, mutations=5)
    prior = isles.Gaussian(like=np.zeros(max(degrees) + 1))
    found = {}
    print("degree   log evidence       exact")
    for degree in degrees:
        features = np.vander(x, max(degrees) + 1, increasing=True)
        # a coefficient without a feature leaves the evidence as it is, and equal shapes share a compiled program
        features[:, degree + 1 :] = 0
        posterior = isles.sample(isles.regression(line, prior, features, y, noise_std=NOISE), sampler, islands=8)
        found[degree] = posterior.log_evidence
        error = posterior.log_evidence_standard_error
        print(f"{degree:6}  {posterior.log_evidence:6.2f} ± {error:.2f}  {exact_log_evidence(features, y):10.2f}")
    total = np.logaddexp.reduce(list(found.values()))
    print("probabilities:", {degree: round(float(np.exp(value - total)), 2) for degree, value in found.items()})


if __name__ == "__main__":
    main()
