from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from helpers.tiny_files import set_up
from PIL import Image

from fl_lightning.data import ClientSplit, WithinClientSplit
from fl_lightning.datamodules import HuggingFaceDataModule
from fl_lightning.partitioners import IIDPartitioner

ALL = WithinClientSplit(val=0.0, test=0.0)


def columns(rows: int = 9) -> dict[str, list]:
    """Row i is by one of three writers in turn; its number is i, its text has i mod 3 + 1 words."""
    return {
        "writer_id": [("w2", "w1", "w3")[i % 3] for i in range(rows)],
        "number": list(range(rows)),
        "half": [i / 2 for i in range(rows)],
        "pair": [[float(i), -float(i)] for i in range(rows)],
        "text": [" ".join(["word"] * (i % 3 + 1)) for i in range(rows)],
        "tokens": [[i] * (i % 3 + 1) for i in range(rows)],
        "label": [("cat", "dog")[i % 2] for i in range(rows)],
    }


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Converted files do not go to the user's cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(folder: Path, name: str, rows: int = 9) -> Path:
    content, path = datasets.Dataset.from_dict(columns(rows)), folder / name
    if path.suffix == ".csv":
        content = content.remove_columns(["pair", "tokens"])
    writers = {".parquet": "to_parquet", ".csv": "to_csv", ".jsonl": "to_json", "": "save_to_disk"}
    getattr(content, writers[path.suffix])(path)
    return path


def ready(path, inputs="half", client: str | None = "writer_id", **kwargs) -> HuggingFaceDataModule:
    return set_up(HuggingFaceDataModule(path, inputs, client=client, **{"label": "label", "split": ALL, **kwargs}))


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.jsonl", "saved"])
def test_natural_clients_of_local_files(tmp_path, name):
    data = ready(write(tmp_path, name), batch_size=None)
    assert data.client_names == ["w1", "w2", "w3"]
    assert [indices.tolist() for indices in data.partition.indices] == [[1, 4, 7], [0, 3, 6], [2, 5, 8]]
    assert data.class_names == ["cat", "dog"]
    ((x, y),) = data.client_batches(0, generator=torch.Generator(), shuffle=False)
    assert sorted(x.tolist()) == [[0.5], [2.0], [3.5]]
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


def test_a_data_set_by_name_is_loaded_as_asked(tmp_path, monkeypatch):
    calls = []

    def load_dataset(path, name=None, **kwargs):
        calls.append((path, name, kwargs))
        return datasets.DatasetDict({"fit": datasets.Dataset.from_dict(columns()), "test": None})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = ready("owner/set", name="small", train_split="fit", cache_dir=tmp_path)
    assert len(data.labels) == 9
    # once to download, once to read
    assert calls == [("owner/set", "small", {"data_files": None, "cache_dir": str(tmp_path)})] * 2


def test_files_and_a_folder_with_a_test_split(tmp_path):
    files = {"train": str(write(tmp_path, "a.parquet")), "test": str(write(tmp_path, "b.parquet", rows=4))}
    parts = {"train": datasets.Dataset.from_dict(columns()), "test": datasets.Dataset.from_dict(columns(4))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "both")
    options = {"test_split": "test", "client": None, "partitioner": IIDPartitioner(3)}
    for path, data_files in [("parquet", files), (tmp_path / "both", None)]:
        data = ready(path, **options, data_files=data_files, split=ClientSplit(3))
        ((x, _),) = data.test_dataloader()
        assert x[:, 0].tolist() == [0.0, 0.5, 1.0, 1.5]
        assert data.client_sizes.tolist() == [3, 3]  # of 3 clients one validates; no test sample trains
        assert sorted(np.concatenate(data.partition.indices).tolist()) == list(range(9))
        assert data.client_names is None


