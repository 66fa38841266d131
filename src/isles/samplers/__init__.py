"""Samplers: a block of islands and how it advances. Files, clocks and printing live in `run`."""

from isles.samplers.ais import AIS, neal_schedule
from isles.samplers.mcmc import MCMC
from isles.samplers.mpmcmc import MPMCMC
from isles.samplers.smc import SMC

__all__ = ["AIS", "MCMC", "MPMCMC", "SMC", "neal_schedule"]
