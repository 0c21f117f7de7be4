"""Pages with tables and figures: HTML from one template; LaTeX and CSV of a table."""

from __future__ import annotations

import base64
import io
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import jinja2
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fl_lightning.experiment.files import harmless

_MOST_COLUMNS = 6  # side by side; more of them become rows
_WIDE = 1000  # pixels; a wider figure takes the page's whole width
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "…": r"\ldots{}"}
    | {"±": r"$\pm$", "†": r"$^\dagger$", "‡": r"$^\ddagger$", "<": "$<$", ">": "$>$", "≥": r"$\geq$", "≤": r"$\leq$"}
)
Cell = tuple[str, bool]
"""A text, and whether it is in bold."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table of texts.

    Attributes:
        name: File name, without its ending.
        caption: Sentence above the table; none if empty.
        frame: The cells; the index has the names of the rows.
        note: Explanation below the table.
        bold: Which cells are in bold, of the frame's shape; none if ``None``.
        texts: Columns of texts. The others hold numbers and are aligned at the right.
        header: Whether the columns have titles. A table of facts has none: each row is a name and a text.
    """

    name: str
    caption: str
    frame: pd.DataFrame
    note: str = ""
    bold: np.ndarray | None = None
    texts: Sequence[str] = ()
    header: bool = True

    def turned_if_wide(self, title: str) -> Table:
        """Return the table; columns become rows if they are many, and ``title`` is the title of their names."""
        if len(self.frame.columns) <= _MOST_COLUMNS:
            return self
        frame = self.frame.T.rename_axis(index=title)
        frame.columns = pd.Index([row if isinstance(row, str) else ", ".join(row) for row in self.frame.index])
        return replace(self, frame=frame, bold=None if self.bold is None else self.bold.T)

    @property
    def flat(self) -> pd.DataFrame:
        """The cells, and the names of the rows as the first columns."""
        return self.frame.reset_index()

    @property
    def are_texts(self) -> list[bool]:
        """Whether each column of the flat table holds texts."""
        return [True] * self.frame.index.nlevels + [name in self.texts for name in self.frame.columns]

    @property
    def are_bold(self) -> np.ndarray:
        """Whether each cell of the flat table is in bold."""
        cells = np.zeros(self.frame.shape, dtype=bool) if self.bold is None else self.bold
        return np.pad(cells, ((0, 0), (self.frame.index.nlevels, 0)))

    def groups(self) -> Iterator[list[list[Cell]]]:
        """Yield the rows that have the first name in common."""
        texts, bold = self.flat.to_numpy().tolist(), self.are_bold.tolist()
        rows = [list(zip(*row, strict=True)) for row in zip(texts, bold, strict=True)]
        for _, group in itertools.groupby(rows, key=lambda row: row[0]):
            yield list(group)

    def to_csv(self) -> str:
        """Return the table as CSV, in which no text can be taken for a formula."""
        harmless_frame = self.flat.rename(columns=harmless).map(harmless)
        return str(harmless_frame.to_csv(index=False, header=self.header, lineterminator="\n"))

    def to_text(self, width: int) -> str:
        """Return the table for a screen: columns become rows, and a star stands for bold."""
        starred = self.frame + np.where(self.are_bold[:, self.frame.index.nlevels :], "*", " ")
        note = textwrap.fill(self.note.replace("Bold:", "*:"), width)
        return f"{self.caption}\n\n{starred.T.to_string(line_width=width)}\n\n{note}"

    def to_latex(self) -> str:
        """Return a LaTeX ``table`` with a ``tabular``; it needs the package booktabs."""
        numbers = [name for name, is_text in zip(self.flat.columns, self.are_texts, strict=True) if not is_text]
        styler = self.flat.style.hide(axis="index").format(_latex).format_index(_latex, axis="columns")
        styler.format(lambda text: _latex(text).replace("-", "$-$"), subset=numbers)
        styler.apply(lambda _: np.where(self.are_bold, "font-weight: bold", ""), axis=None)
        if not self.header:
            styler.hide(axis="columns")
        latex = styler.to_latex(
            column_format="".join("l" if is_text else "r" for is_text in self.are_texts),
            caption=_latex(f"{self.caption} {self.note}".strip()),
            position_float="centering",
            hrules=True,
            convert_css=True,
        )
        return f"% needs \\usepackage{{booktabs}}\n{latex}"


def _latex(text: str) -> str:
    return text.translate(_LATEX)


@dataclass(frozen=True)
class Picture:
    """A figure with its caption.

    Attributes:
        name: File name, without its ending.
        caption: A sentence that says what the figure shows.
        png: Content of the PNG file.
    """

    name: str
    caption: str
    png: bytes

    @property
    def wide(self) -> bool:
        """Whether it takes the page's whole width; a narrow screen scrolls it sideways, so that it can be read."""
        return int.from_bytes(self.png[16:20], "big") > _WIDE  # the header of a PNG file

    @property
    def base64(self) -> str:
        """The content as a text."""
        return base64.b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class Section:
    """A section of a page; a page leaves out empty ones.

    Attributes:
        title: Heading.
        text: Paragraph below the heading.
        tables: Tables.
        pictures: Figures.
        details: Long text that the reader unfolds.
    """

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    details: str = ""


def page(title: str, sections: Sequence[Section], summary: str = "", warnings: Sequence[str] = ()) -> str:
    """Return a page as HTML that needs no other file, no script and no network.

    Args:
        title: Heading.
        sections: Sections.
        summary: Line below the heading.
        warnings: Sentences that the reader must know first.
    """
    template = files("fl_lightning.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    shown = [each for each in sections if each.text or each.tables or each.pictures or each.details]
    made = jinja2.Template(template, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return str(made.render(title=title, sections=shown, summary=summary, warnings=warnings))


def as_png(figure: Figure, dpi: int) -> bytes:
    """Return the content of a PNG file of a figure; equal figures give equal files.

    Args:
        figure: The figure.
        dpi: Resolution, in dots per inch.
    """
    buffer = io.BytesIO()
    # "tight" keeps the labels of colour bars whole; the metadata would else name matplotlib's version
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()
