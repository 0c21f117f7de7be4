from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_files import dmoz_page, dmoz_topic, set_up, write_dmoz, write_dmoz_topics
from helpers.toys import quiet_trainer

from fl_lightning import datamodules
from fl_lightning.data import SampleSplit
from fl_lightning.datamodules import DMOZDataModule
from fl_lightning.partitioners import Partition


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Ten pages each of Top/A/X, Top/A/X/Deep, Top/A/Y (no relation), Top/B, and some that are left out."""
    return write_dmoz_topics(tmp_path)


def ready(folder: Path, **options: object) -> DMOZDataModule:
    return set_up(DMOZDataModule(folder, **{"min_samples": 10, **options}))  # type: ignore[arg-type])


def test_pages_are_at_their_topic_or_the_nearest_above_it(dumps: Path) -> None:
    data = ready(dumps, split=SampleSplit(val=0, test=0))

    # Y has no relation that counts and becomes A
    assert data.graph.topics == ("Top/A", "Top/A/X", "Top/A/X/Deep", "Top/B")
    assert data.graph.edges.tolist() == [[0, 1], [1, 2], [1, 3], [2, 3]]
    assert data.homes.tolist() == [1, 2, 0, 3] * 10
    assert data.class_names == ["A", "B"]
    assert data.labels is not None
    assert data.labels.tolist() == [0, 0, 0, 1] * 10
    assert data.partition.sizes.tolist() == [10, 10, 10, 10]
    assert data.partition.indices[3].tolist() == list(range(3, 40, 4))


def test_a_page_is_a_row_of_words(tmp_path: Path) -> None:
    content = dmoz_page("Top/A", "Café, Unheard", "The &lt;music&gt; \x0b.") + dmoz_page("Top/A", "Site", "")
    content += dmoz_page("Top/")  # of no topic, and so left out
    data = ready(write_dmoz(tmp_path, content, dmoz_topic("Top/A", "narrow=Top/A/X")), min_samples=1, max_tokens=10)

    tokens = data.source_inputs()
    assert tokens.dtype == torch.int32
    # <music> is no word of the table, for GloVe's code does not detach < and >
    assert tokens.tolist() == [[8, 9, 1, 2, 5, 1, 6, 0, 0, 0], [3, 2, 1, 0, 0, 0, 0, 0, 0, 0]]


def test_batches_are_word_vectors(dumps: Path) -> None:
    data = ready(dumps, batch_size=4)
    batch = next(iter(data.train_dataloader()))
    x, y = data.on_after_batch_transfer(batch, 0)

    assert x.shape == (4, 165, 2)
    assert x.dtype == torch.float32
    # site, separator, the, music, full stop, padding
    expected = [[3, -3], [-1, -1], [5, -5], [4, -4], [6, -6], [0, 0]]
    assert x[0, :6].tolist() == expected
    assert not x[:, 5:].any()
    assert torch.equal(y, batch[1])
    data.trainer = quiet_trainer(precision="64-true")
    assert data.on_after_batch_transfer(batch, 0)[0].dtype == torch.float64
    data.replace_inputs(torch.zeros(40, 1))
    assert data.on_after_batch_transfer(batch, 0) is batch


def test_thirty_percent_of_every_clients_pages_are_the_test_set(dumps: Path) -> None:
    data = ready(dumps)
    training = np.concatenate(data.partition.indices)

    assert data.val_dataloader() == []
    assert np.bincount(data.homes[training]).tolist() == [7, 7, 7, 7]
    assert len(data.test_dataloader().dataset) == 12
    assert data.eval_client_ids("test") is None


def test_distributions_share_out_the_same_training_pages(dumps: Path) -> None:
    runs = [ready(dumps, distribution=distribution) for distribution in (0, 1, 5, "iid")]
    pages = [sorted(np.concatenate(run.partition.indices).tolist()) for run in runs]

    assert all(p == pages[0] for p in pages)
    assert len({run.partition.fingerprint() for run in runs}) == 4


def by_class(classes: np.ndarray) -> Partition:
    return Partition([np.flatnonzero(classes == 0), np.flatnonzero(classes == 1)])


def test_a_partitioner_is_given_the_classes_of_pages(dumps: Path) -> None:
    data = ready(dumps, partitioner=by_class, split=SampleSplit(val=0, test=0))

    # Every fourth page is of class B.
    of_b = range(3, 40, 4)
    assert [indices.tolist() for indices in data.partition.indices] == [sorted({*range(40)} - {*of_b}), [*of_b]]


def test_which_topics_are_left_out_is_an_argument(dumps: Path) -> None:
    data = ready(dumps, exclude=["World", "A"])

    assert data.class_names == ["B", "News"]
    assert data.graph.edges.tolist() == [[0, 1]]
    elsewhere = dumps / "elsewhere"
    with pytest.raises(ValueError, match=r"`root` .* got 'Top/C'"):
        ready(dumps, root="Top/C", cache_dir=elsewhere)
    assert len(list(elsewhere.iterdir())) == 1


def test_the_second_start_reads_the_cache_alone(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ready(dumps)

    def refuse(*args: object) -> None:
        raise AssertionError("read again")

    for name in ("read_pages", "read_relations", "read_word_vectors"):
        monkeypatch.setattr(datamodules.dmoz_cache, name, refuse)
    second = ready(dumps, distribution=0)
    assert second.partition == first.partition
    assert second.data_fingerprint() == first.data_fingerprint()
    with pytest.raises(AssertionError, match="read again"):
        ready(dumps, max_tokens=20)


def test_changed_files_make_a_cache_of_their_own(dumps: Path) -> None:
    plain = ready(dumps)
    [cache] = (dumps / "dmoz" / "cache").iterdir()
    cache.write_bytes(cache.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=rf"{cache} does not agree with its checksums"):
        assert ready(dumps).data_fingerprint() == plain.data_fingerprint()
    for place, name in enumerate(["dmoz/content.rdf.u8", "dmoz/structure.rdf.u8", "glove/glove.6B.50d.txt"]):
        addition = "new 1 2\n" if name.startswith("glove") else "<!-- newer -->\n"
        (dumps / name).write_text((dumps / name).read_text(encoding="utf-8") + addition, encoding="utf-8")
        ready(dumps)
        assert len(list(cache.parent.iterdir())) == 2 + place
    path = dumps / "dmoz" / "content.rdf.u8"
    path.with_name("content.rdf.u8.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert ready(dumps).data_fingerprint() == plain.data_fingerprint()


def test_long_texts_are_cut_with_a_warning(dumps: Path) -> None:
    with pytest.warns(UserWarning, match="40 of 40 pages have more than `max_tokens` 4 words and were cut"):
        data = ready(dumps, max_tokens=4)
    assert data.source_inputs()[0].tolist() == [3, 2, 5, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ready(dumps, max_tokens=5)
