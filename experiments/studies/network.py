"""What communication costs on networks that are not at hand: bytes, messages, latency, bandwidth. No JAX.

Counted in the programs that XLA makes of a stage of SMC whose particles lie on k processes: every process gathers
all positions and gradients before it takes the rows of its own survivors, which is the worst case of resampling;
sums over particles are small, but one is taken at every leapfrog, to see whether any particle goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RESAMPLING = 6  # collectives: position, gradient, log prior, log likelihood, its low bits, whether it is finite
CORRELATION, CORRELATION_SUMS = 2, 5  # collectives, and sums of d numbers in them
READING = 5  # log-likelihoods with their low bits, acceptances, two counters
MUTATION = 3  # whether trajectories were cut, the mean acceptance, and the look that finds no leapfrog left


@dataclass(frozen=True)
class Network:
    """How processes are connected."""

    name: str
    latency: float  # seconds of a small message
    bandwidth: float  # bytes a second that a process receives


NETWORKS = (  # usual figures of MPI: half a round trip, and the nominal bandwidth
    Network("1 GbE", 50e-6, 0.125e9),
    Network("10 GbE", 20e-6, 1.25e9),
    Network("100 Gb InfiniBand", 1.5e-6, 12.5e9),
)


def stage_bytes(particles: int, dimension: int, processes: int, itemsize: int = 4) -> float:
    """That a process receives in a stage: two arrays (N, d) gathered, and d sums by rings."""
    share = (processes - 1) / processes
    return share * itemsize * dimension * (2 * particles + 2 * CORRELATION_SUMS)


def stage_collectives(leapfrogs: float, mutations: int = 1) -> float:
    """Messages to all in a stage."""
    return RESAMPLING + CORRELATION + READING + mutations * (leapfrogs + MUTATION)


def overhead(
    particles: int,
    dimension: int,
    processes: int,
    network: Network,
    *,
    leapfrogs: float,
    epoch_seconds: float,
    mutations: int = 1,
) -> float:
    """Seconds of communication in per cent of those of computing.

    Args:
        particles: of the one sampler, over all processes.
        dimension: d.
        processes: k; a message to all takes ⌈log₂ k⌉ latencies.
        network: between them.
        leapfrogs: L, of a mutation.
        epoch_seconds: that a process takes for one epoch of one particle, on average.
        mutations: M, of a stage.
    """
    computing = particles / processes * mutations * leapfrogs * epoch_seconds
    waiting = stage_collectives(leapfrogs, mutations) * network.latency * math.ceil(math.log2(processes))
    return 100 * (waiting + stage_bytes(particles, dimension, processes) / network.bandwidth) / computing
