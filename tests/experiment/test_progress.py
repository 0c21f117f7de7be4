"""The live display of a run."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.small_table import TABLE, small
from rich.console import Console

from fl_lightning.experiment import read_table
from fl_lightning.experiment.claims import Claims
from fl_lightning.experiment.files import write_json
from fl_lightning.experiment.plan import planned, table_cells
from fl_lightning.experiment.progress import Progress
from fl_lightning.experiment.store import Store

#: Brackets in a name are no markup.
METHODS = {"a[/]b": TABLE["methods"]["FedAvg"], "RADFed": TABLE["methods"]["RADFed"]}


def test_bars_count_what_is_finished_failed_and_running(tmp_path: Path) -> None:
    store, table = Store(tmp_path), read_table(small(seeds=[0, 1], methods=METHODS))
    first, second, third, fourth = cells = table_cells(table, planned(table))
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Progress(cells, store, console, "cells") as progress:
        for cell, file in ((first, "result"), (second, "failed")):
            write_json(store.cell_folder(cell) / f"{file}.json", {"error": ""})
        folder = store.cell_folder(third)
        claims = Claims(lambda folder: None)
        claims.take(folder)
        assert store.state(third) == ("running", 0)
        (folder / "curve-1.jsonl").write_text("{}\n{}\n{}\n")
        progress.look()
        progress.end(fourth, "finished", 0)
        bars = {task.description: task for task in progress.tasks}
    # The time that is left follows from the last hour.
    assert (progress.speed_estimate_period, progress.expand, progress.live.transient) == (3600.0, True, True)
    assert list(bars) == ["a[/]b on digits", "RADFed on digits", "cells"]
    assert bars["cells"].fields["counts"] == "1 finished, 1 failed, 1 running"
    # four rounds each: first has ended, second has failed, so that none is left, and third has finished three
    assert (bars["cells"].total, bars["cells"].completed) == (16, 11)
    assert "finished:" not in console.file.getvalue()  # type: ignore[attr-defined]
    assert {first.method, third.method} == {"a[/]b"}
    assert bars["a[/]b on digits"].completed == 7
    claims.close()
    assert store.state(third) == ("waiting", 0)
    assert store.state(fourth) == ("waiting", 0)


def test_a_line_tells_of_each_cell_that_ends_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table = Store(tmp_path), read_table(small(folds=[3], seeds=[5], values={"x": "$lr"}, methods=METHODS))
    cells = table_cells(table, planned(table))
    tuned = replace(cells[0], values={"lr": 0.123456, "kind": {"class_path": "a.B", "size": 3}})
    write_json(store.cell_folder(tuned) / "failed.json", {"error": "ValueError: x"})
    console = Console(file=io.StringIO(), width=30)
    progress = Progress([tuned, *cells], store, console, "tuning")
    monkeypatch.setattr("rich.progress.Task.time_remaining", 300.0)
    progress.end(tuned, "failed", 2)
    progress.end(cells[1], "finished", 0)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == [
        "tuning 1/3 failed: digits, a[/]b, fold 3, seed 5, lr=0.1235, kind=3: ValueError: x; about 5 min left",
        "tuning 3/3 finished: digits, RADFed, fold 3, seed 5; about 5 min left",
    ]
