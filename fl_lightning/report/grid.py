"""A table of texts, as HTML, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_LONG = 30  # characters, from which on a text may be broken
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "<": "$<$",
}


@dataclass(frozen=True)
class Grid:
    """A table of texts.

    Attributes:
        name: Name of its files.
        caption: What it shows.
        header: The columns' titles.
        rows: The cells.
        strong: Places (row, column) of cells in bold.
        text_columns: Columns that are texts; the others are aligned at the right, as numbers.
    """

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: set[tuple[int, int]] = field(default_factory=set)
    text_columns: tuple[int, ...] = (0,)

    def to_html(self) -> str:
        """Return the table, which scrolls sideways where the screen is narrow."""
        head = "".join(
            f'<th scope="col"{self._align(place)}>{escape(text)}</th>' for place, text in enumerate(self.header)
        )
        body = "\n".join(
            "<tr>" + "".join(self._cell(row, column, text) for column, text in enumerate(cells)) + "</tr>"
            for row, cells in enumerate(self.rows)
        )
        return (
            f'<figure class="table"><figcaption>{escape(self.caption)}</figcaption>\n<div class="scroll" tabindex="0" '
            f'role="region" aria-label="{escape(self.caption)}"><table>\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody>\n</table></div></figure>"
        )

    def _cell(self, row: int, column: int, text: str) -> str:
        content = f"<strong>{escape(text)}</strong>" if (row, column) in self.strong else escape(text)
        if column == 0:
            return f'<th scope="row">{content}</th>'
        if column not in self.text_columns:
            content = content.replace("-", "\N{MINUS SIGN}")
        kind = ' class="text long"' if len(text) > _LONG and column in self.text_columns else self._align(column)
        return f"<td{kind}>{content}</td>"

    def _align(self, column: int) -> str:
        return ' class="text"' if column in self.text_columns else ""

    def to_latex(self) -> str:
        """Return a ``tabular`` in a ``table``, with the rules of booktabs."""
        columns = "".join("l" if column in self.text_columns else "r" for column in range(len(self.header)))
        lines = [" & ".join(_latex(text) for text in self.header) + r" \\", r"\midrule"]
        for row, cells in enumerate(self.rows):
            texts = [self._latex_cell(row, column, text) for column, text in enumerate(cells)]
            lines.append(" & ".join(texts) + r" \\")
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_latex(self.caption)}}}",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                *lines,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def _latex_cell(self, row: int, column: int, text: str) -> str:
        content = _latex(text)
        if column not in self.text_columns:
            content = content.replace("-", "$-$")
        return rf"\textbf{{{content}}}" if (row, column) in self.strong else content

    def to_csv(self) -> str:
        """Return the cells as they are shown."""
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([self.header, *self.rows])
        return buffer.getvalue()


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
