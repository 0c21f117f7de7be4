"""The examples of the pages on privacy, compression and robustness run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        # what is computed, not how well it learns
        ("privacy", r"epsilon = \d\.\d\d at delta = 0\.001"),
        # 5 rounds of 6 of the 12 clients that train, 98,666 parameters: 4,933 values of 4 bits with 17 of position, and
        # 10 norms of 32
        (
            "compression",
            f"{round(5 * 6 * (4933 * 21 + 10 * 32) / 8)} bytes up, {5 * 6 * (98666 * 8 + 193 * 32) // 8} down",
        ),
        ("robustness", r"tensor\(0\.\d+\)"),
    ],
)
def test_the_example_runs(page: str, printed: str, capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    exec(compile(code, page, "exec"), {"__name__": "example"})
    assert re.search(printed, capsys.readouterr().out)


@pytest.mark.parametrize("page", ["privacy", "compression", "robustness"])
def test_figures_are_there(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text()
    [image] = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert (DOCS / image).is_file()
    assert "_TABLE" not in text
