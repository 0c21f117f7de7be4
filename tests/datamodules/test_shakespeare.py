from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_files import GUTENBERG, ROLES, set_up, text_of_role, write_leaf, write_markdown_plays

from fl_lightning.data import ClientSplit
from fl_lightning.datamodules import CropSplit, OrderedSplit, ShakespeareDataModule
from fl_lightning.datamodules.plays import ALPHABET
from fl_lightning.partitioners import IIDPartitioner


@pytest.fixture
def markdown(tmp_path) -> Path:
    """Two plays of three roles; a seventh role has two lines only."""
    return write_markdown_plays(tmp_path)


def ready(folder: Path | None, **kwargs) -> ShakespeareDataModule:
    options = {"source": "markdown", "split": ClientSplit(num_folds=3), "download": False, **kwargs}
    return set_up(ShakespeareDataModule(folder, **options))


def windows(data: ShakespeareDataModule, indices: np.ndarray) -> list[str]:
    x, y = data.source_inputs(), data.labels
    return ["".join(ALPHABET[code] for code in [*x[index].tolist(), y[index]]) for index in indices]


def test_each_role_is_a_client_with_all_its_windows(markdown):
    data = ready(markdown)
    assert data.client_names == ["Play_0_A", "Play_0_B", "Play_0_C", "Play_1_D", "Play_1_E", "Play_1_F"]
    assert data.partition.sizes.tolist() == [420, 80, 10, 150, 920, 1]
    assert data.class_names[:3] == ["newline", "space", "!"]
    for role, indices in enumerate(data.partition.indices):
        text = text_of_role(role)
        assert windows(data, indices) == [text[i : i + 81] for i in range(len(text) - 80)]
    # three folds of two roles
    held_out = [set(data.eval_client_ids(stage).tolist()) for stage in ("val", "test")]
    assert set(data.client_ids).union(*held_out) == set(range(6))
    assert [data.num_clients, *map(len, held_out)] == [2, 2, 2]


def test_which_windows_are_samples(markdown):
    options = {"split": OrderedSplit(test=0.0)}
    assert ready(markdown, stride=80, **options).client_sizes.tolist() == [6, 1, 1, 2, 12, 1]
    assert ready(markdown, min_samples=80, **options).client_sizes.tolist() == [420, 80, 150, 920]
    data = ready(markdown, partitioner=IIDPartitioner(4), **options)
    assert (data.partition.sizes.sum(), data.client_names) == (1581, None)
    texts = [text_of_role(role) for role in range(6)]
    assert all(any(window in text for text in texts) for window in windows(data, data.partition.indices[0]))


def test_a_share_of_the_samples(markdown):
    # of 1,581 windows; the roles without one are left out
    data = ready(markdown, fraction=0.3, split=OrderedSplit(test=0.0), seed=3)
    assert int(data.partition.sizes.sum()) == 474
    other = ready(markdown, fraction=0.3, split=OrderedSplit(test=0.0), seed=3)
    assert data.partition == other.partition
    assert data.client_names == other.client_names


def archive(member: str = "100.txt") -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(member, GUTENBERG)
    return content.getvalue()


@pytest.fixture
def network(monkeypatch) -> list[str]:
    """Downloads give the archive, and are noted."""
    asked: list[str] = []

    def download(url, path):
        asked.append(url)
        Path(path).write_bytes(archive())

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    return asked


def test_gutenbergs_plays_are_downloaded_once(tmp_path, markdown, network):
    for _ in range(2):
        data = ready(tmp_path / "new", source="gutenberg", download=True)
        assert data.client_names == [f"PLAY_{play}_{role}" for play, role in zip("000111", ROLES, strict=True)]
        assert data.labels.tolist() == ready(markdown).labels.tolist()
    # an archive or a text that is there needs no network
    [path] = (tmp_path / "new" / "shakespeare").iterdir()
    assert path.name == "1994-01-100.zip"
    path.unlink()
    path.with_name("100.txt").write_text(GUTENBERG)
    assert ready(tmp_path / "new", source="gutenberg", download=True).partition.num_clients == 6
    assert network == ["https://www.gutenberg.org/files/100/old/1994-01-100.zip"]


def test_leafs_own_test_set(tmp_path):
    write_leaf(tmp_path, "train/a.json", {0: range(300), 1: range(10)})
    write_leaf(tmp_path, "test/a.json", {0: range(379, 420), 1: range(60, 65)})
    data = ready(tmp_path, source="leaf", split=OrderedSplit(test="official"))
    assert data.client_sizes.tolist() == [300, 10]
    assert np.bincount(data.eval_client_ids("test")).tolist() == [41, 5]
    assert windows(data, data.partition.indices[1][10:]) == [text_of_role(1)[i : i + 81] for i in range(60, 65)]
    # 80 % of 300 train, the rest but 79 validates
    split = OrderedSplit(val=0.5, test="official", gap=0)
    assert ready(tmp_path, source="leaf", split=split).client_sizes.tolist() == [150, 5]
    write_leaf(tmp_path / "together", "all.json", {0: range(5)})
    assert ready(tmp_path / "together", source="leaf", split=OrderedSplit(test=0.0)).client_sizes.tolist() == [5]
    crops = CropSplit(num_clients=1, train=100, test=40, base=OrderedSplit(test="official"))
    assert ready(tmp_path, source="leaf", split=crops).client_names == ["A"]


@pytest.mark.realdata
def test_real_plays(real_data):
    data = ready(real_data, split=ClientSplit(seed=245))
    statistics = data.statistics()
    assert (statistics.num_clients, statistics.num_samples) == (1_178, 4_314_828)
    assert (statistics.min, statistics.max) == (1, 61_210)
    # of the 1,178 roles: 235.6 a fold, the first ones one more
    assert data.num_clients == 706
    assert data.client_names[0] == "A_Midsummer_Night_s_Dream_THESEUS"
    x, y = data.source_inputs(), data.labels
    start = "Now, fair Hippolyta, our nuptial hour Draws on apace; four happy days bring in An"
    assert "".join(ALPHABET[code] for code in [*x[0].tolist(), y[0]]) == start
    equal = ready(real_data, split=CropSplit())
    assert equal.client_sizes.tolist() == [2000] * 100
    assert np.bincount(equal.eval_client_ids("test")).tolist() == [400] * 100
