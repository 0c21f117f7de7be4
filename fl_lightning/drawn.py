"""A drawn figure that a notebook shows."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
