"""Files appear whole or not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from helpers.full_disk import limited_files

from fl_lightning.experiment.files import write_text
from fl_lightning.files import atomic_file


def test_a_file_takes_its_place_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.txt"
    for text in ("first", "second"):
        with atomic_file(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "first"
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_what_is_broken_off_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(RuntimeError, match="halfway"), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("halfway")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("first")
    with limited_files(100), pytest.raises(OSError, match=r"too large: '.*results\.csv'") as caught:
        write_text(path, "x" * 101)
    assert caught.value.filename == str(path)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["first"]


def test_what_killed_processes_left_a_day_ago_is_removed(tmp_path: Path) -> None:
    young, old, other = (tmp_path / f".{name}.tmp" for name in ("file.1", "file.2", "other.3"))
    for path in (young, old, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (time.time() - 25 * 60 * 60,) * 2)
    with atomic_file(tmp_path / "file") as temporary:
        temporary.touch()
    assert set(tmp_path.iterdir()) == {tmp_path / "file", young, other}


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with atomic_file(tmp_path / "file") as temporary:
        temporary.touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
