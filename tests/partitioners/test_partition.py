from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas
import pytest

from fl_lightning.partitioners import Partition


def test_a_partition_knows_clients_and_sizes() -> None:
    partition = Partition((np.array([4, 1, 2]), np.array([], dtype=np.int64), np.array([0])))

    assert partition.num_clients == 3
    assert partition.sizes.tolist() == [3, 0, 1]
    assert partition.indices[0].dtype == np.int64
    assert repr(partition) == "Partition(3 clients, 4 samples, 0 to 3 each)"


def test_partitions_are_equal_when_clients_samples_and_order_are() -> None:
    partition = Partition((np.array([0, 1]), np.array([2])))

    assert partition == Partition((np.array([0, 1], dtype=np.int32), np.array([2])))
    assert len({partition, Partition((np.array([0, 1]), np.array([2])))}) == 1
    assert partition != Partition((np.array([1, 0]), np.array([2])))
    assert partition != Partition((np.array([0]), np.array([1, 2])))
    assert partition != "partition"


def test_the_fingerprint_is_sha256_of_a_header_and_little_endian_sizes_and_indices() -> None:
    expected = hashlib.sha256(
        b"fl_lightning.partition/1/2"
        + bytes.fromhex("0200000000000000" + "0500000000000000" + "0101000000000000")
        + bytes.fromhex("0100000000000000" + "0000000000000000")
    )

    assert Partition((np.array([5, 257]), np.array([0]))).fingerprint() == expected.hexdigest()


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    partition = Partition((np.array([3, 1]), np.array([], dtype=np.int64), np.array([0])))
    path = tmp_path / "new" / "partition.json"
    partition.save(path)
    partition.save(tmp_path / "partition.parquet")

    assert Partition.load(path) == Partition.load(tmp_path / "partition.parquet") == partition
    table = pandas.read_parquet(tmp_path / "partition.parquet")
    assert table.to_dict("list") == {"client": [0, 0, 2], "sample": [3, 1, 0]}
    assert [indices.dtype for indices in Partition.load(path).indices] == [np.int64] * 3
    assert path.read_text() == (
        '{"format":"fl_lightning.partition","version":1,"num_clients":3,'
        f'"fingerprint":"{partition.fingerprint()}","indices":[[3,1],[],[0]]}}'
    )
    assert [file.name for file in path.parent.iterdir()] == ["partition.json"]
    path.write_text(path.read_text().replace(f'"fingerprint":"{partition.fingerprint()}",', ""))
    assert Partition.load(path) == partition


def test_saving_over_another_partition_must_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    first, second = Partition((np.array([0]),)), Partition((np.array([1]),))
    first.save(path)
    first.save(path)
    with pytest.raises(FileExistsError, match="`overwrite=True`"):
        second.save(path)
    assert Partition.load(path) == first
    second.save(path, overwrite=True)

    assert Partition.load(path) == second
