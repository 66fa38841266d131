"""A run as a SLURM job array: each task runs some blocks, and a job that depends on all of them merges them.

A task is told by SIGUSR1 that its time is about to end: it writes a checkpoint and asks SLURM to queue it again.
One that was killed goes on from its newest checkpoint when it is submitted again.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from isles import checks
from isles.engines.threads import thread_variables
from isles.store import files
from isles.store.folder import RunFolder

# minutes, minutes:seconds, hours:minutes:seconds, and days-hours with or without the rest
TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
MEMORY = re.compile(r"\d+(\.\d+)?[KMGT]?B?", re.IGNORECASE)


@dataclass(frozen=True)
class Slurm:
    """What SLURM is asked for.

    Args:
        time: limit of a task, as `"2:00:00"`; the partition's by default.
        partition: where tasks run.
        mem: memory of a task, as `"4G"`.
        sbatch: further options of sbatch, for the merge job too.
        setup: lines of shell before Python starts.
        blocks_per_task: blocks that a task runs one after another.
        at_once: tasks that run at a time.
        grace_seconds: how long before its time limit a task is told to write a checkpoint.
        dependency: `"afterany"`: the merge job runs when all tasks have ended, and says which blocks are missing;
            `"afterok"`: only if all have ended well.
    """

    time: str | None = None
    partition: str | None = None
    mem: str | None = None
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    blocks_per_task: int = 1
    at_once: int | None = None
    grace_seconds: int = 120
    dependency: str = "afterany"

    def __post_init__(self) -> None:
        if self.time is not None and not TIME.fullmatch(self.time):
            raise ValueError(f"time={self.time!r} must be like 90 (minutes), 2:00:00 or 1-12:00:00")
        if self.mem is not None and not MEMORY.fullmatch(self.mem):
            raise ValueError(f"mem={self.mem!r} must be like 500M or 4G")
        checks.count("blocks_per_task", self.blocks_per_task)
        checks.count("grace_seconds", self.grace_seconds)
        if self.at_once is not None:
            checks.count("at_once", self.at_once)
        checks.choice("dependency", self.dependency, ["afterany", "afterok"])
        for line in (*self.sbatch, *self.setup, self.partition or ""):
            if any(sign in line for sign in "\n\r\0"):
                raise ValueError(f"{line!r} must be one line")
        for option in self.sbatch:
            if not option.startswith("-"):
                raise ValueError(f"sbatch={option!r} must be an option of sbatch, as --gres=gpu:1")
            if option.startswith(("--array", "-a", "--signal")):
                raise ValueError(f"sbatch={option!r} is set by isles; use blocks_per_task, at_once, grace_seconds")


class Scripts(NamedTuple):
    """What was written, to be submitted."""

    array: Path
    merge: Path
    tasks: int

    def commands(self, dependency: str) -> tuple[str, str]:
        """What to type."""
        return (
            f"job=$(sbatch --parsable {shlex.quote(str(self.array))})",
            f"sbatch --dependency={dependency}:${{job%%;*}} {shlex.quote(str(self.merge))}",
        )


def write_scripts(
    folder: str | os.PathLike[str],
    unfinished: Sequence[int],
    slurm: Slurm,
    *,
    problem: str | None = None,
    checkpoint_seconds: float | None = None,
) -> Scripts:
    """Write the scripts of the blocks that are unfinished in a run folder.

    Tasks find the problem from the working directory of now, with the Python of now.

    Args:
        folder: of the run, which must have been defined.
        unfinished: numbers of the blocks.
        slurm: what to ask for.
        problem: where to import it from, if the folder does not say.
        checkpoint_seconds: see `isles.sample`.
    """
    place = RunFolder(Path(folder).resolve())
    facts = place.definition().facts
    settings, size = facts["settings"], slurm.blocks_per_task
    if settings["threads"] is None:
        raise ValueError("the run was begun on a mesh of one process's devices; tasks cannot go on with it")
    if problem is None and facts["problem"]["reference"] is None:
        raise ValueError(
            "the folder does not say where to import the problem from; give it as package.module:name"
        )
    if not unfinished:
        raise ValueError("all blocks are finished: there is nothing to submit; isles merge gathers them")
    blocks = -(-settings["islands"] // settings["islands_per_block"])
    tasks = sorted({number // size for number in unfinished})
    command = [sys.executable, "-m", "isles"]
    options = ["--requeue"] + (["--problem", problem] if problem else [])
    if checkpoint_seconds is not None:
        options += ["--checkpoint-seconds", str(checkpoint_seconds)]
    logs = _escape(place.path / "slurm")
    name = re.sub(r"[^\w.-]", "_", place.path.name) or "run"
    environment = {**thread_variables(settings["threads"]), **_numbers(facts.get("numbers", {}))}
    prologue = [
        f"cd {shlex.quote(os.getcwd())} || exit 1",
        "# set before Python starts: with another number of threads, sums are rounded differently",
        *(f"export {variable}={shlex.quote(value)}" for variable, value in environment.items()),
        *([f"export PYTHONPATH={shlex.quote(_absolute(path))}"] if (path := os.environ.get("PYTHONPATH")) else []),
        *slurm.setup,
    ]
    array = [
        "#!/bin/bash",
        f"# tasks of the run {place.path}: submit again to go on with whatever is unfinished",
        f"#SBATCH --job-name=isles-{name}",
        f"#SBATCH --array={_ranges(tasks)}{f'%{slurm.at_once}' if slurm.at_once else ''}",
        f"#SBATCH --cpus-per-task={settings['threads']}",
        f"#SBATCH --output={logs}/%A_%a.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        f"#SBATCH --signal=B:USR1@{slurm.grace_seconds}",
        *_requests(slurm),
        *prologue,
        f"first=$((SLURM_ARRAY_TASK_ID * {size}))",
        f"last=$((first + {size - 1} < {blocks - 1} ? first + {size - 1} : {blocks - 1}))",
        "# exec: signals reach Python itself, and its exit code is the task's",
        f"exec {shlex.join([*command, 'block', str(place.path), *options])} $(seq $first $last)",
    ]
    merge = [
        "#!/bin/bash",
        f"# gathers the run {place.path}",
        f"#SBATCH --job-name=isles-merge-{name}",
        f"#SBATCH --output={logs}/merge_%j.log",
        *_requests(slurm),
        *prologue,
        f"exec {shlex.join([*command, 'merge', str(place.path)])}",
    ]
    with files.writing(place.path):
        (place.path / "slurm").mkdir(exist_ok=True)
    scripts = Scripts(place.path / "slurm" / "array.sh", place.path / "slurm" / "merge.sh", len(tasks))
    files.write_text(scripts.array, "\n".join(array) + "\n")
    files.write_text(scripts.merge, "\n".join(merge) + "\n")
    return scripts


def submit(scripts: Scripts, dependency: str) -> tuple[str, str]:
    """Give both scripts to sbatch; the numbers of the two jobs."""
    array = _sbatch(str(scripts.array))
    return array, _sbatch(f"--dependency={dependency}:{array}", str(scripts.merge))


def requeue() -> str:
    """Ask SLURM to run this job again; what came of it."""
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return "this is no job of SLURM, so it is not queued again"
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"scontrol cannot be run ({error.strerror}); submit the array again"
    if done.returncode:
        return f"scontrol requeue {job} failed ({done.stderr.strip()}); submit the array again"
    return f"job {job} is queued again"


def _sbatch(*arguments: str) -> str:
    try:
        done = subprocess.run(["sbatch", "--parsable", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(
            f"sbatch cannot be run ({error.strerror}); submit the scripts on a machine that has SLURM"
        ) from error
    job = done.stdout.strip().partition(";")[0]  # a federation adds the cluster
    if done.returncode or not job:
        raise RuntimeError(
            f"sbatch {shlex.join(arguments)} failed: {done.stderr.strip() or 'it gave no job number'}"
        )
    return job


def _requests(slurm: Slurm) -> list[str]:
    given = {"time": slurm.time, "partition": slurm.partition, "mem": slurm.mem}
    named = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [f"#SBATCH {option}" for option in (*named, *slurm.sbatch)]


def _numbers(numbers: dict[str, object]) -> dict[str, str]:
    """What of JAX's configuration decides numbers, as its environment variables."""
    return {name.upper(): str(value) for name, value in numbers.items() if value is not None}


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in order, as SLURM writes them.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _escape(path: Path) -> str:
    """A path in an option of sbatch, where % begins a pattern, and a backslash makes any sign a plain one."""
    return re.sub(r"""([\\\s"'#])""", r"\\\1", str(path)).replace("%", "%%")


def _absolute(path: str) -> str:
    return os.pathsep.join(os.path.abspath(part) for part in path.split(os.pathsep))
