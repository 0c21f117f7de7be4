"""Damaged files are put aside with a line that names them, and the cell starts again."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from experiment.conftest import Run, run_here
from helpers.small_table import small

from fl_lightning.experiment import describe_plan, read_table
from fl_lightning.experiment.damage import put_aside

Unfinished = tuple[Run, Run]


def half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def first_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def of_another_version(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["callbacks"] = {"ModelCheckpoint{'monitor': 'val_acc_clients'}": {}}
    torch.save(content, path)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("last.ckpt", half),
        ("last.ckpt", of_another_version),
        ("curve.jsonl", first_line),
        ("best.ckpt", Path.unlink),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("last.ckpt", empty), ("best.ckpt", half))),
    ],
)
def test_a_cell_starts_again_without_its_damaged_files(
    unfinished: Unfinished, name: str, harm: Callable[[Path], None]
) -> None:
    broken, whole = unfinished
    harm(broken.cell() / name)
    again = broken.again()
    assert again.rows == whole.rows
    for file in ("result.json", "curve.csv"):
        assert (broken.cell() / file).read_bytes() == (whole.cell() / file).read_bytes()
    [line] = [line for line in again.text.splitlines() if ".damaged" in line]
    assert f"{broken.cell().name}/{name}" in line
    assert (broken.cell() / "last.ckpt.damaged").exists()


def test_an_undamaged_cell_goes_on(unfinished: Unfinished) -> None:
    broken, whole = unfinished
    assert "ckpt" not in broken.again().text
    assert (broken.cell() / "result.json").read_bytes() == (whole.cell() / "result.json").read_bytes()
    about, other = (json.loads((run.cell() / "run.json").read_text()) for run in unfinished)
    assert (about["resumed"], other["resumed"]) == (True, False)
    assert about["begun"] <= about["ended"]
    assert about["seconds"] > 0
    assert "seconds" not in next(csv.reader((whole.folder / "results.csv").open()))


def test_a_cell_names_the_versions_of_the_code_under_which_it_ran(
    tmp_path: Path, faulty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = {"class_path": "faulty.FailOnce", "init_args": {"marker": str(tmp_path / "marker"), "at_round": 4}}
    table = small(callbacks=[callback], methods={"FedAvg": small()["methods"]["FedAvg"]})
    runs = []
    for version in ("1.0", "1.1"):
        monkeypatch.setattr("fl_lightning.experiment.cell.code_version", lambda version=version: version)
        runs.append(run_here(table, tmp_path / "runs"))
    assert runs[1].rows[0]["code"] == "1.0, then 1.1"
    assert ["several versions" in run.text for run in runs] == [False, True]


def test_a_folder_that_was_moved_starts_its_unfinished_cells_again(unfinished: Unfinished, tmp_path: Path) -> None:
    # the checkpoint names the file of the best model by its whole path
    broken, whole = unfinished
    moved = broken.folder.rename(tmp_path / "moved")
    again = run_here(broken.table, moved)
    assert (again.cell() / "result.json").read_bytes() == (whole.cell() / "result.json").read_bytes()
    assert f"last.ckpt was written in another folder, {broken.cell()}" in again.text


def test_a_damaged_result_is_put_aside_and_the_cell_is_run_again(finished: Run) -> None:
    written = (finished.folder / "results.csv").read_bytes()
    harmed, other = (finished.cell(place) / "result.json" for place in (0, 1))
    before = other.stat().st_mtime_ns
    contents = [b"", b'{"val": ', b"[]", b'{"val": "0.5", "rounds": 4, "test": {"test_acc": null}}']
    for content in contents:
        harmed.write_bytes(content)
        assert str(harmed) in describe_plan(read_table(finished.table), finished.folder)
        assert harmed.read_bytes() == content
    again = finished.again()
    assert str(harmed) in again.text
    assert (finished.folder / "results.csv").read_bytes() == written
    assert other.stat().st_mtime_ns == before
    assert (harmed.parent / "result.json.damaged").read_bytes() == contents[-1]


def test_other_damaged_files_of_a_cell_are_put_aside(finished: Run) -> None:
    empty(finished.cell() / "run.json")
    (finished.cell(1) / "result.json").unlink()
    empty(finished.cell(1) / "failed.json")
    again = finished.again()
    assert again.rows == finished.rows
    assert "run.json is empty; it is now run.json.damaged" in again.text


def test_no_damaged_file_is_overwritten(tmp_path: Path) -> None:
    names = []
    for number in range(3):
        (tmp_path / "a").write_text(str(number))
        names.append(put_aside(tmp_path / "a").name)
    assert names == ["a.damaged", "a.damaged-2", "a.damaged-3"]
    assert [(tmp_path / name).read_text() for name in names] == ["0", "1", "2"]
