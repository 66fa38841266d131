"""The promise: one definition gives the same bits under every engine, number of workers and order of blocks."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

import isles
import runs
import targets
from clusters import Cluster
from isles.engines.ledger import Ledger
from kills import assert_same_bits

pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore::isles.IslesWarning")]


def cnn() -> isles.Problem:
    rng = np.random.default_rng(1)
    network = isles.models.CNN()
    images = rng.uniform(size=(50, 28, 28)).astype(np.float32)
    prior = isles.Gaussian(like=network.shapes(), std=0.1)
    return isles.classification(network.apply, prior, images, rng.integers(0, 10, 50))


CASES: dict[str, tuple[Any, Any]] = {
    "gaussian": (runs.problem, isles.SMC(isles.PCN(), particles=16, mutations=isles.Decorrelate(0.1, max=20))),
    "logistic": (lambda: targets.logistic(3, 40), isles.SMC(isles.HMC(leapfrogs=3), particles=16, mutations=3)),
    "cnn": (cnn, isles.SMC(isles.HMC(leapfrogs=1), particles=3, mutations=2, schedule=[0.1, 1.0])),
}


class Backwards:
    """An engine that is given blocks from the last to the first."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.threads = engine, engine.threads

    def run(self, work: Any, folder: Any, ledger: Ledger) -> Any:
        ledger.todo = deque(reversed(ledger.todo))
        return self.engine.run(work, folder, ledger)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("case", CASES)
def test_engines_workers_and_order_do_not_matter(case: str, nodes: Cluster) -> None:
    make, sampler = CASES[case]
    run = lambda engine: isles.sample(make(), sampler, islands=6, islands_per_block=2, seed=8, engine=engine)
    oracle = run("serial")
    assert oracle.positions.shape[:2] == (6, sampler.particles)
    assert len(np.unique(oracle.positions[:, 0, 0])) == 6
    for engine in (
        isles.Local(workers=2),
        Backwards(isles.Local(workers=1)),
        Backwards(isles.Local(workers=3)),
        isles.Ray(address=nodes.address, cpus=1.5),
        Backwards(isles.Ray(address=nodes.address)),
    ):
        assert_same_bits(oracle, run(engine))
