"""The same run on a Ray cluster: blocks of islands on its nodes, with the bits of a run on one machine.

Run: python examples/on_ray.py [host:port]; without an address, RAY_ADDRESS or a cluster on this machine is used.
"""

import sys

import numpy as np

import isles


def main(address=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 4))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    network = isles.models.MLP(inputs=4, hidden=(6,), outputs=2, activation="tanh")
    problem = isles.classification(network.apply, isles.Gaussian(like=network.shapes()), x, y)
    sampler = isles.SMC(isles.HMC(leapfrogs=5), particles=32, mutations=10)
    run = {"islands": 4, "islands_per_block": 2, "seed": 0}

    there = isles.sample(problem, sampler, engine=isles.Ray(cpus=1, address=address), folder="runs/ray", **run)
    here = isles.sample(problem, sampler, engine="serial", **run)
    print("log evidence on Ray ", there.log_evidence)
    print("log evidence here   ", here.log_evidence)
    print("the same bits       ", bool((there.positions == here.positions).all()))


if __name__ == "__main__":
    main(*sys.argv[1:])
