"""From invented dumps in the real ones' syntax to the thesis's distributions."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_files import set_up

from fl_lightning.datamodules import DMOZDataModule
from fl_lightning.datamodules.dmoz_sample import write_sample_dump


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6,000 pages, and vectors of a few of their words."""
    folder = tmp_path_factory.mktemp("sample")
    write_sample_dump(folder, 6_000, seed=3)
    (folder / "glove").mkdir()
    lines = [f"{word} {number} 0\n" for number, word in enumerate(["the", "of", "music", "football", "."])]
    (folder / "glove" / "glove.6B.50d.txt").write_text("".join(lines))
    return folder


def ready(folder: Path, **options: object) -> DMOZDataModule:
    return set_up(DMOZDataModule(folder, **{"min_samples": 20, **options}))  # type: ignore[arg-type])


def test_the_dumps_hold_what_makes_the_real_ones_hard_to_read(sample: Path) -> None:
    content, structure = ((sample / "dmoz" / f"{name}.rdf.u8").read_bytes() for name in ("content", "structure"))
    for oddity in (b"\x0b", b"\xff\xfe", b" & ", b"&#11;", b"&lt;b&gt;", "日本語".encode(), b"R&amp;B", b"&#x27;"):
        assert oddity in content
    for link in (b"<narrow ", b"<narrow1 ", b"<narrow2 ", b"<symbolic1 ", b"<symbolic2 ", b"<related ", b"<altlang "):
        assert link in structure
    # The same bytes on every machine.
    digests = [hashlib.sha256(dump).hexdigest()[:16] for dump in (content, structure)]
    assert digests == ["3bd173f0a1410214", "1ab31d249c103a38"]
    assert content.count(b"<ExternalPage ") > content.count(b"<d:Description>") > 0


def test_entropy_rises_toward_that_of_the_iid_distribution(sample: Path) -> None:
    data = ready(sample)
    curve, iid = data.entropies(100)

    assert curve.shape == (101,)
    assert len(data.class_names or ()) == 12
    assert data.num_clients > 50
    # sizes stay unequal, so that the curve ends below d_iid, and d_iid below the bound ln(K C)
    assert (np.diff(curve[[0, 1, 2, 3, 5, 8, 12, 20, 40]]) > 0).all()
    assert curve[0] < curve[5] < curve[100] < iid < np.log(data.num_clients * 12)
    assert (iid - curve[100]) < 0.1 * (iid - curve[0])


@pytest.mark.parametrize("name", ["structure.rdf.u8", "content.rdf.u8.gz"])
def test_no_file_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / "dmoz").mkdir()
    (tmp_path / "dmoz" / name).write_text("the real one")
    with pytest.raises(FileExistsError, match=rf"{name} already.* `data_dir`"):
        write_sample_dump(tmp_path, 10)
    assert [path.name for path in (tmp_path / "dmoz").iterdir()] == [name]
