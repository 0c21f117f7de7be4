"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_lightning.atomic_file import atomic_file


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
