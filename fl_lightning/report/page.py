"""Pages with tables and figures: HTML from one template, in which pandas makes the tables; LaTeX and CSV of a table."""

from __future__ import annotations

import base64
import textwrap
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import jinja2
import pandas as pd
from pandas.io.formats.style import Styler

#: More columns than these become rows.
_MOST_COLUMNS = 6
#: A figure of more pixels takes the page's whole width.
_WIDE = 1000
#: A cell of more characters asks for a wide column.
_LONG = 30
#: LaTeX's names of Greek letters; the other capitals look like Latin ones. The last five are variants.
_GREEK = {
    "αβγδεζηθικλμνξ": "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi",
    "πρστυφχψω": "pi rho sigma tau upsilon varphi chi psi omega",
    "ΓΔΘΛΞΠΣΥΦΨΩ": "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega",
    "µϵϕϑς": "mu epsilon phi vartheta varsigma",
}
_SIGNS = {
    "±≥≤≈≠∞→·√": "pm geq leq approx neq infty rightarrow cdot surd",
    "∈∇∂‖\N{MULTIPLICATION SIGN}\N{SCRIPT SMALL L}": "in nabla partial Vert times ell",
}
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋"
_MINUS = "\N{MINUS SIGN}"


def _latex_characters() -> dict[int, str]:
    """Return how LaTeX writes characters that it would take as commands, or that its fonts lack."""
    found = {character: f"\\{character}" for character in "&%$#_{}"}
    found |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    found |= {"…": r"\ldots{}", "†": r"$^\dagger$", "‡": r"$^\ddagger$", "<": "$<$", ">": "$>$", _MINUS: "$-$"}
    for characters, names in {**_GREEK, **_SIGNS}.items():
        for character, name in zip(characters, names.split(), strict=True):
            found[character] = f"$\\{name}$"
    for sign, characters in (("^", _RAISED), ("_", _LOWERED)):
        for character in characters:
            at_the_line = unicodedata.normalize("NFKC", character).replace(_MINUS, "-")
            found[character] = f"${sign}{at_the_line}$"
    return str.maketrans(found)


_LATEX = _latex_characters()
#: Stands around a text in bold, as in Markdown.
_BOLD = "**"


