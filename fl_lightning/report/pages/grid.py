"""A table of texts, as HTML, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from fl_lightning.experiment.files import harmless
from fl_lightning.report.short_texts import shortened

_NAME = 48  # characters of a name; longer ones are shortened
_MANY = 13  # columns; such a table is printed in small letters
_SHORT = 8  # rows; such a table is printed on one page
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
    "‡": r"$^\ddagger$",
    "<": "$<$",
    ">": "$>$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "…": r"\ldots{}",
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
        name_columns: Columns of names, which HTML shortens if they are very long; so it does with the header.
    """

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: set[tuple[int, int]] = field(default_factory=set)
    text_columns: tuple[int, ...] = (0,)
    note: str = ""
    name_columns: tuple[int, ...] = (0,)

    def to_html(self) -> str:
        """Return the table as HTML; it scrolls sideways on a narrow screen."""
        head = "".join(
            f'<th scope="col"{self._class(place, text)}{_title(text)}>{escape(shortened(text, _NAME))}</th>'
            for place, text in enumerate(self.header)
        )
        head = f"<thead><tr>{head}</tr></thead>\n" if self.header else ""
        kind = "" if self.header else ' class="facts"'
        body = "\n".join(self._html_row(row) for row in range(len(self.rows)))
        caption = f"<figcaption>{escape(self.caption)}</figcaption>\n" if self.caption else ""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        size = (" short" if len(self.rows) <= _SHORT else "") + (" many" if len(self.header) >= _MANY else "")
        return (
            f'<figure class="table{size}">{caption}<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(self.caption or self.name)}"><table{kind}>\n{head}<tbody>\n{body}\n</tbody>\n'
            f"</table></div>{note}</figure>"
        )

    def _html_row(self, row: int) -> str:
        cells = self.rows[row]
        # a row of the same name as the one above it is shown as its continuation
        again = ' class="again"' if row and cells[0] == self.rows[row - 1][0] else ""
        return f"<tr{again}>" + "".join(self._cell(row, column, text) for column, text in enumerate(cells)) + "</tr>"

    def _cell(self, row: int, column: int, text: str) -> str:
        named = bool(self.header) and column in self.name_columns
        content = escape(shortened(text, _NAME) if named else text)
        if column in self.text_columns and len(text) > _LONG:
            content = content.replace("(", "(<wbr>").replace("=", "=<wbr>")  # lines of long calls may end there
        elif column and column not in self.text_columns:
            content = content.replace("-", "\N{MINUS SIGN}")
        content = f"<strong>{content}</strong>" if (row, column) in self.strong else content
        kind = self._class(column, text) + (_title(text) if named else "")
        return f'<th scope="row"{kind}>{content}</th>' if column == 0 else f"<td{kind}>{content}</td>"

    def _class(self, column: int, text: str) -> str:
        kinds = ["text"] if column in self.text_columns and column else []
        kinds += ["long"] if len(text) > _LONG and (column in self.text_columns or text in self.header) else []
        return f' class="{" ".join(kinds)}"' if kinds else ""

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


def _title(text: str) -> str:
    """Return the attribute that shows the whole of a shortened name."""
    return f' title="{escape(text)}"' if len(text) > _NAME else ""


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
