"""The command: run a study or go on with it, and write its page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from experiments.studies import page, study


def main(arguments: list[str] | None = None) -> int:
    """0 if all of the budget is done, 3 if some is left, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m experiments.studies", description=__doc__)
    parser.add_argument("name", nargs="?", choices=study.NAMES, help="the study; none lists them")
    parser.add_argument("--list", action="store_true", help="show the studies and what they cost")
    parser.add_argument("--budget", choices=study.BUDGETS, default="standard")
    parser.add_argument("--max-seconds", type=float, help="no piece begins after so long")
    parser.add_argument("--workers", type=int, help="processes; by default one a CPU, and one for quick")
    parser.add_argument("--page", action="store_true", help="only write the page anew from the pieces there")
    parser.add_argument("--folder", type=Path, default=study.ROOT, help="where studies live")
    given = parser.parse_args(arguments)
    if given.list or given.name is None:
        print("\n".join(listing(given.folder)))
        return 0
    chosen = study.load(given.name, given.budget, given.folder)
    workers = given.workers or (1 if given.budget == "quick" else len(os.sched_getaffinity(0)))
    done = given.page or study.run(
        chosen, max_seconds=given.max_seconds, workers=workers, say=lambda line: print(line, flush=True)
    )
    # a page has all that was run, by whatever budget
    shown = chosen if given.budget == "quick" else study.load(given.name, "paper", given.folder)
    page.write(shown)
    print(f"see {shown.folder / 'README.md'}")
    return 0 if done else 3


def listing(folder: Path) -> list[str]:
    """What there is, what is done, and what is left on this machine."""
    cores = len(os.sched_getaffinity(0))
    head = f"{'study':17}{'pieces done':>14}{'hours left':>12}{'in all':>8}{'paper':>8}"
    lines = [f"{head}  title (hours on {cores} cores)"]
    whole = 0.0
    for name in study.NAMES:
        standard, paper = (study.load(name, budget, folder) for budget in ("standard", "paper"))
        queue, left = standard.queue(), standard.left()
        asked = (standard, left), (standard, queue), (paper, paper.queue())
        costs = [study.hours(each, pieces) / cores for each, pieces in asked]
        whole += costs[1]
        done = f"{len(queue) - len(left)} of {len(queue)}"
        lines.append(f"{name:17}{done:>14}{costs[0]:12.2f}{costs[1]:8.2f}{costs[2]:8.1f}  {standard.title}")
    return [*lines, f"{'all':17}{'':26}{whole:8.2f}"]


if __name__ == "__main__":
    sys.exit(main())
