"""One fit of bde, in the environment of its own that `make .venv-bde/ready` builds; called by `benchmarks.bde`.

Reads settings from the command line and data from a file; writes what every draw predicts to another. It imports
nothing of isles, and sets the number of devices before JAX is there, as bde asks its users to.
"""

import json
import os
import sys
import time
from importlib import metadata

settings = json.loads(sys.argv[1])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={settings.pop('devices')}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
from bde import BdeRegressor  # noqa: E402
from bde.loss.loss import GaussianNLL  # noqa: E402


def main() -> None:
    """Fit, predict, write."""
    given, written = sys.argv[2:]
    data = np.load(given)
    start = time.perf_counter()
    model = BdeRegressor(loss=GaussianNLL(), **settings).fit(data["x_train"], data["y_train"])
    raw = np.asarray(model.predict(data["x_test"], raw=True), np.float64)  # (members, draws, rows, 2)
    seconds = time.perf_counter() - start
    raw = raw.reshape(-1, *raw.shape[2:])
    stds = np.asarray(jax.nn.softplus(raw[..., 1]), np.float64) + 1e-6
    trained = [len(member["trainloss"]) for member in model.history().values()]
    names = ["sklearn-contrib-bde", "blackjax", "jax"]
    versions = [f"{name} {metadata.version(name)}" for name in names]
    np.savez(
        written,
        means=raw[..., 0],
        stds=stds,
        seconds=seconds,
        trained=np.sum(trained),
        versions=", ".join(versions),
    )


if __name__ == "__main__":
    main()
