"""Every Python block of the README and the docs runs, and prints what stands below it. Examples run too."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run_and_print_what_they_show(page: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for code, shown in BLOCK.findall(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), namespace)
        if shown:
            assert_same_output(printed.getvalue(), shown)
        else:
            assert not printed.getvalue(), f"{page.name} does not show what this prints:\n{code}"


def assert_same_output(printed: str, shown: str) -> None:
    """The same text; numbers may differ as another processor's rounding makes random draws differ."""
    words = lambda text: re.sub(r"\s+", " ", NUMBER.sub("#", text)).replace("[ ", "[").strip()
    numbers = lambda text: np.array([float(number) for number in NUMBER.findall(text)])
    assert words(printed) == words(shown)
    np.testing.assert_allclose(numbers(printed), numbers(shown), rtol=0.3, atol=0.06)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, capsys: Any, monkeypatch: Any) -> None:
    namespace = runpy.run_path(str(example))
    arguments = {"many_islands.py": {"islands": 256}}
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
