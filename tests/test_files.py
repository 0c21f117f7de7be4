"""Files appear whole or not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from helpers.full_disk import limited_files

from fl_lightning import files
from fl_lightning.experiment.files import write_text


def test_a_file_takes_its_place_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.txt"
    for text in ("first", "second"):
        with files.atomic_file(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "first"
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_what_is_broken_off_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(OSError, match=r"^halfway$"), files.atomic_file(path) as temporary:
        temporary.write_text("half")
        raise OSError("halfway")
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
    with files.atomic_file(tmp_path / "file") as temporary:
        temporary.touch()
    assert set(tmp_path.iterdir()) == {tmp_path / "file", young, other}


def test_a_file_of_other_content_is_replaced_if_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    files.write_new(path, b"first", "report")
    files.write_new(path, b"first", "report")
    with pytest.raises(FileExistsError, match=rf"{path} holds something other than this report"):
        files.write_new(path, b"second", "report")
    assert path.read_bytes() == b"first"
    files.write_new(path, b"second", "report", overwrite=True)
    assert path.read_bytes() == b"second"


def test_a_linked_file_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    with files.linked_file(path) as temporary:
        temporary.write_text("first")
    with pytest.raises(FileExistsError), files.linked_file(path) as temporary:
        temporary.write_text("second")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "first")]
    stock = os.link

    def twice(*paths: Path) -> None:
        """Link as NFS does when an answer was lost."""
        stock(*paths)
        stock(*paths)

    monkeypatch.setattr(os, "link", twice)
    with files.linked_file(tmp_path / "other") as temporary:
        temporary.write_text("third")
    assert (tmp_path / "other").read_text() == "third"


def test_whole_files_and_their_checksums(tmp_path: Path) -> None:
    path = tmp_path / "saved.ckpt"
    torch.save({"a": torch.arange(999)}, path)
    assert files.is_whole(path)
    content = path.read_bytes()
    for place in range(len(content) - 700, len(content), 8):  # a table of contents that asks for anything
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        files.is_whole(path)
    for harmed in (content[:-9], content[:999] + bytes([content[999] ^ 1]) + content[1000:], b""):
        path.write_bytes(harmed)
        assert not files.is_whole(path)
    assert not files.is_whole(tmp_path / "nowhere")
    # the SHA-256 of nothing
    assert files.checksum(path) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_folder_that_cannot_be_made_is_named_with_its_argument(tmp_path: Path) -> None:
    files.make_folder("output", tmp_path / "a" / "b", "Give another.")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    for folder, reason in ((tmp_path / "file", "exists"), (Path("/proc"), "No such file")):
        with pytest.raises(OSError, match=rf"`output` must be a folder .* got '{folder}': .*{reason}.* Give another\."):
            files.make_folder("output", folder, "Give another.")


def test_the_folder_of_data_may_be_given_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FL_LIGHTNING_DATA", raising=False)
    assert files.data_folder() == Path("data")
    monkeypatch.setenv("FL_LIGHTNING_DATA", "elsewhere")
    assert files.data_folder() == Path("elsewhere")


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with files.atomic_file(tmp_path / "file") as temporary:
        temporary.touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
