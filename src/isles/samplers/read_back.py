"""Is what a file gave a block of this problem and sampler? Its checksum may be right, and its content foreign."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from isles.problem import Problem
from isles.samplers.block import BlockResult, Plan
from isles.samplers.groups import Group, Static, broadcast_tuning, draw_prior, new_group


def due_group(problem: Problem, kernel: Static, islands: int) -> Group:
    """The shapes of all that a group of this problem and kernel holds."""
    keys = jax.eval_shape(jax.random.key, 0)
    keys = jax.ShapeDtypeStruct((islands * kernel.particles,), keys.dtype)
    states = jax.eval_shape(partial(draw_prior, kernel=kernel), problem, keys=keys)
    tuning = broadcast_tuning(kernel.kernel.tuning(problem), islands)
    active = jax.ShapeDtypeStruct((islands,), bool)
    return jax.eval_shape(partial(new_group, kernel=kernel), problem, states=states, tuning=tuning, active=active)


def check_like(name: str, found: Any, due: Any) -> None:
    """Raise if a tree of arrays that was read from a file differs from the one that is due in shape or dtype."""
    facts = lambda tree: [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in jax.tree.leaves(tree)]
    if str(jax.tree.structure(found)) != str(jax.tree.structure(due)) or facts(found) != facts(due):
        raise ValueError(f"{name} holds {str(facts(found))[:300]} where {str(facts(due))[:300]} is due")


def check_arrays(found: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise if what was read from a file are not arrays of numbers in these shapes."""
    for name, shape in shapes.items():
        value = found[name]
        if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind not in "fib":
            raise ValueError(f"{name} is {str(value)[:100]}, where numbers of shape {shape} are due")


def check_records(records: Any, islands: int) -> None:
    """Raise if records that were read from a file are not those of so many islands."""
    if not isinstance(records, (list, tuple)) or any(type(record) is not dict for record in records):
        raise ValueError(f"records are {str(records)[:100]}, where one dict a stage is due")
    for record in records:
        if record.keys() != records[0].keys():
            raise ValueError(f"a record has {list(record)}, another {list(records[0])}")
        check_arrays(record, dict.fromkeys(record, (islands,)))


def check_result(result: Any, islands: int) -> None:
    """Raise if a result that was read from a file is not one of so many islands."""
    if not isinstance(result, BlockResult):
        raise TypeError(f"it holds a {type(result).__name__}")
    if np.ndim(result.log_prior) != 2 or np.ndim(result.epochs) != 2:
        raise ValueError(f"log_prior is {str(result.log_prior)[:100]}, where (islands, draws) are due")
    draws, particles = (islands, result.log_prior.shape[1]), (islands, result.epochs.shape[1])
    shapes = {
        "log_prior": draws, "log_likelihood": draws, "log_weights": draws, "epochs": particles,
        "nonfinite": (islands,), "dead": (islands,), "sum_weights": (islands,),
    }  # fmt: skip
    if result.positions is not None:
        shapes["positions"] = (*draws, *np.shape(result.positions)[2:3])
    if result.log_evidence is not None:
        shapes["log_evidence"] = (islands,)
    check_arrays(vars(result), shapes)
    check_records(result.records, islands)
    plain = isinstance(result.rounding, float) and all(isinstance(text, str) for text in result.warnings)
    if not plain or not isinstance(result.plan, Plan | None) or type(result.sums) is not dict:
        raise ValueError("rounding, warnings, plan or sums are not of their types")
    for leaf in jax.tree.leaves(result.sums):
        check_arrays({"sums": leaf}, {"sums": (islands, *np.shape(leaf)[1:])})
