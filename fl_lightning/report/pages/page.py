"""The template of all report pages: one HTML file that needs no other file, no script and no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from fl_lightning.report.pages.grid import Grid
from fl_lightning.report.pages.picture import Picture
from fl_lightning.report.pages.style import STYLE

_MIN_LINKS = 3  # shorter pages need no list of their sections


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        title: Heading.
        text: Paragraph below the heading.
        grids: Tables.
        pictures: Figures.
        details: Long texts by title; the reader unfolds them.
    """

    title: str
    text: str = ""
    grids: Sequence[Grid] = ()
    pictures: Sequence[Picture] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether the section has no content."""
        return not (self.text or self.grids or self.pictures or self.details)

    def to_html(self) -> str:
        """Return the section as HTML."""
        parts = [f'<section>\n<h2 id="{_anchor(self.title)}">{escape(self.title)}</h2>']
        parts += [f"<p>{escape(self.text)}</p>"] if self.text else []
        parts += [grid.to_html() for grid in self.grids]
        if self.pictures:
            pictures = "\n".join(picture.to_html() for picture in self.pictures)
            parts.append(f'<div class="figures">\n{pictures}\n</div>')
        for title, text in self.details.items():
            parts.append(f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>")
        return "\n".join([*parts, "</section>"])


@dataclass(frozen=True)
class Page:
    """A report page.

    Attributes:
        title: Heading.
        sections: Sections; the page leaves out empty ones.
        summary: Line below the heading.
        warnings: Sentences that the reader must know first.
    """

    title: str
    sections: Sequence[Section]
    summary: str = ""
    warnings: Sequence[str] = ()

    def to_html(self) -> str:
        """Return the whole page as HTML."""
        shown = [section for section in self.sections if not section.empty]
        parts = [f"<h1>{escape(self.title)}</h1>"]
        parts += [f'<p class="note">{escape(self.summary)}</p>'] if self.summary else []
        if self.warnings:
            sentences = "".join(f"<p>{escape(warning)}</p>" for warning in self.warnings)
            parts.append(f'<div class="banner" role="note">{sentences}</div>')
        if len(shown) >= _MIN_LINKS:
            links = "".join(f'<a href="#{_anchor(section.title)}">{escape(section.title)}</a>' for section in shown)
            parts.append(f'<nav aria-label="sections">{links}</nav>')
        parts += [section.to_html() for section in shown]
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(self.title)}</title>
<style>{STYLE}</style>
</head>
<body>
{chr(10).join(parts)}
</body>
</html>
"""


def _anchor(title: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in title.lower())
