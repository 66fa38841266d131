"""Every Python and console block of the README and the docs runs, and prints what is shown. Examples run too."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isles.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"^```(python|console|toml)\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"# (\w+\.(?:py|toml))\n")  # a block that begins with a file's name is that file
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run_and_print_what_they_show(page: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # problems are imported from here
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for language, code, shown in BLOCK.findall(page.read_text()):
        if name := FILE.match(code):
            (tmp_path / name[1]).write_text(code)
        if language == "console":
            run_console(code)
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), namespace)
        if shown:
            assert_same_output(printed.getvalue(), shown)
        else:
            assert not printed.getvalue(), f"{page.name} does not show what this prints:\n{code}"


def run_console(block: str) -> None:
    """Commands after `$ `, each with what it prints to stdout; they end well, unless their exit code is shown."""
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        command, shows_code, _ = command.partition("; echo $?")
        words = shlex.split(command)
        assert words[0] == "isles", f"only isles can be run here: {command}"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = main(words[1:])
        if shows_code:
            print(code, file=printed)
        assert code == 0 or shows_code, command
        lines = shown.splitlines()
        if lines[-1:] == ["..."]:  # the rest is left out
            lines.pop()
            printed = io.StringIO("\n".join(printed.getvalue().splitlines()[: len(lines)]))
        if lines:
            assert_same_output(printed.getvalue(), "\n".join(lines))


def assert_same_output(printed: str, shown: str) -> None:
    """The same text; numbers may differ as another processor's rounding makes random draws differ."""
    words = lambda text: re.sub(r"\s+", " ", NUMBER.sub("#", text)).replace("[ ", "[").strip()
    numbers = lambda text: np.array([float(number) for number in NUMBER.findall(text)])
    assert words(printed) == words(shown)
    np.testing.assert_allclose(numbers(printed), numbers(shown), rtol=0.3, atol=0.06)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # their small settings here may be too short
def test_examples_run(example: Path, capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = runpy.run_path(str(example))
    arguments = {"many_islands.py": {"islands": 256}, "demo.py": {"train": 100, "burn_in": 10, "mutations": 1}}
    namespace["main"](**arguments.get(example.name, {}))
    assert capsys.readouterr().out


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert os.path.exists(page.parent / target), f"{page.name} links to {target}, which is not there"


def test_every_public_name_is_documented() -> None:
    import isles

    for name in isles.__all__:
        assert (getattr(isles, name).__doc__ or "").strip(), name