@dataclass(frozen=True, eq=False)
class Table:
    """A table of strings; :func:`bold` makes one that is in bold.

    Attributes:
        name: File name, without its ending.
        caption: Sentence above the table; none if empty.
        frame: The cells; the index has the names of the rows.
        note: Explanation below the table.
        texts: Columns of strings. The others hold numbers and are aligned at the right.
        header: Whether the columns have titles. A table of facts has none: each row is a name and a string.
    """

    name: str
    caption: str
    frame: pd.DataFrame
    note: str = ""
    texts: Sequence[str] = ()
    header: bool = True

    def turned_if_wide(self, title: str) -> Table:
        """Return the table; columns become rows if they are many, and ``title`` is the title of their names."""
        if len(self.frame.columns) <= _MOST_COLUMNS:
            return self
        frame = self.frame.T.rename_axis(index=title)
        # A row has one name or a tuple of them.
        names = [row if isinstance(row, str) else ", ".join(row) for row in self.frame.index]
        frame.columns = pd.Index(names)
        return replace(self, frame=frame)

    @property
    def flat(self) -> pd.DataFrame:
        """The cells, and the names of the rows as the first columns."""
        return self.frame.reset_index()

    @property
    def numbers(self) -> list[Hashable]:
        """The columns of the flat table that hold numbers."""
        return [name for name in self.frame.columns if name not in self.texts]

    def to_csv(self) -> str:
        """Return the table as CSV."""
        return str(self.flat.map(plain).to_csv(index=False, header=self.header, lineterminator="\n"))

    def to_text(self, width: int) -> str:
        """Return the table for a screen: columns become rows, and a star stands for bold."""
        # The blanks keep the numbers below each other.
        starred = self.frame.map(lambda text: f"{plain(text)}*" if is_bold(text) else f"{text} ")
        note = textwrap.fill(self.note.replace("Bold:", "*:"), width)
        return f"{self.caption}\n\n{starred.T.to_string(line_width=width)}\n\n{note}"

    def to_html(self) -> str:
        """Return an HTML ``table``, in which successive rows of the same first name share its cell."""
        first = self.flat.columns[0]
        cells = self.flat.drop(columns=first)
        # pandas merges equal names of an outer level. The numbers of the rows are an inner level, which is not shown.
        cells.index = pd.MultiIndex.from_arrays([self.flat[first], cells.index])
        cells.columns.name = first
        texts = [name for name in cells.columns if name not in self.numbers]
        styler = Styler(cells, uuid=self.name, cell_ids=False)
        styler.hide(axis="index", level=1).hide(axis="index", names=True)
        styler.format(lambda text: plain(str(text)), escape="html")
        styler.format(lambda text: plain(str(text)).replace("-", _MINUS), escape="html", subset=self.numbers)
        styler.format_index(escape="html", axis="index").format_index(escape="html", axis="columns")
        # The style of the classes is in the page.
        classes = {name: [_classes_of(cell, name in texts) for cell in cells[name]] for name in cells.columns}
        styler.set_td_classes(pd.DataFrame(classes, index=cells.index))
        styler.set_table_styles({name: [{"selector": "", "props": "text-align: left"}] for name in texts})
        attributes = ""
        if not self.header:
            styler.hide(axis="columns")
            attributes = 'class="facts"'
        return str(styler.to_html(table_attributes=attributes))

    def to_latex(self) -> str:
        """Return a LaTeX ``table`` with a ``tabular``; it needs the package booktabs."""
        styler = self.flat.style.hide(axis="index").format(_latex).format_index(_latex, axis="columns")
        styler.format(lambda text: _latex(text).replace("-", "$-$"), subset=self.numbers)
        styler.map(lambda text: "font-weight: bold" if is_bold(text) else "")
        if not self.header:
            styler.hide(axis="columns")
        alignments = ["r" if name in self.numbers else "l" for name in self.flat.columns]
        latex = styler.to_latex(
            column_format="".join(alignments),
            caption=_latex(f"{self.caption} {self.note}".strip()),
            label=f"tab:{self.name}",
            position_float="centering",
            hrules=True,
            convert_css=True,
        )
        return f"% needs \\usepackage{{booktabs}}\n{latex}"


def bold(text: str) -> str:
    """Return a cell in bold."""
    return f"{_BOLD}{text}{_BOLD}"


def is_bold(cell: str) -> bool:
    """Whether a cell is in bold."""
    return plain(cell) != cell


def plain(cell: str) -> str:
    """Return the text of a cell, which may be in bold."""
    is_marked = cell.startswith(_BOLD) and cell.endswith(_BOLD) and len(cell) >= 2 * len(_BOLD)
    if is_marked:
        return cell.removeprefix(_BOLD).removesuffix(_BOLD)
    return cell


def _classes_of(cell: str, is_text: bool) -> str:
    """Return the classes of a cell in HTML."""
    classes = []
    if is_bold(cell):
        classes.append("best")
    if is_text:
        classes.append("text")
    if is_text and len(cell) > _LONG:
        classes.append("long")
    return " ".join(classes)


def _latex(cell: object) -> str:
    return plain(str(cell)).translate(_LATEX)


@dataclass(frozen=True)
class Picture:
    """A figure with its caption.

    Attributes:
        name: File name, without its ending.
        caption: A sentence that says what the figure shows.
        files: The content of its files by their ending: of ``png``, which the page shows, and maybe ``pdf`` and
            ``svg``.
    """

    name: str
    caption: str
    files: Mapping[str, bytes]

    @property
    def png(self) -> bytes:
        """Content of the PNG file."""
        return self.files["png"]

    @property
    def wide(self) -> bool:
        """Whether it takes the page's whole width; a narrow screen scrolls it sideways, so that it can be read."""
        # The header of a PNG file has the width in these bytes.
        return int.from_bytes(self.png[16:20], "big") > _WIDE

    @property
    def base64(self) -> str:
        """The content as a string."""
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
    content = {"title": title, "sections": shown, "summary": summary, "warnings": warnings}
    return str(made.render(content))
