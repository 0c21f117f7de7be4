"""Files appear whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.full_disk import limited_files

import fl_lightning.files
from fl_lightning.experiment.files import write_text
from fl_lightning.files import atomic_file, atomic_folder, remove_stale

KEY = "0123456789abcdef" * 2
ROOT = Path(__file__).parents[1]


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


def test_a_folder_takes_its_place_when_it_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cache"
    with atomic_folder(path) as temporary:
        (temporary / "a.txt").write_text("a")
        assert not path.exists()
    assert [place.name for place in path.iterdir()] == ["a.txt"]
    with pytest.raises(RuntimeError, match="halfway"), atomic_folder(tmp_path / "new" / "other") as temporary:
        (temporary / "a.txt").write_text("a")
        raise RuntimeError("halfway")
    assert list(path.parent.iterdir()) == [path]


def test_the_first_folder_stays(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with atomic_folder(path) as late:
        (late / "a.txt").write_text("late")
        with atomic_folder(path) as early:
            (early / "a.txt").write_text("early")
    assert (path / "a.txt").read_text() == "early"
    assert list(tmp_path.iterdir()) == [path]


_PROGRAM = """
import sys, time
from pathlib import Path
import fl_lightning.files as module
with getattr(module, sys.argv[1])(Path(sys.argv[2])) as temporary:
    (temporary if sys.argv[1] == "atomic_file" else temporary / "half").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["atomic_file", "atomic_folder"])
def test_what_a_killed_process_leaves_is_removed_by_the_next_but_not_before(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "result"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _PROGRAM, kind, str(path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        (left,) = tmp_path.iterdir()
        remove_stale(tmp_path)
        assert list(tmp_path.iterdir()) == [left]  # it is being written
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert list(tmp_path.iterdir()) == [left]
    if kind == "atomic_file":
        with atomic_file(path) as temporary:
            temporary.write_text("whole")
    else:
        with atomic_folder(path) as temporary:
            (temporary / "whole").touch()
    assert list(tmp_path.iterdir()) == [path]


def test_only_temporary_files_of_the_name_are_removed(tmp_path: Path) -> None:
    kept = [f".other.txt.{KEY}.tmp", f".file.txt.{KEY[:-1]}.tmp", f"file.txt.{KEY}.tmp", ".file.txt.tmp", "x.tmp"]
    kept += [f".file.txt.{KEY[:-1]}G.tmp", f".file.txt.more.{KEY}.tmp", f".file.txt.{KEY}.txt"]
    for name in (*kept, f".file.txt.{KEY}.tmp"):
        (tmp_path / name).touch()
    with atomic_file(tmp_path / "file.txt") as temporary:
        temporary.touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "file.txt"])
    remove_stale(tmp_path)
    left = [f".other.txt.{KEY}.tmp", f".file.txt.more.{KEY}.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({*kept, "file.txt"} - set(left))


def test_without_locks_only_old_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fl_lightning.files, "fcntl", None)
    young, old = tmp_path / f".a.{KEY}.tmp", tmp_path / f".b.{KEY}.tmp"
    young_folder, old_folder = tmp_path / f".c.{KEY}.tmp", tmp_path / f".d.{KEY}.tmp"
    two_days_ago = time.time() - 2 * 24 * 60 * 60
    for path in (young, old):
        path.touch()
    for folder in (young_folder, old_folder):
        folder.mkdir()
        (folder / "half").touch()
        os.utime(folder / "half", (two_days_ago, two_days_ago))
        os.utime(folder, (two_days_ago, two_days_ago))
    (young_folder / "growing").touch()
    os.utime(old, (two_days_ago, two_days_ago))
    remove_stale(tmp_path)
    assert set(tmp_path.iterdir()) == {young, young_folder}
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("whole")
    assert (tmp_path / "file").read_text() == "whole"


def test_a_folder_that_is_not_there_has_nothing_stale(tmp_path: Path) -> None:
    remove_stale(tmp_path / "none")


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with atomic_file(tmp_path / "file") as temporary:
        temporary.touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
