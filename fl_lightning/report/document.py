"""A page of sections as one HTML file that holds all it needs."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from fl_lightning.report.grid import Grid

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 80rem; margin: 0 auto;
  padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.3rem 0 0.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.4rem; padding-top: 0.6rem; border-top: 2px solid #ddd; }
p, figcaption { max-width: 46rem; }
figcaption, .note { color: #555; font-size: 0.875rem; }
nav { font-size: 0.9rem; margin: 0.6rem 0 1rem; }
nav a { display: inline-block; margin-right: 1rem; padding: 0.3rem 0; color: #0b57a4; }
.banner { border-left: 5px solid #b45309; background: #fff7ed; padding: 0.6rem 0.9rem; margin: 0.8rem 0; }
.banner p { margin: 0.2rem 0; }
figure { margin: 1rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border-bottom: 1px solid #e3e3e3; padding: 0.35rem 0.7rem 0.35rem 0.2rem; text-align: right;
  vertical-align: top; white-space: nowrap; font-variant-numeric: tabular-nums; }
th { font-weight: 600; }
th[scope=row], th:first-child, .text { text-align: left; }
th[scope=row] { position: sticky; left: 0; background: #fff; }
td.long { white-space: normal; min-width: 14rem; overflow-wrap: break-word; }
td strong, th strong { background: #e8f3e8; padding: 0 0.15rem; border-radius: 2px; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 0.5rem 1.5rem; }
.figures figure { margin: 0.4rem 0; }
img { display: block; width: 100%; height: auto; }
details { margin: 0.5rem 0; }
summary { cursor: pointer; padding: 0.3rem 0; }
pre { font-size: 0.8rem; white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: 0.6rem; }
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  nav { display: none; }
  h2 { break-after: avoid; }
  .figures figure, tr { break-inside: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; }
  th, td { padding-right: 0.35rem; white-space: normal; }
  th[scope=row] { position: static; }
  .figures { grid-template-columns: 1fr 1fr 1fr; }
}
"""


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        name: Name of its file.
        caption: What it shows.
        png: Its content.
    """

    name: str
    caption: str
    png: bytes

    def to_html(self) -> str:
        """Return the figure with its content inside."""
        content = base64.b64encode(self.png).decode("ascii")
        text = escape(self.caption)
        return (
            f'<figure><img alt="{text}" src="data:image/png;base64,{content}"><figcaption>{text}</figcaption></figure>'
        )


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: Its heading.
        text: A paragraph below it.
        grids: Tables.
        pictures: Figures.
        details: Long texts to unfold, by their titles.
    """

    title: str
    text: str = ""
    grids: Sequence[Grid] = ()
    pictures: Sequence[Picture] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.grids or self.pictures or self.details)

    def to_html(self) -> str:
        """Return the section."""
        parts = [f'<section>\n<h2 id="{_anchor(self.title)}">{escape(self.title)}</h2>']
        parts += [f"<p>{escape(self.text)}</p>"] if self.text else []
        parts += [grid.to_html() for grid in self.grids]
        if self.pictures:
            parts.append('<div class="figures">\n' + "\n".join(p.to_html() for p in self.pictures) + "\n</div>")
        for title, text in self.details.items():
            parts.append(f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>")
        return "\n".join([*parts, "</section>"])


def render_document(title: str, summary: str, warnings: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page as HTML.

    Args:
        title: Its heading.
        summary: A line below the heading.
        warnings: What the reader must know before all else.
        sections: The parts; empty ones are left out.
    """
    shown = [section for section in sections if not section.empty]
    links = "".join(f'<a href="#{_anchor(section.title)}">{escape(section.title)}</a>' for section in shown)
    banner = "".join(f"<p>{escape(warning)}</p>" for warning in warnings)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="note">{escape(summary)}</p>
{f'<div class="banner" role="note">{banner}</div>' if warnings else ""}
<nav aria-label="sections">{links}</nav>
{chr(10).join(section.to_html() for section in shown)}
</body>
</html>
"""


def _anchor(title: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in title.lower())
