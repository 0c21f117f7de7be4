"""The command line of recipes: plan, stand-ins and time first, then the run and its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from helpers.small_table import small

from fl_lightning.command import run_presets
from fl_lightning.experiment import Table


def write(folder: Path) -> dict[str, Path]:
    table = small()
    table["data"]["digits"]["stand_in"] = "A linear model."
    (folder / "small.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
    return {"small": folder / "small.yaml", "missing": folder / "missing.yaml"}


@pytest.mark.long
def test_a_preset_is_run_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shorter(table: Table) -> Table:
        return replace(table, trainer={**table.trainer, "max_epochs": 2})

    options = ["--output", str(tmp_path / "out"), "--workers", "0", "--methods", "FedAvg"]
    assert run_presets("d", write(tmp_path), [*options, "--estimate"], shorter) is None
    printed = capsys.readouterr().out
    assert "digits, FedAvg: 1 fit; 2 rounds; 0 finished" in printed
    assert "STAND-IN digits: A linear model." in printed
    assert "Measured seconds a round: digits" in printed
    assert not (tmp_path / "out").exists()
    page = run_presets("d", write(tmp_path), options, shorter)
    assert page == tmp_path / "out" / "report" / "report.html"
    assert "Stand-in data: digits. A linear model." in page.read_text(encoding="utf-8")


def test_what_is_wrong_ends_the_program_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (["--preset", "missing"], "missing.yaml"),
        (["--methods", "FedNothing"], "`methods` must be one of 'FedAvg', 'RADFed', got 'FedNothing'"),
    ):
        with pytest.raises(SystemExit):
            run_presets("d", write(tmp_path), options)
        assert message in capsys.readouterr().err
