from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the heights of bars in place of pictures, which takes seconds less."""

    def save(figure: Figure, target: Any, **options: Any) -> None:
        bars = [patch.get_height() for axes in figure.axes for patch in axes.patches]
        content = b"\x89PNG" + repr(bars).encode()
        Path(target).write_bytes(content) if isinstance(target, (str, Path)) else target.write(content)

    monkeypatch.setattr(Figure, "savefig", save)
