"""How the bias of the evidence falls with the particles N of an island: Ẑ/Z − 1 on a Gaussian of known Z.

Frozen kernels that move each particle by itself have none. Adaptive ones, and ensembles, have one of order 1/N.
Run as `python experiments/evidence_bias.py [islands at N = 32 [name of a sampler ...]]`.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings

import numpy as np

import isles

SIZES = (32, 128, 512)
SAMPLERS = {
    "HMC, frozen": isles.SMC(isles.HMC(leapfrogs=5), mutations=3),
    "HMC, frozen, waste-free": isles.SMC(isles.HMC(leapfrogs=5), mutations=3, waste_free=True),
    "HMC, adaptive": isles.SMC(isles.HMC(leapfrogs=5), mutations=3),
    "HMC, adaptive, mass from particles": isles.SMC(isles.HMC(leapfrogs=5, mass="population"), mutations=3),
    "HMC, adaptive, waste-free": isles.SMC(isles.HMC(leapfrogs=5), mutations=3, waste_free=True),
    "HMC, Decorrelate": isles.SMC(isles.HMC(leapfrogs=5), mutations=isles.Decorrelate(max=20)),
    "HMC, WhileFalling": isles.SMC(isles.HMC(leapfrogs=5), mutations=isles.WhileFalling(max=20)),
    "SmMALA, adaptive": isles.SMC(isles.SmMALA(), mutations=5),
    "Stretch": isles.SMC(isles.Stretch(), mutations=20),
    "DE": isles.SMC(isles.DE(), mutations=20),
    "Stretch, frozen": isles.SMC(isles.Stretch(), mutations=20),
}


def problem() -> tuple[isles.Problem, float]:
    """y = Xθ + noise in 4 dimensions, and its log evidence in closed form."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(8, 4))
    y = x @ np.ones(4) + rng.normal(size=8)
    marginal = np.eye(8) + x @ x.T
    log_evidence = -0.5 * (y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(2 * np.pi * marginal)[1])
    return isles.regression(
        lambda w, x: x @ w, isles.Gaussian(like=np.zeros(4)), x, y, noise_std=1.0
    ), log_evidence


def relative_bias(name: str, particles: int, islands: int) -> tuple[float, float]:
    """Mean of Ẑ/Z − 1 over islands, and its standard error."""
    case, truth = problem()
    sampler = dataclasses.replace(SAMPLERS[name], particles=particles)
    if "frozen" in name:
        pilot = isles.sample(case, dataclasses.replace(sampler, particles=512), seed=1)
        sampler = sampler.frozen(pilot)
    posterior = isles.sample(case, sampler, islands=islands, seed=2)
    ratios = np.exp(posterior.island_log_evidence - truth) - 1
    return float(ratios.mean()), float(ratios.std(ddof=1) / np.sqrt(islands))


def main() -> None:
    """Print the table."""
    islands = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
    warnings.simplefilter("ignore", isles.IslesWarning)
    print(f"{'Ẑ/Z − 1':36s}" + "".join(f"{f'N = {size}':>20s}" for size in SIZES))
    for name in sys.argv[2:] or SAMPLERS:
        found = [relative_bias(name, size, islands * SIZES[0] // size) for size in SIZES]
        print(f"{name:36s}" + "".join(f"{f'{bias:+.4f} ± {error:.4f}':>20s}" for bias, error in found), flush=True)


if __name__ == "__main__":
    main()