def test_several_columns_of_numbers(tmp_path):
    data = ready(write(tmp_path, "t.parquet"), ["number", "half"], standardize=None)
    assert data.source_inputs()[[0, 4]].tolist() == [[0.0, 0.0], [4.0, 2.0]]
    x = ready(write(tmp_path, "u.parquet"), ["number", "half"], standardize="global").source_inputs()
    assert x.mean(dim=0).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_lists_of_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_lightning.datamodules.huggingface._ROWS", 4)
    path = write(tmp_path, "t.parquet")
    assert ready(path, "pair").source_inputs()[3].tolist() == [3.0, -3.0]
    tokens = ready(path, "tokens", pad_value=-1).source_inputs()
    assert tokens.dtype == torch.int64
    assert tokens[3:6].tolist() == [[3, -1, -1], [4, 4, -1], [5, 5, 5]]


def test_texts_through_a_tokeniser(tmp_path):
    path = write(tmp_path, "t.parquet")
    tokens = ready(path, "text", transform=lambda text: [len(word) for word in text.split()]).source_inputs()
    assert tokens[:3].tolist() == [[4, 0, 0], [4, 4, 0], [4, 4, 4]]
    mixed = ready(path, transform=lambda half: [half] if half % 1 else [int(half)]).source_inputs()
    assert mixed.flatten().tolist() == columns()["half"]


def images(mode: str) -> datasets.Dataset:
    """Image i has all pixels 10 i."""
    kinds = {"writer_id": datasets.Value("string"), "image": datasets.Image()}
    features = datasets.Features({**kinds, "label": datasets.ClassLabel(names=["zero", "one", "two"])})
    pixels = [Image.new(mode, (5, 4), (10 * i,) * 3 if mode == "RGB" else 10 * i) for i in range(9)]
    content = {"writer_id": columns()["writer_id"], "image": pixels, "label": [i % 3 for i in range(9)]}
    return datasets.Dataset.from_dict(content, features=features)


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
@pytest.mark.parametrize("in_memory", [True, False])
def test_images_stay_bytes_until_they_are_on_the_device(tmp_path, mode, channels, in_memory):
    images(mode).save_to_disk(tmp_path / "saved")
    data = ready(tmp_path / "saved", "image", batch_size=None, mean=(0.5,), std=[0.25], in_memory=in_memory)
    assert data.class_names == ["zero", "one", "two"]
    ((x, y),) = data.client_batches(2, generator=torch.Generator(), shuffle=False)
    assert (x.shape, x.dtype) == ((3, channels, 4, 5), torch.uint8)
    assert sorted(x[:, 0, 0, 0].tolist()) == [20, 50, 80]
    assert y.tolist() == [2, 2, 2]
    x, _ = data.on_after_batch_transfer([x[x[:, 0, 0, 0].argsort()], y], 0)
    assert x[:, 0, 0, 0].tolist() == pytest.approx([(value / 255 - 0.5) / 0.25 for value in (20, 50, 80)])


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("P", 3)])
def test_images_of_other_modes_are_grey_or_in_colours(tmp_path, mode, channels):
    images(mode).save_to_disk(tmp_path / "saved")
    assert ready(tmp_path / "saved", "image").source_inputs().shape == (9, channels, 4, 5)


def test_rows_in_memory_and_on_demand_are_the_same(tmp_path):
    path = write(tmp_path, "t.parquet")
    batches = [
        next(iter(ready(path, "pair", in_memory=in_memory, split=ClientSplit(3)).test_dataloader()))
        for in_memory in (True, False)
    ]
    assert torch.equal(batches[0][0], batches[1][0])
    assert torch.equal(batches[0][1], batches[1][1])
    data = ready(path, "pair", in_memory=False)
    assert data.client_dataset(0)[1][0].tolist() in ([1.0, -1.0], [4.0, -4.0], [7.0, -7.0])


def test_targets_to_regress_on(tmp_path):
    data = ready(write(tmp_path, "t.parquet"), "pair", label="half", regression=True)
    assert data.labels is None
    ((_, y),) = data.client_batches(2, generator=torch.Generator())
    assert (y.dtype, sorted(y.tolist())) == (torch.float32, [1.0, 2.5, 4.0])
