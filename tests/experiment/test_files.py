"""Tables as CSV: what is written is read, and numbers keep their digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_lightning.experiment.files import read_csv, write_csv


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rows = [{"=name": "=A1", "n": -1.5}, {"=name": "''", "n": "+1"}, {"n": 0.1 + 0.2}]
    write_csv(tmp_path / "t.csv", ["=name", "n"], rows)
    text = (tmp_path / "t.csv").read_text()
    assert text.splitlines() == ["=name,n", "=A1,-1.5", "'',+1", ",0.30000000000000004"]
    assert read_csv(tmp_path / "t.csv") == [
        {"=name": "=A1", "n": "-1.5"},
        {"=name": "''", "n": "+1"},
        {"=name": "", "n": "0.30000000000000004"},
    ]


def test_a_column_that_would_be_lost_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="b"):
        write_csv(tmp_path / "t.csv", ["a"], [{"a": 1, "b": 2}])
