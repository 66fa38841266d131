"""isles: Bayesian deep learning by parallel SMC and parallel MCMC, methods that converge to the truth.

A problem (prior × likelihood over data) and a sampler (SMC, MCMC, AIS, built on a kernel) go into `sample`,
which runs P independent islands and returns a `Posterior`.
"""

from importlib.metadata import version as _version

from isles import baselines, diagnostics, metrics, models
from isles.adapt import Decorrelate
from isles.checks import DeadIslandsError, DeadWorkerError, IslesWarning
from isles.chunks import tune
from isles.devices import mesh
from isles.kernels import HMC, MALA, MH, PCN, Info, Kernel, Tuning
from isles.kernels.base import accept
from isles.likelihoods import classification, regression
from isles.posterior import Epochs, Estimate, Posterior, load
from isles.predictions import Classes, DrawClasses, DrawValues, Values
from isles.priors import Gaussian
from isles.problem import Problem, State
from isles.run import sample
from isles.samplers import AIS, MCMC, SMC, neal_schedule

__version__ = _version("isles")

__all__ = [
    "AIS",
    "HMC",
    "MALA",
    "MCMC",
    "MH",
    "PCN",
    "SMC",
    "Classes",
    "DeadIslandsError",
    "DeadWorkerError",
    "Decorrelate",
    "DrawClasses",
    "DrawValues",
    "Epochs",
    "Estimate",
    "Gaussian",
    "Info",
    "IslesWarning",
    "Kernel",
    "Posterior",
    "Problem",
    "State",
    "Tuning",
    "Values",
    "accept",
    "baselines",
    "classification",
    "diagnostics",
    "load",
    "mesh",
    "metrics",
    "models",
    "neal_schedule",
    "regression",
    "sample",
    "tune",
]
