"""Figures as PNG files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def as_png(figure: Figure, dpi: int) -> bytes:
    """Return a figure as a PNG file's content; the same figure gives the same file."""
    buffer = io.BytesIO()
    # "tight" so that a colour bar's label is not cut; matplotlib's version is left out
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()
