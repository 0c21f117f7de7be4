"""Views of objects in a notebook: HTML tables, whole pages in a frame, and pictures."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ROWS = 20
_LONGEST = 80  # characters of a cell


def as_table(rows: Iterable[Sequence[object]], header: Sequence[object] = ()) -> str:
    """Return rows as an HTML table; of more than 20 rows the first ones, and how many there are.

    Args:
        rows: The cells of each row.
        header: The names of the columns, if there are any.
    """
    every = [list(row) for row in rows]
    lines = [_row(header, "th")] if header else []
    lines += [_row(row, "td") for row in every[:_MOST_ROWS]]
    if len(every) > _MOST_ROWS:
        lines.append(_row([f"... {len(every)} rows in all"], "td"))
    return f"<table>{''.join(lines)}</table>"


def mapping_as_table(values: Mapping[str, object]) -> str:
    """Return names and values as an HTML table of two columns."""
    return as_table(values.items())


def in_frame(page: str, height: int = 700) -> str:
    """Return a whole HTML page as a frame, so that its style stays within.

    Args:
        page: The content of the page.
        height: Pixels.
    """
    style = f"width: 100%; height: {height}px; border: 1px solid #8884"
    return f'<iframe srcdoc="{html.escape(page, quote=True)}" style="{style}"></iframe>'


def _row(cells: Sequence[object], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{_cell(cell)}</{tag}>' for cell in cells)}</tr>"


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return html.escape(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...")


class Drawn:
    """What drawing functions return: ``figure``, which is not pyplot's, and ``savefig``."""

    figure: Figure

    def savefig(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the picture; ``options`` are those of matplotlib's ``Figure.savefig``."""
        self.figure.savefig(path, **options)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.figure.savefig(content, format="png", dpi=100, bbox_inches="tight")
        return content.getvalue()
