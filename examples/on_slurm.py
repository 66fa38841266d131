"""A run as a SLURM job array: writes the job files, and runs the first task here. Needs no SLURM for that.

Run: python examples/on_slurm.py
"""

import sys
from pathlib import Path

from isles.cli import main as isles_command

PROBLEM = """
import numpy as np, isles


def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 4))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    network = isles.models.MLP(inputs=4, hidden=(6,), outputs=2, activation="tanh")
    return isles.classification(network.apply, isles.Gaussian(like=network.shapes()), x, y)
"""


def isles(line):
    """What a shell would do with `isles ...`."""
    print(f"\n$ isles {line}", flush=True)
    isles_command(line.split())


def main():
    Path("slurm_problem.py").write_text(PROBLEM)  # tasks import the problem, from the folder of the command
    sys.path.append(str(Path.cwd()))
    settings = "--islands 16 --islands-per-block 4 --particles 32 --leapfrogs 5 --mutations 5"
    isles(f"slurm runs/array slurm_problem:problem {settings} --time 2:00:00 --mem 2G")
    print("\n$ cat runs/array/slurm/array.sh\n" + Path("runs/array/slurm/array.sh").read_text())
    isles("block runs/array 0")  # what the array's first task does, and a job of any other scheduler could
    isles("status runs/array")


if __name__ == "__main__":
    main()
