"""Damaged files are put aside with a line that names them, and the cell starts again."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small_table import small
from rich.console import Console

from fl_lightning.experiment import describe_plan, read_table, run_table
from fl_lightning.experiment.damage import put_aside


def run(table: dict[str, Any], folder: Path, workers: int = 0) -> tuple[list[dict[str, Any]], str]:
    console = Console(file=io.StringIO(), width=1000)
    rows = run_table(table, folder, workers=workers, checkpoint_seconds=0, console=console)
    return rows, console.file.getvalue()  # type: ignore[attr-defined]


def half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def first_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe{")


def no_checkpoint(path: Path) -> None:
    torch.save([1, 2], path)


def of_another_version(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["callbacks"] = {"ModelCheckpoint{'monitor': 'val_acc_clients'}": {}}
    torch.save(content, path)


@pytest.fixture
def unfinished(tmp_path: Path, faulty: None) -> Callable[[], tuple[dict[str, Any], Path, Path]]:
    """Make a cell that failed at the end of round 4 of 6, and one with the same configuration that is whole."""

    def make() -> tuple[dict[str, Any], Path, Path]:
        callback = {"class_path": "faulty.FailOnce", "init_args": {"marker": str(tmp_path / "marker"), "at_round": 4}}
        table = small(callbacks=[callback], trainer={"max_epochs": 6, "accelerator": "cpu"})
        del table["methods"]["RADFed"]
        [row], _ = run(table, tmp_path / "broken")
        assert row["status"] == "failed"
        [whole], _ = run(table, tmp_path / "whole")
        assert whole["status"] == "finished"
        cell = tmp_path / "broken" / "cells" / row["cell"]
        assert {path.name for path in cell.iterdir()} >= {"last.ckpt", "best.ckpt", "curve.jsonl"}
        assert cell.name == whole["cell"]
        return table, cell, tmp_path / "whole" / "cells" / cell.name

    return make


@pytest.mark.parametrize(
    ("name", "harm", "message"),
    [
        ("last.ckpt", half, "last.ckpt cannot be read ("),
        ("last.ckpt", empty, "last.ckpt is empty"),
        ("last.ckpt", no_checkpoint, "last.ckpt holds list, not a checkpoint"),
        ("last.ckpt", of_another_version, "last.ckpt was written by another version"),
        ("curve.jsonl", first_line, "curve.jsonl lacks some of the 3 rounds before the checkpoint"),
        ("curve.jsonl", half, "curve.jsonl lacks some of the 3 rounds before the checkpoint"),
        ("curve.jsonl", no_text, "curve.jsonl lacks some of the 3 rounds before the checkpoint"),
        ("best.ckpt", half, "best.ckpt cannot be read ("),
        ("best.ckpt", Path.unlink, "best.ckpt is missing"),
    ],
)
def test_a_cell_starts_again_without_its_damaged_files(
    unfinished: Callable[[], tuple[dict[str, Any], Path, Path]],
    name: str,
    harm: Callable[[Path], None],
    message: str,
) -> None:
    table, cell, whole = unfinished()
    harm(cell / name)
    [row], text = run(table, cell.parents[1])
    assert row["status"] == "finished", row.get("error")
    for file in ("result.json", "curve.csv"):
        assert (cell / file).read_bytes() == (whole / file).read_bytes()
    [line] = [line for line in text.splitlines() if message in line]
    assert f"{cell.name}/{name}" in line
    assert "so the cell starts again. The old files are now last.ckpt.damaged and curve.jsonl.damaged" in line
    assert (cell / "last.ckpt.damaged").exists()


def test_an_undamaged_cell_goes_on(unfinished: Callable[[], tuple[dict[str, Any], Path, Path]]) -> None:
    table, cell, whole = unfinished()
    _, text = run(table, cell.parents[1])
    assert (cell / "result.json").read_bytes() == (whole / "result.json").read_bytes()
    assert "ckpt" not in text
    assert json.loads((cell / "run.json").read_text())["resumed"]
    assert not json.loads((whole / "run.json").read_text())["resumed"]


def test_a_cell_names_the_versions_of_the_code_under_which_it_ran(
    tmp_path: Path, faulty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = {"class_path": "faulty.FailOnce", "init_args": {"marker": str(tmp_path / "marker"), "at_round": 4}}
    table = small(callbacks=[callback], methods={"FedAvg": small()["methods"]["FedAvg"]})
    texts = []
    for version in ("1.0", "1.1"):
        monkeypatch.setattr("fl_lightning.experiment.cell.code_version", lambda version=version: version)
        [row], text = run(table, tmp_path / "runs")
        texts.append(text)
    assert row["code"] == "1.0, then 1.1"
    assert "The fit ran under several versions of the code, which `code` names: 1.0, then 1.1." in texts[1]
    assert "several versions" not in texts[0]


def test_a_folder_that_was_moved_starts_its_unfinished_cells_again(
    unfinished: Callable[[], tuple[dict[str, Any], Path, Path]], tmp_path: Path
) -> None:
    # the checkpoint names the file of the best model by its whole path
    table, cell, whole = unfinished()
    cell.parents[1].rename(tmp_path / "moved")
    _, text = run(table, tmp_path / "moved")
    assert (tmp_path / "moved" / "cells" / cell.name / "result.json").read_bytes() == (
        whole / "result.json"
    ).read_bytes()
    assert f"last.ckpt was written in another folder, {cell}" in text


@pytest.mark.long
def test_workers_tell_of_damaged_files_too(unfinished: Callable[[], tuple[dict[str, Any], Path, Path]]) -> None:
    table, cell, _ = unfinished()
    empty(cell / "last.ckpt")
    [row], text = run(table, cell.parents[1], workers=1)
    assert row["status"] == "finished", row.get("error")
    assert "digits, FedAvg, fold 0, seed 0: " in text
    assert "last.ckpt is empty, so the cell starts again" in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b'{"val": ', "cannot be read ("),
        (b"[]", "has no rounds, test, val"),
        (b'{"val": "0.5", "rounds": 4, "test": {"test_acc": null}}', "has no number as val, test_acc"),
        pytest.param(b'{"val": null, "rounds": 4, "test": [1]}', "has no number as test", marks=pytest.mark.long),
    ],
)
def test_a_damaged_result_is_put_aside_and_the_cell_is_run_again(tmp_path: Path, content: bytes, reason: str) -> None:
    table = small()
    rows, _ = run(table, tmp_path)
    written = (tmp_path / "results.csv").read_bytes()
    harmed, other = (tmp_path / "cells" / row["cell"] / "result.json" for row in rows)
    harmed.write_bytes(content)
    before = other.stat().st_mtime_ns
    plan = describe_plan(read_table(table), tmp_path)
    assert f"{harmed} {reason}" in plan
    assert "A run will put it aside, and the cell is run again." in plan
    assert harmed.read_bytes() == content
    _, text = run(table, tmp_path)
    assert f"{harmed} {reason}" in text
    assert "it is now result.json.damaged, and the cell is run again." in text
    assert (tmp_path / "results.csv").read_bytes() == written
    assert other.stat().st_mtime_ns == before
    assert (harmed.parent / "result.json.damaged").read_bytes() == content


def test_other_damaged_files_of_a_cell_are_put_aside(tmp_path: Path) -> None:
    table = small()
    rows, _ = run(table, tmp_path)
    empty(tmp_path / "cells" / rows[0]["cell"] / "run.json")
    unfinished = tmp_path / "cells" / rows[1]["cell"]
    (unfinished / "result.json").unlink()
    empty(unfinished / "failed.json")
    again, text = run(table, tmp_path)
    assert again == rows
    assert "run.json is empty; it is now run.json.damaged, and nothing else depends on it." in text


def test_no_damaged_file_is_overwritten(tmp_path: Path) -> None:
    names = []
    for number in range(3):
        (tmp_path / "a").write_text(str(number))
        names.append(put_aside(tmp_path / "a").name)
    assert names == ["a.damaged", "a.damaged-2", "a.damaged-3"]
    assert [(tmp_path / name).read_text() for name in names] == ["0", "1", "2"]


def test_times_of_a_run(tmp_path: Path) -> None:
    rows, _ = run(small(), tmp_path)
    about = json.loads((tmp_path / "cells" / rows[0]["cell"] / "run.json").read_text())
    assert about["begun"] <= about["ended"]
    assert about["begun"].endswith("+00:00")
    assert about["seconds"] > 0
    assert {"python", "torch", "lightning", "numpy", "device"} <= about.keys()
    assert "seconds" not in next(csv.reader((tmp_path / "results.csv").open()))
