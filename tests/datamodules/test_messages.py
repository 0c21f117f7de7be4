"""Errors about data sets and their files: each is provoked once, and the file beside this one has what they say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import tiny_files as tiny
from helpers.tiny_files import eicu_tables, set_up, write_dmoz_topics, write_eicu, write_markdown_plays
from helpers.written import all_told, assert_as_in
from PIL import Image

from fl_lightning import datamodules as sets
from fl_lightning.data import SampleSplit
from fl_lightning.partitioners import IIDPartitioner

TWO = IIDPartitioner(2)
SHORT_WINDOW = '{"users": ["A"], "user_data": {"A": {"x": ["To be or not to b"], "y": ["e"]}}}'
B_LINKS_TO_C = tiny.dmoz_topic("Top/B", "narrow=Top/C")
ROWS = {"age": [1, 2, 3], "risk": ["low", "high", "low"], "site": ["a", "b", "a"]}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def table(folder: Path, label: str = "risk", client: str | None = "site", rows: Any = None, **options: Any) -> None:
    """Read three rows, of which some columns have other values, perhaps beside a file with two of the columns."""
    pd.DataFrame({**ROWS, **(rows or {})}).to_csv(folder / "t.csv", index=False)
    pd.DataFrame(ROWS).to_csv(folder / "two.csv", index=False, columns=["risk", "site"])
    set_up(sets.TableDataModule(folder / "t.csv", label, client, **options))


def hugging_face(folder: Path, inputs: Any = "age", label: str = "risk", rows: Any = None, **options: Any) -> None:
    """Read three rows, of which some columns have other values."""
    datasets.Dataset.from_dict({**ROWS, **(rows or {})}).save_to_disk(folder / "saved")
    set_up(sets.HuggingFaceDataModule(folder / "saved", inputs, label, **{"client": "site", **options}))


def labelled(folder: Path, **options: Any) -> None:
    """Read images of 16 bits, of which the third has no label."""
    kinds = {"image": datasets.Image(), "site": datasets.Value("string"), "label": datasets.ClassLabel(names=["a"])}
    content = {"image": [Image.new("I;16", (2, 2))] * 3, "site": list("sts"), "label": [0, 0, -1]}
    datasets.Dataset.from_dict(content, features=datasets.Features(kinds)).save_to_disk(folder / "saved")
    sets.HuggingFaceDataModule(folder / "saved", client="site", **options).load()


def images(folder: Path, *files: str, text: str = "1.txt", left_out: str | None = None) -> None:
    """Read images of one pixel, and a text."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (1, 1)).save(folder / file, "png")
    (folder / "photo" / "cat").mkdir(parents=True, exist_ok=True)
    (folder / "photo" / "cat" / text).write_text("")
    set_up(sets.DomainDataModule(folder, left_out))


