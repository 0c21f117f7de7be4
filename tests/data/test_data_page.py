"""The page on data runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_page_on_data_runs_from_its_first_block_to_its_last(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    with caplog.at_level("INFO"):
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compile(block, str(PAGE), "exec"), names)
    # what the page promises of these data
    lines = [record.getMessage() for record in caplog.records]
    assert "2 of 6 clients train (45 samples), 2 validate and 2 test; 2 train in each round." in lines
    assert names["own_recordings"].split.val == 0.2
    assert capsys.readouterr().out.splitlines()[-1] == f"12 {names['data'].client_sizes.sum()}"
