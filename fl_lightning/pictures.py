"""Figures as files: PNG for screens, PDF and SVG for papers."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Kinds of files, and what matplotlib would else write into them: its version and the time.
_NAMELESS = {"pdf": ["Creator", "Producer", "CreationDate"], "svg": ["Creator", "Date"], "png": ["Software"]}
ENDINGS = tuple(_NAMELESS)
"""Endings of the files of a figure; the last one is that of a screen."""


def settings_of_files() -> AbstractContextManager[None]:
    """Return the context in which figures are written into files."""
    import matplotlib

    # Publishers do not take fonts of type 3. The salt is that of names in SVG files, which are random without it.
    return matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "fl-lightning"})


def content_of(figure: Figure, ending: str, **options: Any) -> bytes:
    """Return the content of a file of a figure; equal figures give equal files.

    Args:
        figure: The figure.
        ending: ``"png"``, ``"pdf"`` or ``"svg"``.
        options: Arguments of ``savefig``.
    """
    buffer = io.BytesIO()
    with settings_of_files():
        figure.savefig(buffer, format=ending, metadata=dict.fromkeys(_NAMELESS[ending]), **options)
    return buffer.getvalue()
