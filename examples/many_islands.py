"""2¹⁴ islands of 4 particles as one program: how long, and what the island weights do about so few particles.

Run: python examples/many_islands.py
"""

import time
import warnings

import numpy as np

import isles


def main(islands=2**14):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 16))
    y = x @ np.ones(16) + rng.normal(size=32)
    prior = isles.Gaussian(like=np.zeros(16))
    problem = isles.regression(lambda theta, x: x @ theta, prior, x, y, noise_std=1.0)
    sampler = isles.SMC(isles.HMC(leapfrogs=10), particles=4, mutations=5)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isles.IslesWarning)  # few islands carry the weight: N = 4 is too small
        posterior = isles.sample(problem, sampler, islands=islands, islands_per_block=islands)
    seconds = time.perf_counter() - start
    exact = np.linalg.solve(np.eye(16) + x.T @ x, x.T @ y)
    error = lambda posterior: float(np.mean((posterior.mean() - exact) ** 2))
    print(f"{islands} islands x 4 particles: {seconds:.0f} s, {posterior.epochs.total / seconds:.2g} epochs/s")
    print(f"island ESS {posterior.island_ess:.0f}")
    print(f"mean squared error, weighted by evidence {error(posterior):.2e}")
    print(f"mean squared error, equal weights        {error(posterior.with_weights('equal')):.2e}")


if __name__ == "__main__":
    main()
