"""A folder belongs to one run at a time; the message names the processes that hold it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
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


ORPHAN = """
import pathlib, subprocess, sys
from fl_lightning.experiment.lock import locked
with locked(pathlib.Path(sys.argv[1])) as lock:
    wait = "import sys; sys.stdin.read()"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": int(sys.argv[2])}
    worker = subprocess.Popen([sys.executable, "-c", wait], pass_fds=(lock.descriptor,), **quiet)
    lock.add_worker(worker.pid)
    print(worker.pid, flush=True)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of processes is known on Linux alone")
def test_a_stopped_worker_whose_run_has_ended_is_named(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        command = [sys.executable, "-c", ORPHAN, str(tmp_path), str(reading)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, pass_fds=(reading,))
        worker = int(done.stdout)
        os.kill(worker, signal.SIGSTOP)
        while Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            pass
        text = refused(tmp_path)
        os.kill(worker, signal.SIGKILL)
    finally:
        os.close(writing)
        os.close(reading)
    assert f"its worker {worker} (stopped) on {HOST}. The run itself has ended, but not all of its workers." in text
    assert f"`kill -KILL {worker}`" in text
    with locked(tmp_path):  # within the ordinary patience
        pass


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