#: What is refused, perhaps with a folder.
CALLS: list[Callable[[Path], Any]] = [
    lambda _: sets.CIFAR10DataModule(crop_probability=0.5),
    lambda _: sets.CIFAR10DataModule(crop_padding_mode="reflect"),
    lambda _: sets.CIFAR10DataModule(augment=True, crop_padding_mode="edge"),
    lambda _: sets.CIFAR10DataModule(crop_padding_mode="reflect", augment=True).preprocess(
        torch.ones(1, 3, 4, 9), True
    ),
    lambda _: sets.CIFAR10DataModule(mean=[0.5, 0.25]),
    lambda _: sets.CovertypeDataModule(class_counts=[1, 2, 3]),
    lambda _: sets.HuggingFaceDataModule("x", "y", "y"),
    lambda _: sets.HuggingFaceDataModule("x", "y", "z", std=[]),
    lambda _: sets.HuggingFaceDataModule("x", ["y", "z"], "w", transform=str),
    lambda _: sets.HuggingFaceDataModule("x", ["y", "z"], "w", in_memory=False),
    lambda _: sets.ShakespeareDataModule(split=SampleSplit()),
    lambda _: sets.TableDataModule("t.csv", "risk", features=["age"], categorical=["age"]),
    lambda _: sets.TorchDatasetDataModule([1, 2], TWO, targets=[1]),
    lambda _: sets.TorchDatasetDataModule([1, 2], TWO, test_dataset=[1, 2, 3], test_targets=[1]),
    lambda _: sets.TorchDatasetDataModule([1, 2], clients=[1]),
    lambda _: sets.TorchDatasetDataModule([1, 2], TWO, clients=[1, 2]),
    lambda _: sets.CropSplit(2, 3, 1, sets.OrderedSplit(0.0, 0.5, 0)).apply(9, IIDPartitioner(1)),
    lambda _: sets.OrderedSplit(gap=500).apply(100, TWO),
    # Files that are not there, or that hold something else.
    lambda here: sets.CovertypeDataModule(here, download=False).load(),
    lambda here: sets.DMOZDataModule(here).load(),
    lambda here: set_up(sets.DMOZDataModule(tiny.write_dmoz(here, tiny.dmoz_page("Top/A"), B_LINKS_TO_C))),
    lambda here: sets.EICUDataModule(here).load(),
    lambda here: sets.EICUDataModule(write_eicu(here, eicu_tables({1: 8}, {1: 1}))).load(),
    lambda here: set_up(sets.MNISTDataModule(here, TWO, download=False)),
    lambda here: sets.CIFAR10DataModule(here, TWO, download=False).load(),
    lambda here: sets.ShakespeareDataModule(here, source="leaf").load(),
    lambda here: set_up(sets.ShakespeareDataModule(write_markdown_plays(here), source="markdown", min_samples=1000)),
    lambda here: sets.plays.parse_markdown(written(here / "play.md", "")),
    lambda here: sets.plays.read_leaf([written(here / "a.json", SHORT_WINDOW)], []),
    lambda here: sets.DomainDataModule(here / "none").load(),
    lambda here: images(here),
    lambda here: images(here, text="1.png"),
    lambda here: images(here, "photo/cat/1.png", left_out="photo"),
    lambda here: images(here, "photo/cat/1.png", "art/cat/1.png", left_out="sketsh"),
    lambda here: images(here, "photo/cat/1.png", "art/cat/1.png", "art/dog/1.png", "art/fox/1.png"),
    # Columns that are not there, or that hold something else.
    lambda here: table(here, label="outcome"),
    lambda here: table(here, client="hospital"),
    lambda here: table(here, features=["weight"]),
    lambda here: table(here, test_path=here / "two.csv"),
    lambda here: table(here, features=["site"]),
    lambda here: table(here, client=None),
    lambda here: table(here, rows={"Unnamed: 0": [0, 1, 2]}),
    lambda here: table(here, rows={"colour": ["red", "blue", "red"]}),
    lambda here: table(here, rows={"age": [1, 2, None]}),
    lambda here: table(here, rows={"weight": [1, 1e39, 1]}, impute="local"),
    lambda here: table(here, rows={"site": ["a", "b", None]}),
    lambda here: table(here, rows={"risk": ["low", "low", None]}),
    lambda here: table(here, rows={"colour": ["red", "red", None]}, categorical=["colour"]),
    lambda here: table(here, rows={"colour": [0.5, 1.0, 2.0]}, categorical=["colour"]),
    lambda here: table(here, rows={"risk": [7.0, 3.25, 7.0]}),
    lambda here: table(here, rows={"risk": [7.0, np.inf, 7.0]}, regression=True),
    lambda here: table(here, regression=True),
    lambda here: (here / "t.csv").write_text("a,risk\n1,2,3\n") and sets.TableDataModule(here / "t.csv", "risk").load(),
    lambda here: sets.TableDataModule(here / "t.csv", "risk").load(),
    lambda here: hugging_face(here, inputs="picture"),
    lambda here: hugging_face(here, label="target"),
    lambda here: hugging_face(here, client="hospital"),
    lambda here: hugging_face(here, client=None),
    lambda here: hugging_face(here, train_split="validation"),
    lambda here: hugging_face(here, inputs="site"),
    lambda here: hugging_face(here, rows={"age": [1, 2, None]}),
    lambda here: hugging_face(here, rows={"risk": ["low", "low", None]}),
    lambda here: hugging_face(here, rows={"risk": [1.0, 0.5, 1.0]}),
    lambda here: hugging_face(here, regression=True),
    lambda here: labelled(here, inputs="image", label="site"),
    lambda here: labelled(here, inputs="site", label="label"),
]


def test_errors(tmp_path: Path) -> None:
    assert_as_in(Path(__file__).with_suffix(".txt"), all_told(CALLS, tmp_path), tmp_path)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_bars_of_files_that_are_read(tmp_path: Path, is_terminal: bool, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    hugging_face(tmp_path / "table", split=SampleSplit(val=0.0, test=0.0))
    images(tmp_path / "art", "photo/cat/1.png")
    set_up(sets.DMOZDataModule(write_dmoz_topics(tmp_path), min_samples=10))
    # None of them leaves a line behind.
    shown = capsys.readouterr().err.rpartition("\n")[2]
    bars = ["Reading age: ", "art: ", "content.rdf.u8: ", "glove.6B.50d.txt: "]
    assert [f"\r{bar}" in shown for bar in bars] == [is_terminal] * 4
