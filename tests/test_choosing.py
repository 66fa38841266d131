"""The page of advice has the tables that the committed studies give."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_tables_follow_from_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from experiments import choosing

    _, tables = choosing.PAGE.read_text().split(choosing.MARK)
    assert tables.strip() == choosing.tables().strip()
    for title in ("Mutations", "Particles and islands", "SMC∥ and MCMC∥"):
        assert f"## {title}, measured" in tables
