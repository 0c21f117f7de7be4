"""One runner has a cell, and one that has lost it publishes nothing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
from experiment.conftest import Run, run_here
from helpers.small_table import alone, spec

from fl_lightning.experiment import claims
from fl_lightning.experiment.claims import Claim, Claims
from fl_lightning.experiment.files import json_text


class Clock:
    """A time that only goes on when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(claims, "time", SimpleNamespace(monotonic=lambda: self.now))

    def let_a_lease_pass(self) -> None:
        self.now += claims.LEASE


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def runner() -> Claims:
    return Claims(lambda folder: None)


def test_a_cell_has_one_holder_until_it_is_released(tmp_path: Path) -> None:
    first, second = runner(), runner()
    taken = first.take(tmp_path)
    assert taken is not None
    assert second.take(tmp_path) is None
    first.release(tmp_path)
    later = second.take(tmp_path)
    assert later is not None
    assert (taken.number, later.number) == (1, 2)
    assert taken.is_lost()
    assert not later.is_lost()


def test_of_many_threads_one_takes_a_cell(tmp_path: Path) -> None:
    taken: list[Any] = []
    threads = [threading.Thread(target=lambda: taken.append(runner().take(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [claim.number for claim in taken if claim is not None] == [1]


@pytest.mark.parametrize("content", ["", "{", json_text({"pid": 1})])
def test_a_claim_that_nobody_touches_is_taken_over_after_a_lease(tmp_path: Path, clock: Clock, content: str) -> None:
    (tmp_path / "claim-1").write_text(content)  # a power cut may leave less than was written
    other = runner()
    assert other.take(tmp_path) is None
    clock.now += claims.LEASE - 1
    assert other.take(tmp_path) is None
    clock.now += 1
    taken = other.take(tmp_path)
    assert taken is not None
    assert taken.number == 2


def test_a_claim_that_is_touched_stays(tmp_path: Path, clock: Clock) -> None:
    holder, other = runner(), runner()
    claim = holder.take(tmp_path)
    assert claim is not None
    for hour in range(3):  # whatever hours the holder's clock shows
        assert other.take(tmp_path) is None
        clock.let_a_lease_pass()
        os.utime(claim.path, (1e9 - 3600 * hour,) * 2)
    assert other.take(tmp_path) is None
    clock.let_a_lease_pass()
    assert other.take(tmp_path) is not None


def test_a_run_that_waits_says_for_whom(tmp_path: Path, clock: Clock) -> None:
    holder, other = runner(), runner()
    holder.take(tmp_path)
    other.take(tmp_path)
    held = Claim(tmp_path, 1).holder()
    assert held == {"host": socket.gethostname(), "machine": ANY, "pid": os.getpid(), "begun": ANY}
    text = f"process {os.getpid()} on {held['host']}, since {held['begun']}"
    assert other.waited_for() == [(tmp_path, text)]
    assert other.waited_for() == []  # once
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "claim-1").touch()
    other.take(tmp_path / "empty")
    unknown = f"an unknown runner, whose claim {tmp_path / 'empty' / 'claim-1'} cannot be read"
    assert other.waited_for() == [(tmp_path / "empty", unknown)]


def test_a_run_says_for_whom_it_waits(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (finished.cell() / "result.json").unlink()
    (finished.cell() / "claim-1").write_text(json_text({"host": "there", "machine": "x", "pid": 7, "begun": "now"}))
    times = itertools.count(0.0, claims.LEASE)
    monkeypatch.setattr(claims, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr("fl_lightning.experiment.runner._LOOK", 0)
    told = f"Waiting for cells/{finished.cell().name}, which is run by process 7 on there, since now."
    assert finished.again().text.splitlines().count(told) == 1


def test_a_claim_whose_process_has_ended_is_free_at_once(tmp_path: Path, clock: Clock) -> None:
    machine = claims._machine()
    for name, record, is_free in (
        ("ended", {"machine": machine, "pid": 2**31 - 1}, True),
        ("elsewhere", {"machine": "another", "pid": 2**31 - 1}, False),
        ("at work", {"machine": machine, "pid": os.getpid()}, False),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "claim-3").write_text(json_text(record))
        (tmp_path / name / "claim-x").touch()
        taken = runner().take(tmp_path / name)
        assert (taken == Claim(tmp_path / name, 4)) == is_free, name
    assert claims.newest_claim(tmp_path / "nowhere") is None
    assert claims.newest_claim(tmp_path) is None


def test_claims_are_touched_and_those_that_are_lost_are_told(tmp_path: Path) -> None:
    told: list[Path] = []
    holder = Claims(told.append)
    kept, lost = (holder.take(tmp_path / name) for name in ("kept", "lost"))
    assert kept is not None and lost is not None
    for claim in (kept, lost):
        os.utime(claim.path, (0, 0))
    (tmp_path / "lost" / "claim-2").touch()
    waits = iter([False, True])
    asked: list[float] = []
    holder._beat(SimpleNamespace(wait=lambda seconds: (asked.append(seconds), next(waits))[1]))  # type: ignore[arg-type]
    assert told == [tmp_path / "lost"]
    assert (kept.path.stat().st_mtime > 0, lost.path.stat().st_mtime) == (True, 0)
    assert asked == [5.0, 5.0]  # a sixth of 30 seconds
    holder.close()
    assert json.loads(kept.path.read_text())["released"]
    assert "released" not in json.loads(lost.path.read_text())


def table_with(callback: str, folder: Path, **arguments: Any) -> dict[str, Any]:
    return alone(callbacks=[spec(f"faulty.{callback}", marker=str(folder / "marker"), **arguments)])


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_test_end"])
def test_a_runner_that_has_lost_its_cell_publishes_nothing(
    tmp_path: Path, faulty: None, hook: str, finished_table: Run
) -> None:
    # another runner takes the cell over, and releases it at once
    run = run_here(table_with("LoseClaim", tmp_path, hook=hook), tmp_path / "out")
    assert run.rows[0]["score"] == finished_table.rows[0]["score"]
    assert (tmp_path / "marker").read_text().splitlines() == ["no result, attempt 1", "no result, attempt 3"]
    assert "failed" not in run.text
    assert "Tried again" not in run.text
    assert sorted(path.name for path in run.cell().glob("*-*")) == []


def test_attempts_are_counted_whatever_the_clock_shows(
    tmp_path: Path, faulty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = iter(range(10**6, 0, -1))
    monkeypatch.setattr("time.time", lambda: 3600.0 * next(hours))
    table = table_with("FailAlways", tmp_path)
    assert run_here(table, tmp_path / "out").rows[0]["status"] == "failed"
    assert run_here(table, tmp_path / "out", retries=2).rows[0]["status"] == "failed"
    assert len((tmp_path / "marker").read_text().splitlines()) == 1 + 3


# A stopped worker gets five seconds to end by itself.
@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs a system that can stop a process")
def test_a_worker_that_stands_still_is_ended(tmp_path: Path, faulty: None) -> None:
    run = run_here(table_with("StandStill", tmp_path), tmp_path / "out", workers=1, cell_timeout=0.1)
    assert run.rows[0]["error"].startswith("TimeoutError: the cell took longer than 0.1 s")
