"""A folder belongs to one run at a time; the message names the processes that hold it."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from fl_lightning.experiment.lock import locked

HOST = socket.gethostname()


def refused(folder: Path) -> str:
    """Try to lock a folder that is held, and return the message."""
    with pytest.raises(RuntimeError) as caught, locked(folder, patience=0):
        pass
    return str(caught.value)


def test_the_message_names_the_process_and_the_machine(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert refused(tmp_path) == (
            f"Another run is at work in {tmp_path}: process {os.getpid()} on {HOST}. Wait for it, end it there with "
            f"`kill {os.getpid()}`, or choose another `output`."
        )
    with locked(tmp_path):  # it is free again
        assert (tmp_path / ".lock").read_text().startswith(f"run {os.getpid()} ")


def test_a_number_that_belongs_to_another_process_by_now_is_not_named(tmp_path: Path) -> None:
    with locked(tmp_path):
        lock = tmp_path / ".lock"
        lock.write_text(re.sub(r"^(run \d+) \S+", r"\1 12", lock.read_text()))
        assert refused(tmp_path) == (f"Another run is at work in {tmp_path}. Wait for it, or choose another `output`.")


@pytest.mark.parametrize("half", ["work", "worker 18", "worker 18 5", "worker 1x 5 elsewhere", ""])
def test_a_line_that_is_written_only_in_part_is_left_out(tmp_path: Path, half: str) -> None:
    with locked(tmp_path):
        (tmp_path / ".lock").write_text(f"run 17 4 elsewhere\n{half}")
        text = refused(tmp_path)
        assert "process 17 on elsewhere. Wait for it, end it there with `kill 17`" in text
        (tmp_path / ".lock").write_text(half)
        assert refused(tmp_path) == f"Another run is at work in {tmp_path}. Wait for it, or choose another `output`."
