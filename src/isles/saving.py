"""A posterior as tensors and plain facts, for files: functions are never written to disk.

The networks of `isles.models` are described by their settings and come back by themselves; a user's own function
comes back when it is given to `isles.load`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np

from isles import models, store
from isles.layout import Params
from isles.likelihoods import Apply, Bernoulli, Categorical, GaussianNoise, Likelihood
from isles.samplers.block import Plan
from isles.store.trees import describe_layout, read_layout

if TYPE_CHECKING:
    from isles.posterior import Posterior
    from isles.problem import Problem

ROUNDING = 2e-3  # of a log-likelihood and its rows, on other devices or with products in fewer bits
NETWORKS: dict[str, Any] = {"MLP": models.MLP, "CNN": models.CNN}


@dataclass(frozen=True)
class Missing:
    """Stands for a function that a file could not hold; calling it says how to bring the function back."""

    what: str
    remedy: str

    def __call__(self, *_: Any) -> NoReturn:
        """Raise."""
        raise ValueError(f"this posterior was read from a file, which cannot hold {self.what}; {self.remedy}")


NETWORK = Missing("your network", "give it back: isles.load(path, apply=...), or isles.load(path, problem=...)")
NOISE = Missing("your noise_std function", "give the problem back: isles.load(path, problem=...)")


def pack(posterior: Posterior) -> tuple[store.Tensors, dict[str, Any]]:
    """Everything but functions."""
    tensors: store.Tensors = {}
    facts: dict[str, Any] = {"format": 1, "likelihood": describe(posterior.likelihood)}
    facts["layout"] = describe_layout(posterior.layout)
    facts["sums"] = {
        name: store.pack(f"sums/{name}", tree, tensors) for name, tree in posterior.island_sums.items()
    }
    for name, structure in facts["sums"].items():
        if structure is None:
            raise ValueError(
                f"collect[{name!r}] returned a structure that a file cannot hold; "
                f"return numbers in dicts, lists and tuples"
            )
    for field in dataclasses.fields(posterior):
        value = getattr(posterior, field.name)
        if isinstance(value, np.ndarray):
            tensors[field.name] = value
        elif field.name not in ("layout", "trace", "island_sums", "plan", "likelihood"):
            facts[field.name] = value
    tensors |= {f"trace/{name}": values for name, values in posterior.trace.items()}
    if posterior.plan is not None:
        plan = {field.name: getattr(posterior.plan, field.name) for field in dataclasses.fields(Plan)}
        tensors |= {f"plan/{name}": value for name, value in plan.items() if isinstance(value, np.ndarray)}
        facts["plan"] = {name: value for name, value in plan.items() if not isinstance(value, np.ndarray)}
    return tensors, facts


def unpack(tensors: store.Tensors, facts: dict[str, Any], like: Params = None) -> dict[str, Any]:
    """The posterior's fields; the likelihood is left out."""
    group = lambda prefix: {
        name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)
    }
    special = ("layout", "sums", "plan", "format", "likelihood")
    arrays = {name: tensor for name, tensor in tensors.items() if "/" not in name}
    plan, chain_shape = facts.get("plan"), facts["chain_shape"]
    return {
        **{name: value for name, value in facts.items() if name not in special},
        **arrays,
        "layout": read_layout(facts["layout"], like),
        "trace": group("trace/"),
        "island_sums": {name: store.unpack(f"sums/{name}", tree, tensors) for name, tree in facts["sums"].items()},
        "chain_shape": None if chain_shape is None else tuple(chain_shape),
        "plan": Plan(**(plan | group("plan/"))) if plan else None,
        "missing": tuple(facts["missing"]),
        "warnings": tuple(facts["warnings"]),
    }


def check_problem(posterior: Posterior, problem: Problem) -> None:
    """Raise if a draw has another likelihood under the problem than it had when it was drawn.

    One evaluation. Other machines round otherwise, so small differences are let pass.
    """
    alive = np.argwhere(np.isfinite(posterior.log_likelihood) & np.isfinite(posterior.log_weights))
    if posterior.positions is None or not len(alive):
        return
    island, draw = alive[0]
    had = float(posterior.log_likelihood[island, draw])
    position = jax.numpy.asarray(posterior.positions[island, draw], problem.dtype)
    has = float(problem.evaluate(position, gradient=False).log_likelihood)
    if not abs(has - had) <= ROUNDING * (abs(had) + problem.rows + 1):
        raise ValueError(
            f"problem= gives a draw the log-likelihood {has:.6g}, which had {had:.6g} when it was drawn: its "
            f"network, noise or data are not those of the run; give the problem that was sampled, or its network "
            f"alone as apply="
        )


def describe(likelihood: Likelihood | None) -> dict[str, Any] | None:
    """A likelihood as JSON; functions that are not those of `isles.models` are left out."""
    if likelihood is None:
        return None
    facts: dict[str, Any] = {
        "kind": type(likelihood).__name__,
        "inputs": list(likelihood.inputs),
        "network": describe_network(likelihood.apply),
    }
    if isinstance(likelihood, Categorical):
        facts["classes"] = likelihood.classes
    if isinstance(likelihood, GaussianNoise):
        facts["targets"] = list(likelihood.targets)
        facts["noise_std"] = None if callable(likelihood.noise_std) else likelihood.noise_std
    return facts


def rebuild(facts: dict[str, Any] | None, apply: Apply | None = None) -> Likelihood | None:
    """The inverse of `describe`, with the user's own `apply` where there is one."""
    if facts is None:
        if apply is not None:
            raise ValueError(
                "apply= was given, but this posterior's log_likelihood is not one of isles; pass problem= instead"
            )
        return None
    apply = apply or rebuild_network(facts["network"]) or NETWORK
    inputs = tuple(facts["inputs"])
    match facts["kind"]:
        case "Categorical":
            return Categorical(apply, inputs, facts["classes"])
        case "Bernoulli":
            return Bernoulli(apply, inputs)
        case "GaussianNoise":
            noise = NOISE if facts["noise_std"] is None else facts["noise_std"]
            return GaussianNoise(apply, noise, inputs, tuple(facts["targets"]))
    raise ValueError(f"the file holds a likelihood of kind {facts['kind']!r}, which this version of isles lacks")


def describe_network(apply: Apply) -> dict[str, Any] | None:
    """A network of `isles.models`, or its method, as JSON; None for any other function."""
    network: Any = getattr(apply, "__self__", apply)
    method = getattr(apply, "__name__", "apply")
    name = type(network).__name__
    if type(network) is not NETWORKS.get(name) or method not in ("apply", "plain"):
        return None
    settings = {field.name: getattr(network, field.name) for field in dataclasses.fields(network)}
    return {"name": name, "method": method, "settings": settings}


def rebuild_network(facts: dict[str, Any] | None) -> Apply | None:
    """The inverse of `describe_network`."""
    if facts is None:
        return None
    if facts["name"] not in NETWORKS:
        raise ValueError(f"the file holds a network {facts['name']!r}, which this version of isles lacks")
    return getattr(NETWORKS[facts["name"]](**facts["settings"]), facts["method"])
