"""The recipe of segmentation: its pictures, and a fit on the stand-in."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

PATH = Path(__file__).parents[2] / "fl_lightning" / "recipes" / "pet_segmentation.py"
RECIPE = runpy.run_path(str(PATH))


def test_files_of_oxford_iiit_pet_become_pictures_of_their_breeds_size(tmp_path: Path) -> None:
    folder = tmp_path / "oxford-iiit-pet"
    (folder / "images").mkdir(parents=True)
    (folder / "annotations" / "trimaps").mkdir(parents=True)
    parts = {"trainval": ["Abyssinian_1", "Abyssinian_2", "beagle_1"], "test": ["Abyssinian_3", "beagle_2"]}
    for part, names in parts.items():
        lines = [f"{name} {1 if name.startswith('A') else 2} 1 1" for name in names]
        (folder / "annotations" / f"{part}.txt").write_text("\n".join(lines) + "\n")
        for name in names:
            Image.new("RGB", (100, 90), (255, 0, 0)).save(folder / "images" / f"{name}.jpg")
            trimap = Image.new("L", (100, 90), 2)
            # the left half is a pet
            trimap.paste(1, (0, 0, 50, 90))
            trimap.save(folder / "annotations" / "trimaps" / f"{name}.png")
    data = RECIPE["Pets"](tmp_path)
    data.setup()
    assert data.client_names == ["Abyssinian", "Beagle"]
    source = data.load()
    sizes = [(tuple(x.shape), tuple(mask.shape)) for x, mask in source.dataset]
    first, second = RECIPE["SIZES"][:2]
    assert sizes == [((3, size, size), (size, size)) for size in (first, first, second, first, second)]
    _, mask = source.dataset[0]
    assert mask[:, : first // 2].unique().tolist() == [RECIPE["CLASSES"].index("pet")]
    assert mask[:, first // 2 :].unique().tolist() == [RECIPE["CLASSES"].index("background")]


def test_a_disc_is_a_pet_in_a_border() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels, mask = RECIPE["_disc"](40, torch.ones(3, 1, 1), generator)
    pet, background, border = (mask == label for label in range(3))
    assert (pixels.shape, pixels.dtype) == ((3, 40, 40), torch.uint8)
    assert 0 < pet.sum() < background.sum()
    assert pixels[:, pet].float().mean() > pixels[:, border].float().mean() > pixels[:, background].float().mean()
    # no pet touches the background
    rows, columns = pet.nonzero(as_tuple=True)
    assert not background[rows, columns + 1].any()


@pytest.mark.long
def test_the_table_of_two_methods(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", [str(PATH), "--rounds", "1", "--epochs", "1"])
    runpy.run_path(str(PATH), run_name="__main__")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    rows = {cells[0]: cells[1:] for cells in lines if len(cells) == 5}
    assert list(rows) == ["FedAvg", "FedBN"]
    # models of their own are FedBN's alone
    assert [bool(cells[-1]) for cells in rows.values()] == [False, True]
    for cells in rows.values():
        assert all(cell.endswith("%") for cell in cells[:3])
