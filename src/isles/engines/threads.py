"""The number of threads of a block, which has to be known before JAX is imported: XLA's sums depend on it."""

from __future__ import annotations

import os

VARIABLES = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # XLA reads the first


def thread_variables(threads: int) -> dict[str, str]:
    """The environment of a process that computes in so many threads."""
    return dict.fromkeys(VARIABLES, str(threads))


def runs_with(threads: int) -> bool:
    """Whether this process was started for so many threads."""
    return thread_variables(threads).items() <= os.environ.items()
