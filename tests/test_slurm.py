"""Runs as SLURM job arrays: scripts are run as a scheduler would, and the result has the serial engine's bits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import isles
from isles import tasks
from isles.cli import main
from isles.engines.slurm import Slurm, write_scripts
from isles.engines.threads import thread_variables
from isles.store.folder import BlockFolder, RunFolder
from isles.store.status import read_status
from test_cli import bits

HERE = Path(__file__).parent
SAMPLER = isles.SMC(isles.HMC(leapfrogs=2), particles=8, mutations=2)
CONFIG = "islands = 3\nislands-per-block = 2\nleapfrogs = 2\nparticles = 8\nmutations = 2\nseed = 3\n"
pytestmark = pytest.mark.filterwarnings("ignore::isles.IslesWarning")

# a cluster of one machine: it runs the tasks of an array in reverse order, one after another
SBATCH = f"""#!{sys.executable}
import os, re, subprocess, sys
from pathlib import Path
home = Path(__file__).parent
*options, script = sys.argv[1:]
number = len(list(home.glob("job-*"))) + 41
(home / f"job-{{number}}").write_text(" ".join(options))
array = re.search("^#SBATCH --array=(.*)$", Path(script).read_text(), re.M)
ends = [list(map(int, part.split("-"))) for part in array[1].split(",")] if array else []
tasks = [task for first, *last in ends for task in range(first, (last or [first])[0] + 1)]
for task in reversed(tasks) if array else [0]:
    variables = {{"SLURM_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(task), "NPROC": "7"}}
    environment = {{**os.environ, **variables}}
    done = subprocess.run(["bash", script], env=environment, cwd="/", capture_output=True, text=True)
    (home / f"log-{{number}}-{{task}}").write_text(f"{{done.returncode}} {{done.stdout}}{{done.stderr}}")
print(f"{{number}};cluster")
"""
SCONTROL = f"""#!{sys.executable}
import sys
from pathlib import Path
Path(__file__).with_name("requeued").write_text(" ".join(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def here(monkeypatch: Any) -> None:
    """Problems are imported from this folder."""
    monkeypatch.chdir(HERE)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder with sbatch and scontrol, first on the path."""
    home = tmp_path / "cluster"
    home.mkdir()
    for name, text in (("sbatch", SBATCH), ("scontrol", SCONTROL)):
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")
    return home


def run_text(script: str, task: int) -> str:
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(task)}
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True).stdout


def run_task(script: Path, task: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """What SLURM does with a task, in an environment of another number of threads."""
    environment = {**os.environ, "NPROC": "7", "SLURM_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": str(task), **variables}
    return subprocess.run(["bash", script], env=environment, cwd="/", capture_output=True, text=True)


def test_tasks_killed_requeued_and_in_any_order_have_the_bits_of_the_serial_engine(
    tmp_path: Path, cluster: Path, capsys: Any
) -> None:
    folder, trap = tmp_path / "a run %j", tmp_path / "trap"
    (tmp_path / "run.toml").write_text(CONFIG)
    assert main(["slurm", str(folder), "named_problems:hills", "-c", str(tmp_path / "run.toml"), "--json"]) == 0
    script = Path(json.loads(capsys.readouterr().out)["array"])
    # the last task comes first, and near its time limit
    trap.write_text(str(int(signal.SIGUSR1)))
    done = run_task(script, 1, ISLES_TEST_TRAP=str(trap))
    assert done.returncode == 75, done.stderr
    assert "block 1 stopped after a checkpoint by SIGUSR1" in done.stderr
    assert "job 17 is queued again" in done.stderr
    assert (cluster / "requeued").read_text() == "requeue 17"
    trap.write_text(str(int(signal.SIGKILL)))
    assert run_task(script, 0, ISLES_TEST_TRAP=str(trap)).returncode == -signal.SIGKILL
    assert [block.state for block in read_status(folder).blocks] == ["under way", "under way"]
    # all are submitted again, with the job that merges them
    assert main(["slurm", str(folder), "--submit"]) == 0
    assert "2 tasks are job 41; job 42 gathers them" in capsys.readouterr().out
    assert (cluster / "job-42").read_text() == "--parsable --dependency=afterany:41"
    logs = {path.name: path.read_text() for path in cluster.glob("log-*")}
    assert all(log.startswith("0 ") for log in logs.values()) and len(logs) == 3, logs
    assert "block 0 finished" in logs["log-41-0"] and "log evidence" in logs["log-42-0"]
    isles.sample(
        "named_problems:hills", SAMPLER, islands=3, islands_per_block=2, seed=3, engine="serial",
        folder=tmp_path / "serial",
    )  # fmt: skip
    assert bits(folder) == bits(tmp_path / "serial")
    # and then there is nothing left to submit
    assert main(["slurm", str(folder), "--submit"]) == 0
    assert "all 2 blocks are finished" in capsys.readouterr().err
    assert not (cluster / "job-43").exists()


# --- tasks in this process, which is given the run's threads --------------------------------------------------


@pytest.fixture
def same_threads(monkeypatch: Any) -> None:
    for name, value in thread_variables(1).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_ends_a_task_after_a_checkpoint(
    number: signal.Signals, code: int, tmp_path: Path, monkeypatch: Any, cluster: Path, capsys: Any
) -> None:
    monkeypatch.setenv("ISLES_TEST_TRAP", str(tmp_path / "trap"))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr(BlockFolder, "save", BlockFolder.save)  # the trap's is undone with this
    folder = tmp_path / "run"
    tasks.define_run(folder, "named_problems:hills", SAMPLER)
    (tmp_path / "trap").write_text(str(int(number)))
    handlers = [signal.getsignal(each) for each in tasks.SIGNALS]
    assert main(["block", str(folder), "0", "--requeue"]) == code
    assert f"block 0 stopped after a checkpoint by {number.name}" in capsys.readouterr().err
    assert not (cluster / "requeued").exists(), "somebody wants it to stop, or SLURM queues it again itself"
    stage = read_status(folder).blocks[0].stage
    assert main(["block", str(folder), "0"]) == 0
    result = RunFolder(folder).block(0).result_path
    trace = [json.loads(line) for line in (result.parent / "trace.jsonl").read_text().splitlines()]
    assert stage is not None and 0 < stage < len(trace)
    # a finished block is left alone
    written = result.stat()
    assert main(["block", str(folder), "0"]) == 0
    assert result.stat().st_mtime_ns == written.st_mtime_ns
    assert [signal.getsignal(each) for each in tasks.SIGNALS] == handlers


@pytest.mark.usefixtures("same_threads")
def test_a_dead_block_looks_for_life_in_the_others(tmp_path: Path) -> None:
    """Its first draws have no likelihood, and no other block has run yet."""
    sampler = isles.MCMC(isles.MH(), chains=1, burn_in=5, draws=3)
    settings: dict[str, Any] = {"islands": 6, "islands_per_block": 1, "seed": 4}
    tasks.define_run(tmp_path / "half", "named_problems:half_dead", sampler, **settings)
    assert tasks.run_tasks(tmp_path / "half", [0]).finished == (0,)
    part = isles.merge(tmp_path / "half", allow_partial=True)
    assert part.dead.tolist() == [1] and part.missing == (1, 2, 3, 4, 5)
    tasks.define_run(tmp_path / "all", "named_problems:all_dead", sampler, **settings)
    with pytest.raises(isles.DeadIslandsError, match="island 2: no prior draw has a usable likelihood"):
        tasks.run_tasks(tmp_path / "all", [2, 3])


@pytest.mark.usefixtures("same_threads")
def test_a_block_that_somebody_works_on_is_left_to_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("isles.store.folder.PATIENCE", 0.1)
    tasks.define_run(tmp_path, "named_problems:hills", SAMPLER)
    with RunFolder(tmp_path).block(0).locked(), pytest.raises(isles.FolderError, match=f"process {os.getpid()}"):
        tasks.run_tasks(tmp_path, [0])


def test_tasks_of_what_cannot_be_run_are_refused(tmp_path: Path) -> None:
    tasks.define_run(tmp_path, "named_problems:hills", SAMPLER)
    with pytest.raises(ValueError, match=r"block=1 must be below 1"):
        tasks.run_tasks(tmp_path, [1])
    with pytest.raises(TypeError, match="which tasks can import"):
        tasks.define_run(tmp_path, isles.sample, SAMPLER)  # type: ignore[arg-type]
    with pytest.raises(isles.FolderError, match="islands was 1 and is 2"):
        tasks.define_run(tmp_path, "named_problems:hills", SAMPLER, islands=2)


# --- scripts --------------------------------------------------------------------------------------------------


def test_scripts_ask_for_what_was_wanted(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", "some/where")
    folder = tmp_path / "it's 50%"
    (tmp_path / "cluster.toml").write_text(
        'partition = "long"\nsbatch = ["--gres=gpu:1"]\nsetup = "module load x"\n'
    )
    options = [
        "--islands", "9", "--islands-per-block", "1", "--threads", "2", "--time", "1-12:00:00", "--mem", "4G",
        "--sbatch", "--account=me", "--at-once", "3", "--blocks-per-task", "2", "--grace-seconds", "60",
    ]  # fmt: skip
    command = ["slurm", str(folder), "named_problems:hills", "--config", str(tmp_path / "cluster.toml"), *options]
    assert main(command) == 0
    out = capsys.readouterr().out
    array, merge = ((folder / "slurm" / f"{name}.sh").read_text() for name in ("array", "merge"))
    asked = set(re.findall("^#SBATCH (.*)$", array, re.MULTILINE))
    logs = str(folder / "slurm").replace("%", "%%").replace(" ", "\\ ").replace("'", "\\'")
    assert asked == {
        "--job-name=isles-it_s_50_", "--array=0-4%3", "--cpus-per-task=2", "--open-mode=append", "--requeue",
        f"--output={logs}/%A_%a.log", "--signal=B:USR1@60", "--time=1-12:00:00", "--partition=long", "--mem=4G",
        "--account=me",
    }  # fmt: skip
    assert "export OMP_NUM_THREADS=2\n" in array and f"export PYTHONPATH={HERE / 'some/where'}\n" in array
    assert array.index("module load x") < array.index("exec ")
    assert "#SBATCH --account=me\n" in merge and "--array" not in merge
    assert "sbatch --dependency=afterany:${job%%;*}" in out
    for script in (array, merge):
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    # the last task has one block only
    last = array.replace("exec ", "printf '%s ' ")
    assert run_text(last, 4).endswith(" --requeue 8 ") and run_text(last, 1).endswith(" --requeue 2 3 ")


def test_only_unfinished_blocks_are_submitted(tmp_path: Path) -> None:
    tasks.define_run(tmp_path, "named_problems:hills", SAMPLER, islands=12, islands_per_block=1)
    write_scripts(tmp_path, [0, 1, 2, 6, 11], Slurm(blocks_per_task=2))
    assert "#SBATCH --array=0-1,3,5\n" in (tmp_path / "slurm" / "array.sh").read_text()
    with pytest.raises(ValueError, match="nothing to submit"):
        write_scripts(tmp_path, [], Slurm())


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["slurm", str(tmp_path / "run"), "named_problems:hills", "--submit"]) == 1
    assert "submit the scripts on a machine that has SLURM" in capsys.readouterr().err
    assert main(["slurm", str(tmp_path / "run"), "--islands", "3"]) == 2
    assert "whose islands cannot be changed" in capsys.readouterr().err
