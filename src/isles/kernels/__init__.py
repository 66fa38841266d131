"""Markov kernels, one file each: how a particle moves. Loops over stages and islands live in `samplers`."""

from isles.kernels.base import Info, Kernel, Tuning
from isles.kernels.ensemble import DE, Stretch
from isles.kernels.hmc import HMC
from isles.kernels.mala import MALA
from isles.kernels.mh import MH
from isles.kernels.pcn import PCN
from isles.kernels.smmala import SmMALA

__all__ = ["DE", "HMC", "MALA", "MH", "PCN", "Info", "Kernel", "SmMALA", "Stretch", "Tuning"]
