"""The recipe of adapters on the plays: a stand-in, four ways to fine-tune it, and what they send."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_files import write_markdown_plays

RECIPE = Path(__file__).parents[2] / "fl_lightning" / "recipes" / "lora_plays.py"


@pytest.mark.long
@pytest.mark.parametrize("stand_in", [True, False])
def test_four_ways_on_tiny_plays(stand_in: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write_markdown_plays(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    small = "--rounds 2 --clients 2 --rank 1 --pretrain-epochs 1 --stride 40 --min-lines 3"
    command = f"{RECIPE} --data-dir {tmp_path} --source markdown {small}"
    if not stand_in:
        network = runpy.run_path(str(RECIPE))["CharTransformer"]()
        torch.save(network.state_dict(), tmp_path / "model.pt")
        command += f" --weights {tmp_path}"
    monkeypatch.setattr(sys, "argv", command.split())
    runpy.run_path(str(RECIPE), run_name="__main__")
    printed = capsys.readouterr().out
    assert ("Stand-in" in printed) == stand_in
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.count("│") == 7]
    rows = {name: rest for name, *rest in lines}
    # 80 x 64 of the embedding and the positions each, 65 x 80 of the output; a block has 4 x 65 x 64 of attention,
    # 65 x 256 and 257 x 64 of the layers, and 4 x 64 of the norms
    full = 2 * 80 * 64 + 65 * 80 + 2 * (4 * 65 * 64 + 65 * 256 + 257 * 64 + 4 * 64)
    # query and value 64 + 64, the two layers 64 + 256; B alone 64, 64, 256 and 64
    expected = {"full fine-tuning": full, "average": 2 * 896, "ffa": 2 * 448, "svd": 2 * 896}
    for name, values in expected.items():
        [row] = [row for key, row in rows.items() if key.endswith(name)]
        assert row[:2] == [f"{values:,}", f"{4 * values * 2 * 2 / 1e6:.2f}"]
