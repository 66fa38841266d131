"""A kernel of your own: elliptical slice sampling (Murray, Adams and MacKay 2010), tempered, in one function.

Run: python examples/own_kernel.py
"""

from dataclasses import dataclass
from math import pi

import jax
import jax.numpy as jnp
import numpy as np

import isles

MAX_TRIES = 100  # a particle of likelihood zero would search for ever


@dataclass(frozen=True)
class EllipticalSlice(isles.Kernel):
    """Points on the ellipse through the particle and a prior draw; needs a Gaussian prior, nothing to tune."""

    def check(self, problem):
        if not isinstance(problem.prior, isles.Gaussian):
            raise ValueError("EllipticalSlice needs an isles.Gaussian prior")

    def step(self, problem, key, state, tempering, tuning):
        key_prior, key_height, key_angle, key_shrink = jax.random.split(key, 4)
        mean = problem.prior.mean
        other = problem.prior.draw(key_prior) - mean
        log_height = -jax.random.exponential(key_height)
        angle = jax.random.uniform(key_angle, maxval=2 * pi)

        def propose(angle):
            position = mean + (state.position - mean) * jnp.cos(angle) + other * jnp.sin(angle)
            return problem.evaluate(position, gradient=False)

        def too_low(loop):
            new, *_, tries = loop
            return (problem.log_likelihood_ratio(new, state, tempering) < log_height) & (tries < MAX_TRIES)

        def shrink(loop):
            _, angle, low, high, tries = loop
            low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
            angle = jax.random.uniform(jax.random.fold_in(key_shrink, tries), minval=low, maxval=high)
            return propose(angle), angle, low, high, tries + 1

        start = (propose(angle), angle, angle - 2 * pi, angle, 1)
        new, *_, tries = jax.lax.while_loop(too_low, shrink, start)
        found = problem.log_likelihood_ratio(new, state, tempering) >= log_height
        state = jax.tree.map(lambda a, b: jnp.where(found, a, b), new, state)
        return state, isles.Info(acceptance=jnp.ones_like(log_height), evaluations=tries)


def main():
    x = np.random.default_rng(0).normal(size=(50, 3))
    y = x @ [1.0, -1.0, 0.5]
    prior = isles.Gaussian(like=np.zeros(3))
    problem = isles.regression(lambda theta, x: x @ theta, prior, x, y, noise_std=0.5)
    posterior = isles.sample(problem, isles.SMC(EllipticalSlice(), particles=128, mutations=10), islands=8)
    print("mean        ", posterior.mean().round(2))
    print("exact mean  ", np.linalg.solve(np.eye(3) + x.T @ x / 0.25, x.T @ y / 0.25).round(2))
    print("epochs      ", posterior.epochs)


if __name__ == "__main__":
    main()
