"""isles: Bayesian deep learning by parallel SMC and parallel MCMC, methods that converge to the truth.

A problem (prior × likelihood over data) and a sampler (SMC, MCMC, AIS, built on a kernel) go into `sample`,
which runs P independent islands and returns a `Posterior`.

Names are imported when they are first used, so that the command line starts without JAX.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isles import diagnostics, models
    from isles.adapt import Decorrelate
    from isles.checks import (
        DamagedFileError,
        DeadIslandsError,
        DeadWorkerError,
        FolderError,
        IslesWarning,
        PartialRunError,
    )
    from isles.chunks import tune
    from isles.devices import mesh
    from isles.engines.local import Local
    from isles.engines.ray import Ray
    from isles.kernels import HMC, MALA, MH, PCN, Info, Kernel, Tuning
    from isles.kernels.base import accept
    from isles.likelihoods import classification, regression
    from isles.planning import Forecast, plan
    from isles.posterior import Epochs, Estimate, Posterior, load
    from isles.priors import Gaussian
    from isles.problem import Problem, State
    from isles.results import merge
    from isles.run import resume, sample
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
    "DamagedFileError",
    "DeadIslandsError",
    "DeadWorkerError",
    "Decorrelate",
    "Epochs",
    "Estimate",
    "FolderError",
    "Forecast",
    "Gaussian",
    "Info",
    "IslesWarning",
    "Kernel",
    "Local",
    "PartialRunError",
    "Posterior",
    "Problem",
    "Ray",
    "State",
    "Tuning",
    "accept",
    "classification",
    "diagnostics",
    "load",
    "merge",
    "mesh",
    "models",
    "neal_schedule",
    "plan",
    "regression",
    "resume",
    "sample",
    "tune",
]

_MODULES = ("diagnostics", "models")
_HOMES = {
    "adapt": ("Decorrelate",),
    "checks": (
        "DamagedFileError",
        "DeadIslandsError",
        "DeadWorkerError",
        "FolderError",
        "IslesWarning",
        "PartialRunError",
    ),
    "chunks": ("tune",),
    "devices": ("mesh",),
    "engines.local": ("Local",),
    "engines.ray": ("Ray",),
    "kernels": ("HMC", "MALA", "MH", "PCN", "Info", "Kernel", "Tuning"),
    "kernels.base": ("accept",),
    "likelihoods": ("classification", "regression"),
    "planning": ("Forecast", "plan"),
    "posterior": ("Epochs", "Estimate", "Posterior", "load"),
    "priors": ("Gaussian",),
    "problem": ("Problem", "State"),
    "results": ("merge",),
    "run": ("resume", "sample"),
    "samplers": ("AIS", "MCMC", "SMC", "neal_schedule"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _import_module(f"isles.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'isles' has no attribute {name!r}")
    value = getattr(_import_module(f"isles.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
