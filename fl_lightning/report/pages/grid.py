"""A table of texts, as HTML, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape

from fl_lightning.experiment.files import harmless
from fl_lightning.partitioners.short_texts import shortened_together

_NAME = 80  # characters of a name; longer ones are shortened
_MANY = 13  # columns; such a table is printed in small letters
_SHORT = 8  # rows; such a table is printed on one page
_MOST_COLUMNS = 6  # side by side; more of them become rows
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

    def turned_if_wide(self, title: str, num_names: int) -> Grid:
        """Return the table; columns of numbers become rows if they are many.

        Args:
            title: Title of the first column then, which has the titles of the columns.
            num_names: Number of first columns, which name the rows.
        """
        if len(self.header) - num_names <= _MOST_COLUMNS:
            return self
        header = [title, *(", ".join(row[:num_names]) for row in self.rows)]
        rows = [
            [self.header[place], *(row[place] for row in self.rows)] for place in range(num_names, len(self.header))
        ]
        strong = {(column - num_names, row + 1) for row, column in self.strong}
        return replace(self, header=header, rows=rows, strong=strong, text_columns=(0,), name_columns=(0,))

    def to_html(self) -> str:
        """Return the table as HTML; it scrolls sideways on a narrow screen."""
        head = "".join(
            f'<th scope="col"{self._class(place, text)}{_title(text)}>{escape(short)}</th>'
            for place, (text, short) in enumerate(zip(self.header, shortened_together(self.header, _NAME), strict=True))
        )
        head = f"<thead><tr>{head}</tr></thead>\n" if self.header else ""
        kind = "" if self.header else ' class="facts"'
        named = self.name_columns if self.header else ()
        names = {place: shortened_together([row[place] for row in self.rows], _NAME) for place in named}
        body = "\n".join(
            self._html_row(row, {place: names[place][row] for place in named}) for row in range(len(self.rows))
        )
        caption = f"<figcaption>{escape(self.caption)}</figcaption>\n" if self.caption else ""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        size = (" short" if len(self.rows) <= _SHORT else "") + (" many" if len(self.header) >= _MANY else "")
        return (
            f'<figure class="table{size}">{caption}<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(self.caption or self.name)}"><table{kind}>\n{head}<tbody>\n{body}\n</tbody>\n'
            f"</table></div>{note}</figure>"
        )

    def _html_row(self, row: int, names: Mapping[int, str]) -> str:
        cells = self.rows[row]
        first = 1 if self._continues(row) else 0  # the name above is that of this row, too
        return "<tr>" + "".join(self._cell(row, place, names) for place in range(first, len(cells))) + "</tr>"

    def _continues(self, row: int) -> bool:
        """Whether a row has the same name as the one above it."""
        return 0 < row < len(self.rows) and self.rows[row][0] == self.rows[row - 1][0]

    def _cell(self, row: int, column: int, names: Mapping[int, str]) -> str:
        text = self.rows[row][column]
        content = escape(names.get(column, text))
        if column in self.text_columns and len(text) > _LONG:
            content = content.replace("(", "(<wbr>").replace("=", "=<wbr>")  # lines of long calls may end there
        elif column and column not in self.text_columns:
            content = content.replace("-", "\N{MINUS SIGN}")
        content = f"<strong>{content}</strong>" if (row, column) in self.strong else content
        kind = self._class(column, text) + (_title(text) if column in names else "")
        if column:
            return f"<td{kind}>{content}</td>"
        span = next(number for number in itertools.count(1) if not self._continues(row + number))
        scope = f'scope="rowgroup" rowspan="{span}"' if span > 1 else 'scope="row"'
        return f"<th {scope}{kind}>{content}</th>"

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
