from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from helpers.drawn import drawn
from helpers.written_results import write_results
from matplotlib.figure import Figure
from PIL import Image

from fl_lightning.report.results import Results


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write what is drawn behind a picture of one point in place of pictures, which takes seconds less."""
    point = io.BytesIO()
    Image.new("1", (1, 1)).save(point, "png")

    def save(figure: Figure, target: Any, **options: Any) -> None:
        content = point.getvalue() + "\n".join([repr(options), *drawn(figure)]).encode()
        Path(target).write_bytes(content) if isinstance(target, (str, Path)) else target.write(content)

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results that are written by hand, which tests only read."""
    return write_results(tmp_path_factory.mktemp("written"))
