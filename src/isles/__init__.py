"""isles: Bayesian deep learning by parallel SMC and parallel MCMC, methods that converge to the truth.

A problem (prior × likelihood over data) and a sampler (SMC, MCMC, AIS, built on a kernel) go into `sample`,
which runs P independent islands and returns a `Posterior`.

Names are imported when they are first used, so that the command line starts without JAX.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isles import baselines, data, diagnostics, metrics, models, plot
    from isles.adapt import Decorrelate, WhileFalling
    from isles.adapters import from_equinox, from_linen, from_nnx
    from isles.ascent import Optimised
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
    from isles.estimators import IslesClassifier, IslesRegressor
    from isles.kernels import DE, HMC, MALA, MH, PCN, Info, Kernel, SmMALA, Stretch, Tuning
    from isles.kernels.base import accept
    from isles.likelihoods import classification, regression
    from isles.planning import Forecast, plan
    from isles.posterior import Epochs, Estimate, Posterior
    from isles.predictions import Classes, DrawClasses, DrawValues, Values
    from isles.priors import Gaussian
    from isles.problem import Problem, State
    from isles.reports import report
    from isles.results import load, merge
    from isles.run import resume, sample
    from isles.samplers import AIS, MCMC, MPMCMC, SMC, neal_schedule

__version__ = _version("isles")

__all__ = [
    "AIS",
    "DE",
    "HMC",
    "MALA",
    "MCMC",
    "MH",
    "MPMCMC",
    "PCN",
    "SMC",
    "Classes",
    "DamagedFileError",
    "DeadIslandsError",
    "DeadWorkerError",
    "Decorrelate",
    "DrawClasses",
    "DrawValues",
    "Epochs",
    "Estimate",
    "FolderError",
    "Forecast",
    "Gaussian",
    "Info",
    "IslesClassifier",
    "IslesRegressor",
    "IslesWarning",
    "Kernel",
    "Local",
    "Optimised",
    "PartialRunError",
    "Posterior",
    "Problem",
    "Ray",
    "SmMALA",
    "State",
    "Stretch",
    "Tuning",
    "Values",
    "WhileFalling",
    "accept",
    "baselines",
    "classification",
    "data",
    "diagnostics",
    "from_equinox",
    "from_linen",
    "from_nnx",
    "load",
    "merge",
    "mesh",
    "metrics",
    "models",
    "neal_schedule",
    "plan",
    "plot",
    "regression",
    "report",
    "resume",
    "sample",
    "tune",
]

_MODULES = ("baselines", "data", "diagnostics", "metrics", "models", "plot")
_HOMES = {
    "adapt": ("Decorrelate", "WhileFalling"),
    "adapters": ("from_equinox", "from_linen", "from_nnx"),
    "ascent": ("Optimised",),
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
    "estimators": ("IslesClassifier", "IslesRegressor"),
    "kernels": ("DE", "HMC", "MALA", "MH", "PCN", "Info", "Kernel", "SmMALA", "Stretch", "Tuning"),
    "kernels.base": ("accept",),
    "likelihoods": ("classification", "regression"),
    "posterior": ("Epochs", "Estimate", "Posterior"),
    "predictions": ("Classes", "DrawClasses", "DrawValues", "Values"),
    "planning": ("Forecast", "plan"),
    "priors": ("Gaussian",),
    "problem": ("Problem", "State"),
    "reports": ("report",),
    "results": ("load", "merge"),
    "run": ("resume", "sample"),
    "samplers": ("AIS", "MCMC", "MPMCMC", "SMC", "neal_schedule"),
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
