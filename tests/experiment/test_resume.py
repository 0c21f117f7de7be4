"""A cell goes on from its last checkpoint, and starts again where that cannot be used."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from experiment.conftest import Run, run_here
from helpers.small_table import alone, spec

import fl_lightning
from fl_lightning.experiment import store

Unfinished = tuple[Run, Run]


def half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_version(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["callbacks"] = {"ModelCheckpoint{'monitor': 'val_acc_clients'}": {}}
    torch.save(content, path)


@pytest.mark.parametrize("harm", [of_another_version, half, pytest.param(empty, marks=pytest.mark.long)])
def test_a_cell_starts_again_without_a_checkpoint_that_can_be_used(
    unfinished: Unfinished, harm: Callable[[Path], None]
) -> None:
    broken, whole = unfinished
    harm(broken.cell() / "last-1.ckpt")
    told = (
        nullcontext() if harm is of_another_version else pytest.warns(UserWarning, match=r"go on from .*last-1\.ckpt")
    )
    with told:  # type: ignore[attr-defined]
        assert broken.again().rows == whole.rows
    for file in ("result.json", "curve.csv"):
        assert (broken.cell() / file).read_bytes() == (whole.cell() / file).read_bytes()
    assert not json.loads((broken.cell() / "run.json").read_text())["resumed"]


def test_an_undamaged_cell_goes_on(unfinished: Unfinished) -> None:
    broken, whole = unfinished
    assert "ckpt" not in broken.again().text
    for file in ("result.json", "curve.csv"):
        assert (broken.cell() / file).read_bytes() == (whole.cell() / file).read_bytes()
    about, other = (json.loads((run.cell() / "run.json").read_text()) for run in unfinished)
    assert (about["resumed"], other["resumed"]) == (True, False)
    assert about["begun"] <= about["ended"]
    assert about["seconds"] > 0
    assert "seconds" not in next(csv.reader((whole.folder / "results.csv").open()))


def test_a_cell_names_the_versions_of_the_code_under_which_it_ran(
    tmp_path: Path, faulty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No best model is kept where the last one is tested.
    table = alone(callbacks=[spec("faulty.FailOnce", marker=str(tmp_path / "marker"), at_round=4)], select="last")
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


def test_a_cell_with_a_damaged_result_is_run_again(finished: Run) -> None:
    written = (finished.folder / "results.csv").read_bytes()
    harmed, other = (finished.cell(place) / "result.json" for place in (0, 1))
    before = other.stat().st_mtime_ns
    empty(harmed)
    empty(finished.cell() / "failed.json")
    finished.again()
    assert (finished.folder / "results.csv").read_bytes() == written
    assert other.stat().st_mtime_ns == before


def test_the_next_run_removes_what_a_run_left_that_was_killed_after_it_wrote_a_result(finished: Run) -> None:
    left = [finished.cell() / name for name in ("best-1.ckpt", "last-2.ckpt", "curve-1.jsonl", "failed.json")]
    for path in left:
        path.touch()
    finished.again()
    assert not [path for path in left if path.exists()]
    assert (finished.cell() / "curve.csv").exists()


def test_a_fit_that_fails_after_it_was_resumed_names_the_checkpoint(unfinished: Unfinished) -> None:
    broken, _ = unfinished
    Path(broken.table["methods"]["FedAvg"]["callbacks"][0]["init_args"]["marker"]).unlink()
    error = broken.again().rows[0]["error"]
    assert "broken by the test" in error
    assert str(broken.cell() / "last-1.ckpt") in error


def test_the_version_of_a_checkout_has_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        options = ["-C", str(tmp_path), "-c", "user.name=one", "-c", "user.email=one@example.org"]
        done = subprocess.run(["git", *options, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(store, "__file__", str(package / "experiment" / "store.py"))
    git("init", "-q")
    assert store.code_version() == fl_lightning.__version__
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD")[:10]
    assert store.code_version() == f"{fl_lightning.__version__}+g{commit}"
    (package / "__init__.py").write_text("changed = True")
    assert store.code_version() == f"{fl_lightning.__version__}+g{commit}-dirty"
