"""Every Python and console block of the README and the docs runs, and prints what is shown. Examples run too.

The reference holds every public name, and the source cites equations that are there.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isles
from isles.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = ["baselines", "data", "diagnostics", "metrics", "models", "plot"]
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
    squeezed = lambda text: re.sub(r"\s+", " ", text).replace("[ ", "[").replace(" ]", "]")  # NumPy pads numbers
    words = lambda text: squeezed(NUMBER.sub("#", text)).strip()
    numbers = lambda text: np.array([float(number) for number in NUMBER.findall(text)])
    assert words(printed) == words(shown)
    np.testing.assert_allclose(numbers(printed), numbers(shown), rtol=0.3, atol=0.06)


EXAMPLES = [
    pytest.param(path, id=path.name, marks=[pytest.mark.xdist_group("ray")] if path.name == "on_ray.py" else [])
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path.name != "demo.py"  # `make demo` runs it
]


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.filterwarnings("ignore::isles.IslesWarning")  # their small settings here may be too short
def test_examples_run(example: Path, capsys: Any, monkeypatch: Any, tmp_path: Path, request: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if example.name == "text.py" and not isles.data.names()["imdb"].available:
        pytest.skip("needs features of IMDb: a file imdb_mpnet.npz in ISLES_DATA or the cache")
    if example.name == "on_ray.py":
        monkeypatch.setenv("RAY_ADDRESS", request.getfixturevalue("nodes").address)
    namespace = runpy.run_path(str(example))
    arguments = {
        "many_islands.py": {"islands": 256},
        "images.py": {"train": 100, "mutations": 1},
        "text.py": {"train": 100, "test": 100},
    }
    namespace["main"](**arguments.get(example.name, {}))
    printed = capsys.readouterr().out
    assert printed and "the same bits        False" not in printed


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert os.path.exists(page.parent / target), f"{page.name} links to {target}, which is not there"


def test_experiments_link_to_their_pages_or_say_that_they_were_not_run() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text()
    for settings in (*ROOT.glob("experiments/*/settings.toml"), *ROOT.glob("experiments/*/study.toml")):
        name, has_page = settings.parent.name, (settings.parent / "README.md").exists()
        wanted = f"[`{name}`](../experiments/{name})" if has_page else f"`{name}` (not run yet)"
        assert wanted in text


def public_names(module: Any) -> list[str]:
    """What a module exports: `__all__`, or what it defines itself."""
    own = lambda thing: getattr(thing, "__module__", None) == module.__name__ and callable(thing)
    found = [name for name, thing in vars(module).items() if not name.startswith("_") and own(thing)]
    return getattr(module, "__all__", found)


@pytest.mark.parametrize("name", ["", *MODULES])
def test_every_public_name_is_documented_and_in_the_reference(name: str) -> None:
    module = importlib.import_module(f"isles.{name}".rstrip("."))
    modules = (ROOT / "docs" / "modules.md").read_text()
    listed = re.findall(
        r"^\.\. auto(?:class|function|exception):: (\w+)", (ROOT / "docs" / "api.md").read_text(), re.M
    )
    assert len(listed) == len(set(listed))
    for public in public_names(module):
        thing = getattr(module, public)
        if inspect.ismodule(thing):
            assert f".. automodule:: {thing.__name__}\n   :members:" in modules
        elif not callable(thing):
            assert f".. py:data:: {module.__name__}.{public}\n" in modules
        else:
            assert inspect.getdoc(thing), public
            assert name or public in listed, f"docs/api.md does not have {public}"


def test_the_source_cites_equations_that_are_there() -> None:
    numbers = [
        int(number) for number in re.findall(r"\*\*\((\d+)\)\*\*", (ROOT / "docs" / "method.md").read_text())
    ]
    assert numbers == list(range(1, len(numbers) + 1))
    source = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    assert {int(number) for number in re.findall(r"method\.md \((\d+)\)", source)} == set(numbers)


def test_pages_are_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    lists = "".join(re.findall(r"{toctree}(.*?)```", index, re.DOTALL))
    entries = re.findall(r"^(\w+)$", lists, re.MULTILINE)
    assert sorted([*entries, "index"]) == sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
    assert all(f"({entry}.md)" in index for entry in entries)


def test_experiments_that_were_run_have_a_page_in_the_site() -> None:
    run = {page.parent.name for page in (ROOT / "experiments").glob("*/README.md")}
    assert run == {page.stem for page in (ROOT / "docs" / "experiments").glob("*.md")}
    for name in run:
        assert f"../../experiments/{name}/README.md" in (ROOT / "docs" / "experiments" / f"{name}.md").read_text()


def test_one_version_everywhere() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert declared == isles.__version__
    assert f"version: {declared}" in (ROOT / "CITATION.cff").read_text().splitlines()
