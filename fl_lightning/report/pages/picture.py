"""Figures of a page, as PNG files."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure with its caption.

    Attributes:
        name: File name, without its ending.
        caption: A sentence that says what the figure shows.
        png: Content of the PNG file.
        wide: Whether the figure takes the page's whole width. A narrow screen then shows it in a size that can be read,
            and the reader scrolls sideways.
    """

    name: str
    caption: str
    png: bytes
    wide: bool = False

    def to_html(self) -> str:
        """Return the figure as HTML that holds the image itself."""
        content = base64.b64encode(self.png).decode("ascii")
        text = escape(self.caption)
        image = f'<img alt="{text}" src="data:image/png;base64,{content}">'
        if self.wide:
            image = f'<div class="scroll" tabindex="0" role="region" aria-label="{text}">{image}</div>'
        kind = ' class="wide"' if self.wide else ""
        return f"<figure{kind}>{image}<figcaption>{text}</figcaption></figure>"


def as_png(figure: Figure, dpi: int) -> bytes:
    """Return the content of a PNG file of a figure; equal figures give equal files.

    Args:
        figure: A matplotlib figure.
        dpi: Resolution, in dots per inch.
    """
    buffer = io.BytesIO()
    # "tight" keeps the labels of colour bars whole; the metadata would else name matplotlib's version
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()
