"""A mesh over several JAX processes, which talk over sockets of this machine, gives what one process gives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import numpy as np

SCRIPT = """
import json, sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
address, count, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if count > 1:
    jax.distributed.initialize(address, count, number, initialization_timeout=60)
import numpy as np
import isles

rng = np.random.default_rng(0)
x, y = rng.normal(size=(17, 3)), rng.normal(size=17)
prior = isles.Gaussian(like=np.zeros(3))
problem = isles.Problem(prior, lambda theta, batch: -((batch[1] - batch[0] @ theta) ** 2).sum(), (x, y))
free = isles.Problem(prior, lambda theta: -((theta - 1) ** 2).sum())
adaptive = isles.SMC(isles.HMC(trajectory=0.5, mass="population"), particles=8, mutations=3)
ais = isles.AIS(isles.PCN(), particles=8, schedule=[0.5, 1.0])
found = []
for target, sampler, shape in [(problem, adaptive, (2, 2)), (free, ais, (4, 1))]:
    mesh = isles.mesh(*shape)
    posterior = isles.sample(target, sampler, islands=2, seed=1, mesh=mesh, collect={"sum": lambda t: t.sum()})
    found.append({
        "owners": len({device.process_index for device in mesh.devices.flat}),
        "positions": posterior.positions, "log_prior": posterior.log_prior,
        "log_likelihood": posterior.log_likelihood, "evidence": posterior.island_log_evidence,
        "tempering": posterior.trace["tempering"], "step_size": posterior.trace["step_size"],
        "epochs": list(posterior.epochs), "sum": posterior.collected["sum"].value,
    })
if count > 1:
    said = []
    for more in [
        {"folder": "runs"}, {"max_seconds": 9.0}, {"engine": "local"}, {"seed": number},
        {"sampler": isles.MCMC(isles.HMC(), chains=8)},
        {"mesh": isles.mesh(devices=jax.devices()[2 - 2 * number:][:2])},
    ]:
        try:
            isles.sample(**({"problem": free, "sampler": ais, "mesh": isles.mesh()} | more))
            said.append("")
        except ValueError as error:
            said.append(str(error))
    found.append(said)
print(json.dumps(found, default=lambda array: np.asarray(array, np.float64).tolist()))
"""
PATIENCE = 120.0  # seconds after which processes that wait for each other are killed


def answers(count: int) -> list[list[dict[str, object]]]:
    """What each of so many processes says."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    # four devices in all; programs are small, and compiling them well takes longer than running them
    flags = f"--xla_force_host_platform_device_count={4 // count} --xla_backend_optimization_level=0"
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, address, str(count), str(number)],
            env=os.environ | {"XLA_FLAGS": flags}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(count)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()  # JAX hears SIGTERM and goes on
    assert [process.returncode for process in processes] == [0] * count, said
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def test_processes_that_share_an_island() -> None:
    """The same on every process, that of one process within rounding, and errors where it cannot be."""
    (*first, refused), (*second, refused_there) = answers(2)
    (alone,) = answers(1)
    assert first == second
    assert len(first) == len(alone) == 2
    for together, one in zip(first, alone, strict=True):
        assert together.pop("owners") == 2 and one.pop("owners") == 1
        assert together.keys() == one.keys()
        assert together["epochs"] == one["epochs"]
        for name, values in one.items():
            np.testing.assert_allclose(together[name], values, rtol=0, atol=1e-3, err_msg=name)
    for number, said in enumerate((refused, refused_there)):
        folder, seconds, engine, seed, sampler, elsewhere = said
        assert "folder='runs' is for runs of one process" in folder
        assert "take max_epochs" in seconds
        assert "leave one out" in engine
        assert "process 1 calls isles.sample with another problem or other settings" in seed
        assert "runs SMC and AIS, not MCMC" in sampler
        assert f"processes [{1 - number}], this is process {number} of 2" in elsewhere
