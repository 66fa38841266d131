"""The command line: what it understands, what it says, how it ends, and that it needs no JAX to answer."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isles
from isles import tasks
from isles.cli import main, settings
from isles.samplers.block import Status
from isles.store import files
from isles.store.folder import RunFolder, Saved
from kills import wait_until

HERE = Path(__file__).parent
RUN = ["run", "named_problems:hills", "--islands", "2", "--islands-per-block", "1", "--engine", "serial"]
QUICK = ["--particles", "8", "--mutations", "2", "--leapfrogs", "2"]
SAMPLER = isles.SMC(isles.HMC(leapfrogs=2), particles=8, mutations=2)


@pytest.fixture(scope="module", autouse=True)
def here() -> Any:
    """Problems are imported from this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main([*RUN, *QUICK, "--folder", str(folder)]) == 0
    return folder


def bits(folder: Path) -> Any:
    """All that a run's posterior holds."""
    tensors, facts = files.read(RunFolder(folder).posterior_path)
    return facts, {name: (tensor.dtype, tensor.shape, tensor.tobytes()) for name, tensor in tensors.items()}


def error_of(capsys: Any, *arguments: str, code: int) -> str:
    """The one line that a command has to say about its mistake."""
    assert main(arguments) == code
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and lines[-1].startswith("error: ") and "Traceback" not in err
    return lines[-1]


# --- without JAX ----------------------------------------------------------------------------------------------

WITHOUT_JAX = """
import sys
from isles.cli import main
for arguments in (["--help"], ["run", "--help"], ["slurm", "--help"], ["--version"], ["run", "--sampler", "x"]):
    main(arguments)
assert "numpy" not in sys.modules, "numpy"
assert main(["status", sys.argv[1], "--json"]) == 0
assert main(["data", "--json"]) == 0
assert "jax" not in sys.modules, "jax"
"""


