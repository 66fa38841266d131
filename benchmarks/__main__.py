"""`make bench`: run all benchmarks, one process each, and write their figures into docs/benchmarks.md.

`python -m benchmarks layers` runs one of them; `python -m benchmarks --page` writes the page from results on file.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS

BENCHMARKS = {
    "layers": "The evaluations",
    "peers_smc": "SMC against peers",
    "peers_mcmc": "MCMC against peers",
    "growth": "Growth and workers",
    "memory": "Memory",
}
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
MARK = "<!-- figures: written by `make bench`, not by hand -->"


def figures() -> str:
    """The tables of all results on file."""
    parts = []
    for name, title in BENCHMARKS.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            parts.append(f"## {title}\n\nNot run.\n")
            continue
        result = json.loads(path.read_text())
        machine, versions = result["machine"], result["versions"]
        libraries = ", ".join(f"{library} {version}" for library, version in versions.items())
        parts.append(
            f"## {title}\n\n{table(result['rows'])}\n"
            f"`python -m benchmarks {name}` on {machine['processor']}, {machine['cores']} cores; {libraries}.\n"
        )
    return "\n".join(parts)


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of a report in Markdown."""
    lines = ["| what | figure | value | goal | |", "|---|---|---|---|---|"]
    for row in rows:
        verdict = {True: "met", False: "**open**", None: ""}[row["met"]]
        lines.append(f"| {row['what']} | {row['figure']} | {row['value']} | {row['goal']} | {verdict} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what was asked for, or everything; then write the page."""
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(BENCHMARKS)
    unknown = sorted(set(chosen) - set(BENCHMARKS))
    if unknown:
        sys.exit(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if "--page" not in sys.argv:
        for name in chosen:
            print(f"\n{BENCHMARKS[name]}", flush=True)
            subprocess.run([sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}"], check=True)
    words = PAGE.read_text().split(MARK)[0]
    PAGE.write_text(f"{words}{MARK}\n\n{figures()}")


if __name__ == "__main__":
    main()
