"""Views of objects in a notebook: HTML tables, whole pages in a frame, and pictures."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fl_lightning.pictures import content_of, settings_of_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def as_table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Return rows as an HTML table; of more than 20 rows the first and the last ones, and how many there are.

    Args:
        rows: The cells of each row.
        header: The names of the columns, if there are any.
    """
    import pandas as pd

    table = pd.DataFrame([list(row) for row in rows], columns=list(header) or None)
    options: dict[str, Any] = {"index": False, "header": bool(header), "border": 0, "float_format": "{:.4g}".format}
    return str(table.to_html(max_rows=20, show_dimensions=len(table) > 20, **options))


def in_frame(page: str, height: int = 700) -> str:
    """Return a whole HTML page as a frame, so that its style stays within.

    Args:
        page: The content of the page.
        height: Pixels.
    """
    style = f"width: 100%; height: {height}px; border: 1px solid #8884"
    return f'<iframe srcdoc="{html.escape(page, quote=True)}" style="{style}"></iframe>'


class Drawn:
    """What drawing functions return: ``figure``, which is not pyplot's, and ``savefig``."""

    figure: Figure

    def savefig(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the picture; ``options`` are those of matplotlib's ``Figure.savefig``."""
        with settings_of_files():
            self.figure.savefig(path, **options)

    def _repr_png_(self) -> bytes:
        return content_of(self.figure, "png", dpi=100, bbox_inches="tight")
