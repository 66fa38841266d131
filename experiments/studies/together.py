"""SMC in several JAX processes at once: on one island that they share, or each on its own. `launch` starts them.

A process is started afresh with its number of threads, compiles first, and times only what comes after.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from experiments.studies.study import ROOT, short

FOUND = "found: "  # before what a process found, on a line of its output
LOOK = 0.05  # seconds between looks at the processes
PATIENCE, SLOWEST = 300.0, 5.0  # seconds to start in, and particle-epochs a second: processes may wait for ever
REPEATS, REDUCTIONS = 10, 20


def launch(job: Mapping[str, Any], processes: int, *, epochs: float, threads: int = 1) -> list[dict[str, Any]]:
    """What each of so many processes finds. If one fails, or takes far too long, all are stopped.

    Args:
        job: what to sample, by `work`.
        processes: how many.
        epochs: of all particles, as expected.
        threads: of each process.
    """
    import isles

    end = time.monotonic() + PATIENCE + epochs / SLOWEST
    call = [sys.executable, "-m", "experiments.studies.together", _free_address(), str(processes)]
    environment = os.environ | {"NPROC": str(threads)}
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(processes)]
        running = [
            subprocess.Popen(
                [*call, str(number), json.dumps(dict(job))],
                stdout=output, stderr=subprocess.STDOUT, cwd=ROOT.parent, env=environment,
            )
            for number, output in enumerate(outputs)
        ]  # fmt: skip
        try:
            codes = [process.poll() for process in running]
            while None in codes and not any(codes) and time.monotonic() < end:
                time.sleep(LOOK)
                codes = [process.poll() for process in running]
        finally:
            for process in running:
                process.kill()  # JAX hears SIGTERM and goes on
                process.wait()
        said = [(output.seek(0), output.read())[1] for output in outputs]
    for number, code in enumerate(codes):
        if code or (code is None and not any(codes)):
            how = f"ended with exit code {code}" if code else "took too long"
            raise RuntimeError(f"process {number} of {processes} {how}:\n{said[number][-2000:]}")
    found = [json.loads(text[text.rindex(FOUND) + len(FOUND) :].splitlines()[0]) for text in said]
    for message in found[0].pop("warnings"):
        warnings.warn(message, isles.IslesWarning, stacklevel=2)
    return found


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def sampler_of(facts: Mapping[str, Any]) -> Any:
    """SMC with trajectories of fixed length, or with `leapfrogs` steps and a schedule that fix the work."""
    import isles

    if "leapfrogs" in facts:
        kernel = isles.HMC(leapfrogs=facts["leapfrogs"], step_size=facts["step_size"])
        schedule = np.linspace(0, 1, facts["stages"] + 1)[1:]
        return isles.SMC(kernel, particles=facts["N"], mutations=1, schedule=schedule)
    kernel = isles.HMC(trajectory=facts["trajectory"], max_leapfrogs=facts["max_leapfrogs"])
    return isles.SMC(kernel, particles=facts["N"], mutations=facts["M"])


def short_of(sampler: Any) -> Any:
    """The same programs with hardly any work: stages of one leapfrog, enough of them to compile all there is."""
    length = {"leapfrogs": 1} if sampler.kernel.trajectory is None else {"trajectory": 1e-9}
    return dataclasses.replace(
        sampler, kernel=dataclasses.replace(sampler.kernel, **length), schedule=[0.25, 0.5, 1.0]
    )


def work(job: Mapping[str, Any]) -> dict[str, Any]:
    """Sample, and time it; inside one of the processes."""
    import jax
    from jax.experimental import multihost_utils

    import isles
    from isles import builtin

    problem = builtin.problem(**job["problem"])  # once: another would be compiled again
    shared = job["shared"] and jax.process_count() > 1
    mesh = isles.mesh() if shared else None
    seed = job["seed"] + (0 if shared else jax.process_index())
    sampler = sampler_of(job)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isles.IslesWarning)
        isles.sample(problem, short_of(sampler), mesh=mesh)  # compiles
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", isles.IslesWarning)
        multihost_utils.sync_global_devices("begin")
        begun, cpu = time.perf_counter(), time.process_time()
        posterior = isles.sample(problem, sampler, seed=seed, mesh=mesh)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    found = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "epochs": posterior.epochs.parallel,
        "particle_epochs": posterior.epochs.total,
        "stages": len(posterior.trace["tempering"]),
        "dimension": posterior.positions.shape[-1],
        "warnings": sorted({str(each.message) for each in caught if each.category is isles.IslesWarning}),
    }
    if job["shared"]:
        found |= exchange_seconds(mesh, job["N"], found["dimension"])
    if "test" in job and jax.process_index() == 0:
        test = isles.data.load(job["problem"]["data"], test=job["test"])
        predicted = posterior.predict(test.x_test)
        found["accuracy"] = 100 * isles.metrics.accuracy(predicted, test.y_test)
        found["nll"] = isles.metrics.nll(predicted, test.y_test)
        found["epistemic"], found["entropy"] = float(predicted.epistemic.mean()), float(predicted.entropy.mean())
    return found


def exchange_seconds(mesh: Any, particles: int, dimension: int) -> dict[str, float]:
    """Medians of what a stage does besides computing, done alone.

    That is to resample positions and gradients, to read N numbers on every host, and, at each leapfrog, to take
    one sum over particles inside a program. With one process these are copies, and no communication.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    def placed(tree: Any, *axes: str) -> Any:
        spec = PartitionSpec(*axes)
        return tree if mesh is None else jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, spec))

    @jax.jit
    def first() -> Any:
        rows = jnp.ones((particles, dimension), jnp.float32)
        return placed((rows, 2 * rows, rows[:, 0]), "particles")

    @jax.jit
    def resample(rows: Any, ancestors: Any) -> Any:
        return placed(jax.tree.map(lambda leaf: leaf[ancestors], rows), "particles")

    @jax.jit
    def read(numbers: Any) -> Any:
        return placed(numbers)

    @jax.jit
    def reduce(numbers: Any) -> Any:
        add = lambda _, numbers: placed(numbers + 1e-6 * numbers.mean(), "particles")
        return jax.lax.fori_loop(0, REDUCTIONS, add, numbers)

    positions, gradients, numbers = first()
    ancestors = np.sort(np.random.default_rng(0).integers(0, particles, particles)).astype(np.int32)

    def median(call: Any) -> float:
        call()  # compiles
        taken = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begun)
        return float(np.median(taken))

    return {
        "resample_seconds": median(lambda: jax.block_until_ready(resample((positions, gradients), ancestors))),
        "read_seconds": median(lambda: np.asarray(read(numbers))),
        "reduce_seconds": median(lambda: jax.block_until_ready(reduce(numbers))) / REDUCTIONS,
    }


def main(arguments: list[str]) -> None:
    """Of one process: the address of the first, how many there are, which one this is, and the job."""
    import jax

    address, processes, number, job = arguments
    if int(processes) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, int(processes), int(number))
    print(f"\n{FOUND}{json.dumps(work(json.loads(job)), default=short)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
