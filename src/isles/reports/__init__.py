"""One page about a run: self-contained HTML that opens offline, with the answer first and pictures after it."""

from isles.reports.page import report

__all__ = ["report"]