def test_help_status_and_mistakes_need_no_jax(finished: Path) -> None:
    """And none of it has colours in a pipe."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, str(finished)], capture_output=True, text=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "isles slurm runs/mnist" in done.stdout and f"isles {isles.__version__}" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


# --- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rum", "Did you mean 'run'"),
        ("run a:b --folder x --island 3", "--islands"),
        ("run a:b --folder x --islands many", "'--islands': Input should be a valid integer"),
        ("run a:b --folder x --sampler smcc", "one of 'smc', 'mcmc', 'mpmcmc', 'ais'; did you mean 'smc'?"),
        ("run a:b --folder x --kernel hcm", "did you mean 'hmc'?"),
        ("run a:b --folder x --kernel strech", "did you mean 'stretch'?"),
        ("run a:b --folder x --sampler mpmcm", "did you mean 'mpmcmc'?"),
        ("run a:b --folder x --sampler mpmcmc --kernel hmc", "has no part in mpmcmc"),
        ("run a:b --folder x --sampler mpmcmc --leapfrogs 5", "leapfrogs=5 is a setting of kernel hmc"),
        ("run a:b --folder x --proposals 5", "proposals=5 is a setting of sampler mpmcmc"),
        ("run a:b --folder x --kernel stretch --step-size 2", "and the kernel is stretch"),
        ("run a:b --folder x --decorrelate 0.1 --while-falling 0.1", "leave one out"),
        ("run a:b --folder x --engine slum", "engine='slum' must be one of 'local', 'serial', 'ray'"),
        ("run a:b --folder x --islands 0", "islands=0 must be at least 1"),
        ("run a:b --folder x --sampler mcmc --start-epochs 5", "start_epochs=5 is a setting of --start optimised"),
        ("run a:b --folder x --burn-in 5", "a setting of sampler mcmc or mpmcmc, and the sampler is smc"),
        ("run a:b --folder x --kernel pcn --leapfrogs 5", "leapfrogs=5 is a setting of kernel hmc"),
        ("run a:b --folder x --leapfrogs 5 --trajectory 1", "leapfrogs"),
        ("run a:b --folder x --mutations 5 --decorrelate 0.1", "leave one out"),
        ("run a:b --folder x --max-mutations 5", "add --decorrelate"),
        ("run a:b --folder x --ess-fraction 1.5", "ess_fraction=1.5 must lie strictly between 0 and 1"),
        ("run a:b --folder x --schedule 0.1,one", "must be numbers with commas"),
        ("run a:b --folder x --schedule 0.1,0.5", "schedule"),
        ("run a:b --folder x --max-seconds nan", "max_seconds=nan must be positive"),
        ("run a:b", "--folder is missing"),
        ("run --folder x", "PROBLEM is missing"),
        ("run a.b --folder x", "problem='a.b' must be like package.module:function"),
        ("run ./a.py:b --folder x", "must be like package.module:function"),
        ("run --config nowhere.toml", "cannot read nowhere.toml"),
        ("slurm x a:b --time soon", "time='soon' must be like"),
        ("slurm x a:b --mem lots", "mem='lots' must be like"),
        ("slurm x a:b --sbatch gres=gpu:1", "must be an option of sbatch"),
        ("slurm x a:b --sbatch --array=1-5", "is set by isles"),
        ("slurm x", "PROBLEM is missing"),
        ("block x one", "valid integer"),
        ("run digits --model mlp --hidden 0 --folder x", "hidden=0 must be at least 1"),
        ("run named_problems:hills --folder x --engine serial --workers 1", 'workers=1 needs engine="local"'),
        ("run named_problems:hills --folder x --mass fisher", "mass='fisher'"),
        ("run named_problems:hills --folder x --kernel stretch --particles 9", "9"),
        ("run named_problems:hills --folder x --sampler ais --kernel stretch", "use isles.SMC, or another kernel"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    arguments: str, message: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(capsys, *arguments.split(), code=2)
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("island = 8", "there is no setting 'island'; did you mean 'islands'?"),
        ("proposal = 8", "did you mean 'proposals'?"),
        ("islands = 8.5", "islands=8.5 must be a whole number"),
        ("islands = true", "not a bool"),
        ("allow-partial = 1", "allow_partial=1 must be true or false"),
        ("partition = 3", "partition=3 must be a text"),
        ("[sampler]\nparticles = 3", "'sampler' is a table"),
        ("[run]\nislands = 3", "'run' is a table; settings stand at the top"),
        ("islands 8", "is no TOML file"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(text: str, message: str, capsys: Any, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(text)
    assert message in error_of(capsys, "run", "a:b", "--folder", "x", "--config", str(config), code=2)


def test_options_win_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('islands = 8\nstep-size = 0.5\nschedule = [0.1, 1]\nsbatch = "--gres=gpu:1"\nseed = 3\n')
    assert settings.gather(config, {"islands": 4, "seed": None, "sbatch": []}) == {
        "islands": 4, "seed": 3, "step_size": 0.5, "schedule": (0.1, 1.0), "sbatch": ("--gres=gpu:1",),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "sampler"),
    [
        ({}, isles.SMC()),
        (
            {"trajectory": 0.1, "decorrelate": 0.1, "max_mutations": 50, "resampling": "residual"},
            isles.SMC(isles.HMC(trajectory=0.1), mutations=isles.Decorrelate(0.1, 50), resampling="residual"),
        ),
        (
            {"sampler": "mcmc", "kernel": "pcn", "particles": 4, "burn_in": 7, "draws": 3, "scale": "prior"},
            isles.MCMC(isles.PCN(scale="prior"), chains=4, burn_in=7, draws=3),
        ),
        (
            {"sampler": "mcmc", "start": "optimised", "start_epochs": 70, "start_batch_rows": 5},
            isles.MCMC(start=isles.Optimised(epochs=70, batch_rows=5)),
        ),
        ({"sampler": "mcmc", "start": "prior"}, isles.MCMC()),
        (
            {"sampler": "ais", "kernel": "mala", "mutations": 2, "schedule": (0.1, 1.0), "mass": "population"},
            isles.AIS(isles.MALA(mass="population"), mutations=2, schedule=(0.1, 1.0)),
        ),
        ({"kernel": "smmala", "step_size": 0.4}, isles.SMC(isles.SmMALA(step_size=0.4))),
        ({"kernel": "stretch", "stretch": 3.0, "mutations": 4}, isles.SMC(isles.Stretch(3.0), mutations=4)),
        (
            {"kernel": "de", "jump": 0.2, "while_falling": 0.02, "max_mutations": 9},
            isles.SMC(isles.DE(jump=0.2), mutations=isles.WhileFalling(0.02, 9)),
        ),
        (
            {"sampler": "mpmcmc", "proposals": 7, "steps": 9, "burn_in": 3, "adaptive": True, "step_size": 0.3},
            isles.MPMCMC(proposals=7, steps=9, burn_in=3, adaptive=True, step_size=0.3),
        ),
    ],
)
def test_settings_make_the_sampler(chosen: dict[str, Any], sampler: Any) -> None:
    assert settings.build_sampler(chosen) == sampler


def test_every_setting_of_the_library_is_an_option() -> None:
    """And belongs to the samplers and kernels that have it."""
    for name in (*settings.SAMPLERS, *settings.KERNELS):
        kind = getattr(isles, (settings.SAMPLERS | settings.KERNELS)[name])
        fields = {field.name for field in dataclasses.fields(kind)} - {"kernel", "plan", "fisher"}
        fields = {"particles" if field == "chains" else field for field in fields}
        table = {key for key, setting in settings.SETTINGS.items() if name in setting.of}
        assert table - {*settings.RULES, "max_mutations", *settings.OPTIMISED} == fields, name
    arguments = set(inspect.signature(isles.sample).parameters) - {"collect", "mesh"}
    assert arguments <= set(settings.SETTINGS)


# --- runs -----------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_does_and_what_it_found(finished: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "run.toml").write_text(f'problem = "named_problems:hills"\nfolder = "{finished}"\n')
    # the same run again has nothing left to do
    again = ["run", "--config", str(tmp_path / "run.toml"), *RUN[2:], *QUICK]
    assert main([*again, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "sampler            SMC(kernel=HMC(trajectory=None, leapfrogs=2" in err
    shown = json.loads(out)
    posterior = isles.load(shown["posterior"])
    assert shown["diagnostics"]["log_evidence"] == posterior.log_evidence
    assert shown["missing"] == []
    assert main(["merge", str(finished)]) == 0
    assert re.search(rf"^log evidence +{posterior.log_evidence:.4g}$", capsys.readouterr().out, re.M)
    # and another run has no place there
    assert "islands was 2 and is 3" in error_of(capsys, *again, "--islands", "3", code=1)


def test_a_budget_ends_a_run_early_and_resume_finishes_it(finished: Path, tmp_path: Path, capsys: Any) -> None:
    folder, part = str(tmp_path / "run"), str(tmp_path / "part.safetensors")
    assert main([*RUN, *QUICK, "--folder", folder, "--max-epochs", "1", "--json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["missing"] == [1] and json.loads(out)["posterior"] is None
    assert err.count("1 of 2 islands are missing") == 1
    assert main(["status", folder, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [block["state"] for block in status["blocks"]] == ["finished", "not begun"]
    assert (status["finished"], status["under_way"], status["not_begun"], status["merged"]) == (1, 0, 1, False)
    assert f"isles resume {folder} goes on, --allow-partial" in error_of(capsys, "merge", folder, code=3)
    assert f"isles merge {folder} --allow-partial --output FILE" in error_of(capsys, "report", folder, code=3)
    assert main(["merge", folder, "--allow-partial", "--output", part]) == 3
    assert isles.load(part).missing == (1,)
    assert status["blocks"][0]["epochs"] == isles.load(part).epochs.total
    assert not (tmp_path / "run" / "posterior.safetensors").exists()
    assert main(["resume", folder, "--engine", "local", "--workers", "1"]) == 0
    assert bits(Path(folder)) == bits(finished)


def test_status_shows_how_far_a_block_is(tmp_path: Path, capsys: Any) -> None:
    tasks.define_run(tmp_path, "named_problems:hills", SAMPLER, islands=5, islands_per_block=2)
    place = RunFolder(tmp_path).block(1)
    place.path.mkdir(parents=True)
    place.save(Saved({"x": np.zeros(1)}, {}), Status(0.25, 7, 0.125, float("nan"), 0.6, 1234)._asdict())
    assert main(["status", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["0", "0-1", "not", "begun", "0%", "-", "-", "-", "-", "-"],
        ["1", "2-3", "under", "way", "25%", "7", "0.125", "0.6", "1234", *out.splitlines()[2].split()[-3:]],
        ["2", "4", "not", "begun", "0%", "-", "-", "-", "-", "-"],
    ]
    assert "3 blocks of 5 islands: 0 finished, 1 under way, 2 not begun" in err
    with RunFolder(tmp_path).block(2).locked():  # as a worker does before it compiles
        assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [block["state"] for block in found["blocks"]] == ["not begun", "under way", "starting"]
    assert (found["starting"], found["not_begun"]) == (1, 1)
    message = error_of(capsys, "merge", str(tmp_path), "--allow-partial", code=3)
    assert message == f"error: no island is finished yet; isles resume {tmp_path} goes on"
    assert "there is no block 7" in error_of(capsys, "block", str(tmp_path), "7", code=2)


def test_errors_of_a_users_code_are_one_line_unless_debugged(tmp_path: Path, capsys: Any) -> None:
    command = ["run", "named_problems:broken", "--folder", str(tmp_path / "run")]
    raised = "raised by problem='named_problems:broken'; --debug shows where"
    assert error_of(capsys, *command, code=1) == f"error: ZeroDivisionError: mine ({raised})"
    assert main([*command, "--debug"]) == 1
    assert "in broken\n" in capsys.readouterr().err
    for name, message in [
        ("named_problems:hill", "has no hill"),
        ("nowhere:hills", "cannot be imported"),
        ("named_problems:curve?noize=1", "give what curve takes after the ?"),
        ("named_problems:spring_after_checkpoint", "missing a required argument: 'trap'; give what"),
    ]:
        assert main(["run", name, *command[2:]]) == 2
        (line,) = capsys.readouterr().err.splitlines()  # settings are not echoed
        assert message in line
    for command in (["status"], ["merge"], ["resume"], ["block", "0"]):
        message = error_of(capsys, command[0], str(tmp_path), *command[1:], code=1)
        assert f"{tmp_path} holds no run" in message


def test_ctrl_c_keeps_a_checkpoint_and_names_the_way_on(tmp_path: Path) -> None:
    """The run has far more mutations than it will ever make."""
    folder = tmp_path / "run"
    command = [*RUN, "--folder", str(folder), "--mutations", "100000000", "--checkpoint-seconds", "0.1"]
    process = subprocess.Popen([sys.executable, "-m", "isles", *command], stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: RunFolder(folder).block(0).has_begun or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130, err
        assert f"error: stopped; what was saved is kept: isles resume {folder}" in err and "Traceback" not in err
    finally:
        process.kill()
        process.wait()
