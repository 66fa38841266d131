"""Self-contained HTML: tables, and pictures as inline SVG whose lines and letters follow the reader's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

INK = "#010203"  # drawn by matplotlib, then replaced by the page's own text colour
STYLE = """
:root { color-scheme: light dark;
  --ink: #1a1a1a; --ground: #fff; --soft: #f3f4f6; --line: #d0d4da; --accent: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --ground: #16181c; --soft: #22252b; --line: #3a3f47; --accent: #56b4e9; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; color: var(--ink); background: var(--ground);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); }
.verdict { padding: 0.75rem 1rem; background: var(--soft); border-left: 0.4rem solid var(--accent); }
.verdict.look { border-color: #d55e00; }
.verdict.sound { border-color: #009e73; }
.verdict ul { margin: 0.5rem 0 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
progress { width: 100%; height: 1rem; margin-top: 1rem; accent-color: var(--accent); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.5rem 0 1rem; }
thead th { font-weight: 600; }
th, td { padding: 0.2rem 0.9rem 0.2rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); font-weight: inherit; }
td { max-width: 50rem; overflow-wrap: anywhere; }
td + td, th + th { font-variant-numeric: tabular-nums; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); }
.wide { grid-column: 1 / -1; }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; color: var(--ink); }
.wide .scroll svg { min-width: 44rem; }
figcaption { font-size: 0.9rem; }
footer { margin-top: 3rem; font-size: 0.85rem; opacity: 0.8; }
"""


@dataclass(frozen=True)
class Table:
    """Rows of text under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def render(self) -> str:
        """As HTML."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.header)
        body = "".join(
            f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
            for first, *rest in self.rows
        )
        visible = f"<thead><tr>{head}</tr></thead>" if any(self.header[:1]) else ""
        return f'<div class="scroll"><table>{visible}<tbody>{body}</tbody></table></div>'


def facts_table(rows: Mapping[str, Any]) -> Table:
    """Names and values."""
    return Table(["", "value"], [[name, show(value)] for name, value in rows.items()])


def show(value: Any) -> str:
    """A value as a reader wants it."""
    if value is None:
        return "–"
    if isinstance(value, (np.floating, np.integer)):
        value = value.item()
    if isinstance(value, float):
        return f"{value:,.2f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


@dataclass(frozen=True)
class Figure:
    """A picture with a title and a sentence that says what it shows."""

    title: str
    note: str
    svg: str
    wide: bool = False

    @classmethod
    def drawn(cls, title: str, note: str, draw: Callable[[Any], Any], *, wide: bool = False) -> Figure:
        """What `draw` puts on an axes."""
        try:
            import matplotlib
            from matplotlib.figure import Figure as Canvas
        except ImportError as error:
            raise ImportError("reports need matplotlib; install it with: pip install 'isles[plot]'") from error
        style: dict[Any, Any] = {
            "svg.fonttype": "none",
            "svg.hashsalt": title,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
        inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        with matplotlib.rc_context(style | dict.fromkeys(inked, INK)):
            canvas = Canvas(figsize=(11, 1.9) if wide else (4.6, 3.1), layout="constrained")
            canvas.patch.set_alpha(0)
            ax = canvas.subplots()
            ax.patch.set_alpha(0)
            draw(ax)
            buffer = io.StringIO()
            canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        return cls(title, note, _inline(buffer.getvalue(), title), wide)

    def render(self) -> str:
        """As HTML, read aloud by its title and sentence."""
        label = escape(f"{self.title}: {self.note}", quote=True)
        svg = self.svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        if self.wide:
            svg = f'<div class="scroll" tabindex="0">{svg}</div>'
        kind = ' class="wide"' if self.wide else ""
        heading = escape(self.title[:1].upper() + self.title[1:])
        caption = f"<figcaption><b>{heading}.</b> {escape(self.note)}</figcaption>"
        return f"<figure{kind}>{svg}{caption}</figure>"


@dataclass
class Page:
    """A title, a verdict, and sections of tables and figures."""

    title: str
    refresh: int | None = None  # seconds
    progress: float | None = None  # from 0 to 1
    _verdict: tuple[str, str, list[str]] = ("", "", [])
    _sections: dict[str, list[Table | Figure]] = field(default_factory=dict)

    def verdict(self, word: str, sentence: str, warnings: list[str]) -> None:
        """What a reader in a hurry wants to know."""
        self._verdict = word, sentence, warnings

    def add(self, section: str, *parts: Table | Figure) -> None:
        """More of a section."""
        self._sections.setdefault(section, []).extend(parts)

    def render(self) -> str:
        """The whole page."""
        word, sentence, warnings = self._verdict
        listed = "".join(f"<li>{escape(message)}</li>" for message in warnings)
        body = [f"<h1>{escape(self.title)}</h1>"]
        if word:
            body.append(
                f'<div class="verdict {word}" role="status"><b>{escape(sentence)}</b>'
                + (f"<ul>{listed}</ul>" if listed else "")
                + "</div>"
            )
        if self.progress is not None:
            body.append(
                f'<progress max="1" value="{self.progress:.4f}" aria-label="share of the work"></progress>'
            )
        for name, parts in self._sections.items():
            tables = "".join(part.render() for part in parts if isinstance(part, Table))
            figures = "".join(part.render() for part in parts if isinstance(part, Figure))
            if tables or figures:
                inside = tables + (f'<div class="figures">{figures}</div>' if figures else "")
                body.append(f"<section><h2>{escape(name)}</h2>{inside}</section>")
        again = f'<meta http-equiv="refresh" content="{self.refresh}">' if self.refresh else ""
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">{again}'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head>"
            f"<body><main>{''.join(body)}</main><footer>Made by isles.</footer></body></html>\n"
        )


def _inline(svg: str, title: str) -> str:
    """An SVG document as part of a page: no header, its ink the page's, its names its own."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # known to HTML, and a page without addresses is easy to trust
    prefix = re.sub(r"\W+", "-", title)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", svg)
    return re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg))
