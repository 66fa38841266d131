"""The page of benchmarks holds what the committed measurements say, and nothing typed by hand."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_page_is_made_from_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import __main__ as benchmarks

    _, figures = benchmarks.PAGE.read_text().split(benchmarks.MARK)
    assert figures.strip() == benchmarks.figures().strip()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem
)
def test_results_name_machine_versions_and_raw_numbers(path: Path) -> None:
    result = json.loads(path.read_text())
    assert result["machine"]["processor"] and result["versions"]["jax"]
    for row in result["rows"]:
        assert row["met"] in (True, False, None) and (row["met"] is None or row["goal"])
