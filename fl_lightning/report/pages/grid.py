"""A table of texts, as HTML, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from fl_lightning.experiment.files import harmless

_LONG = 30  # characters; longer texts are broken into lines
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
        name: File name, without its ending.
        caption: Short sentence above the table; none if empty.
        header: Titles of the columns. A table of facts has none: each row is a name and a text.
        rows: Texts of the cells.
        strong: Cells in bold, as (row, column).
        text_columns: Columns of texts. The other columns hold numbers and are aligned at the right.
        note: Explanation below the table.
    """

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: set[tuple[int, int]] = field(default_factory=set)
    text_columns: tuple[int, ...] = (0,)
    note: str = ""

    def to_html(self) -> str:
        """Return the table as HTML; it scrolls sideways on a narrow screen."""
        head = "".join(
            f'<th scope="col"{self._align(place)}>{escape(text)}</th>' for place, text in enumerate(self.header)
        )
        head = f"<thead><tr>{head}</tr></thead>\n" if self.header else ""
        kind = "" if self.header else ' class="facts"'
        body = "\n".join(self._html_row(row) for row in range(len(self.rows)))
        caption = f"<figcaption>{escape(self.caption)}</figcaption>\n" if self.caption else ""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        return (
            f'<figure class="table">{caption}<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(self.caption or self.name)}"><table{kind}>\n{head}<tbody>\n{body}\n</tbody>\n'
            f"</table></div>{note}</figure>"
        )

    def _html_row(self, row: int) -> str:
        cells = self.rows[row]
        # a row of the same name as the one above it is shown as its continuation
        again = ' class="again"' if row and cells[0] == self.rows[row - 1][0] else ""
        return f"<tr{again}>" + "".join(self._cell(row, column, text) for column, text in enumerate(cells)) + "</tr>"

    def _cell(self, row: int, column: int, text: str) -> str:
        content = escape(text)
        if column in self.text_columns:
            content = content.replace("(", "(<wbr>").replace("=", "=<wbr>")  # lines of long calls may end there
        elif column:
            content = content.replace("-", "\N{MINUS SIGN}")
        content = f"<strong>{content}</strong>" if (row, column) in self.strong else content
        if column == 0:
            return f'<th scope="row">{content}</th>'
        kind = ' class="text long"' if len(text) > _LONG and column in self.text_columns else self._align(column)
        return f"<td{kind}>{content}</td>"

    def _align(self, column: int) -> str:
        return ' class="text"' if column in self.text_columns else ""

    def to_latex(self) -> str:
        """Return a LaTeX ``table`` with a ``tabular``; it needs the package booktabs."""
        width = max(map(len, [self.header, *self.rows]))
        columns = "".join("l" if column in self.text_columns else "r" for column in range(width))
        lines = [" & ".join(map(_latex, self.header)) + r" \\", r"\midrule"] if self.header else []
        for row, cells in enumerate(self.rows):
            texts = [self._latex_cell(row, column, text) for column, text in enumerate(cells)]
            lines.append(" & ".join(texts) + r" \\")
        caption = _latex(" ".join(filter(None, [self.caption, self.note])))
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{caption}}}",
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
        """Return the table as CSV, with the texts of its cells; no text can be taken for a formula."""
        buffer = io.StringIO()
        rows = [self.header, *self.rows] if self.header else self.rows
        csv.writer(buffer, lineterminator="\n").writerows([harmless(text) for text in row] for row in rows)
        return buffer.getvalue()


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
