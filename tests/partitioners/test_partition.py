from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from fl_lightning.partitioners import (
    ClasswiseDirichletPartitioner,
    DirichletPartitioner,
    IIDPartitioner,
    LimitedClassesPartitioner,
    Partition,
    Partitioner,
    PathologicalPartitioner,
    QPPartitioner,
    QuantitySkewPartitioner,
    ShardPartitioner,
)

LABELS = np.arange(200) % 4


def partitioners(seed: int = 0) -> list[Partitioner]:
    return [
        IIDPartitioner(7, seed=seed),
        DirichletPartitioner(7, alpha=0.3, seed=seed),
        DirichletPartitioner(7, alpha=0.3, size_sigma=0.3, seed=seed),
        QPPartitioner(7, class_alpha=0.5, burn_in=500, search=500, seed=seed),
        ClasswiseDirichletPartitioner(7, alpha=0.3, seed=seed),
        QuantitySkewPartitioner(7, alpha=0.5, min_partition_size=2, seed=seed),
        ShardPartitioner(7, seed=seed),
        ShardPartitioner(7, shard_size=9, seed=seed),
        PathologicalPartitioner(7, 2, seed=seed),
        PathologicalPartitioner(7, 2, "random", seed=seed),
        LimitedClassesPartitioner(7, limited_clients=[0, 5], num_classes_per_partition=2, seed=seed),
    ]


def test_a_partition_knows_clients_and_sizes() -> None:
    partition = Partition((np.array([4, 1, 2]), np.array([], dtype=np.int64), np.array([0])))

    assert partition.num_clients == 3
    assert partition.sizes.tolist() == [3, 0, 1]
    assert partition.indices[0].dtype == np.int64


def test_a_partition_keeps_copies() -> None:
    array = np.array([0, 1])
    partition = Partition((array,))
    array[0] = 9

    assert partition.indices[0].tolist() == [0, 1]


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


GOLDEN = [
    "eef29153ab5e30831bb9a7ec5e056227d56618ec60dd4a4232fdd7ff65337db3",
    "ec3f34378256258f9d9a8c0838031817e204d7ccd72aded5cd9b66cb0fdb76bc",
    "0f49ddd4e1f4d9c6dd190dd54e5738d068687777899ac76d9d61fcbdcd04612c",
    "d1d13ed31742822abd843abd3844d0a8d7fb83b0777c790f1fae403950687e1f",
    "fa5413834f169b00f79ca34d7d7f0f24890b68f09924e3aa96a6f64a750f8f36",
    "fd6cf10feac9bfbf6b2f92486b34af713621f8047049101169e9abea582a0fd9",
    "84780d9fdc79e95dccc31aeebad8a609cd651320255afe342ba8c1f1885607fb",
    "ea7808cf91dbe4d33c2733248dae30d9a97d65bc0a9b48e93c92f39957901fec",
    "8dff2d90bdd3e4a56dc11c506a6e34ca423511f2b333610e90c01906f06e4302",
    "5e418d8375491be9d0ff0c74524be91e932725099bdab995323c2d2876ddb121",
    "51a19b2e51d0368d08b8d2c268d219a837f197984655812dc7a8d7f460bb0ccf",
]


@pytest.mark.parametrize(("index", "fingerprint"), list(enumerate(GOLDEN)))
def test_partitions_do_not_change_between_releases(index: int, fingerprint: str) -> None:
    assert partitioners()[index](LABELS).fingerprint() == fingerprint


@pytest.mark.parametrize("index", range(11))
def test_a_partitioner_is_a_function_of_labels_and_seed(index: int) -> None:
    np.random.seed(5)
    state = np.random.get_state()[1].tolist()  # type: ignore[index]
    partitioner = partitioners(seed=3)[index]

    assert partitioner(LABELS) == partitioner(LABELS) == partitioners(seed=3)[index](LABELS)
    assert partitioner(LABELS) != partitioners(seed=4)[index](LABELS)
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index]


@pytest.mark.parametrize("index", range(11))
def test_class_numbers_do_not_matter(index: int) -> None:
    partitioner = partitioners()[index]

    assert partitioner(LABELS) == partitioner(LABELS * 10 - 7) == partitioner(LABELS.astype(np.uint8))


@pytest.mark.parametrize("index", range(11))
def test_every_client_gets_samples_and_indices_are_in_range(index: int) -> None:
    partition = partitioners()[index](LABELS)

    assert partition.num_clients == 7
    assert partition.sizes.min() >= 1
    assert set(np.concatenate(partition.indices)) <= set(range(200))


def test_iid_sizes_differ_by_one_and_all_samples_are_used() -> None:
    partition = IIDPartitioner(7)(LABELS)

    assert partition.sizes.tolist() == [29, 29, 29, 29, 28, 28, 28]
    assert sorted(np.concatenate(partition.indices)) == list(range(200))


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        ((), ValueError, "`indices` must hold one array for each client, got none"),
        ((np.array([0, 1]), np.array([1])), ValueError, "disjoint, but sample 1 is given more than once"),
        ((np.array([0, -2]),), ValueError, "must not be negative, got -2"),
        ((np.array([0]), np.array([[1]])), ValueError, r"1-D arrays, but client 1's has shape \(1, 1\)"),
        ((np.array([0.5]),), TypeError, "hold integers, but client 0's are float64"),
    ],
)
def test_an_invalid_partition_is_refused(indices: tuple[np.ndarray, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Partition(indices)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    partition = Partition((np.array([3, 1]), np.array([], dtype=np.int64), np.array([0])))
    path = tmp_path / "new" / "partition.json"
    partition.save(path)

    assert Partition.load(path) == partition
    assert [indices.dtype for indices in Partition.load(path).indices] == [np.int64] * 3
    assert path.read_bytes() == (
        b'{"format":"fl_lightning.partition","version":1,"num_clients":3,"indices":[[3,1],[],[0]]}'
    )
    assert [file.name for file in path.parent.iterdir()] == ["partition.json"]


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


@pytest.mark.parametrize("name", ["partition.npz", "partition"])
def test_another_format_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(ValueError, match=rf"`path` must end in .json or .parquet, got '{path}'"):
        Partition((np.array([0]),)).save(path)
    assert not path.exists()


def test_what_is_saved_as_parquet_is_loaded(tmp_path: Path) -> None:
    from pyarrow import parquet

    partition = Partition((np.array([3, 1]), np.array([], dtype=np.int64), np.array([0]), np.array([], dtype=np.int64)))
    path = tmp_path / "new" / "partition.parquet"
    partition.save(path)
    partition.save(path)

    assert Partition.load(path) == partition
    assert parquet.read_table(path).to_pydict() == {"client": [0, 0, 2], "sample": [3, 1, 0]}
    with pytest.raises(FileExistsError, match="`overwrite=True`"):
        Partition((np.array([0]),)).save(path)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "partition.json"
    Partition((np.array([0]),)).save(path)

    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        Partition((np.array([1]),)).save(path, overwrite=True)

    assert Partition.load(path) == Partition((np.array([0]),))
    assert [file.name for file in tmp_path.iterdir()] == ["partition.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a JSON file"),
        ("[1]", "is not a partition: its `format` must be 'fl_lightning.partition'"),
        ('{"format": "other"}', "is not a partition"),
        ('{"format": "fl_lightning.partition", "version": 9}', "has version 9; this release reads version 1"),
        (
            '{"format": "fl_lightning.partition", "version": 1, "num_clients": 2, "indices": [[0]]}',
            "is damaged: `num_clients` is 2, `indices` has 1 entries",
        ),
    ],
)
def test_a_file_that_is_no_partition_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "partition.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Partition.load(path)


def test_a_parquet_file_that_is_no_partition_is_refused(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "partition.parquet"
    path.write_bytes(b"{}")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        Partition.load(path)
    parquet.write_table(pyarrow.table({"client": [0], "sample": [0]}), path)
    message = r"partition\.parquet is not a partition: its `format` must be 'fl_lightning\.partition'"
    with pytest.raises(ValueError, match=message):
        Partition.load(path)
    header = {"fl_lightning.partition": '{"format": "fl_lightning.partition", "version": 1, "num_clients": 2}'}
    for clients in ([1, 0], [0, 2], [-1, 0]):
        table = pyarrow.table({"client": clients, "sample": [0, 1]})
        parquet.write_table(table.replace_schema_metadata(header), path)
        with pytest.raises(ValueError, match="is damaged: `client` must ascend from 0 to at most 1"):
            Partition.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"num_clients": 2}, "`indices` must be a list with a list of samples for each client"),
        ({"num_clients": 2, "indices": "ab"}, "`indices` must be a list with a list of samples"),
        ({"num_clients": 2, "indices": [1, 2]}, "`indices` must be a list with a list of samples"),
        ({"num_clients": 2, "indices": [[1, [2]], [3]]}, r"`indices` must hold whole numbers, got \[2\]"),
        ({"num_clients": 2, "indices": [[1.5], [3]]}, "`indices` must hold whole numbers, got 1.5"),
        ({"num_clients": 2, "indices": [[True], [3]]}, "`indices` must hold whole numbers, got True"),
        ({"indices": [[1]]}, "`num_clients` must be a whole number of at least 1, got None"),
        ({"num_clients": "x", "indices": [[1]]}, "`num_clients` must be a whole number of at least 1, got 'x'"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: dict[str, object], message: str) -> None:
    path = tmp_path / "partition.json"
    path.write_text(json.dumps({"format": "fl_lightning.partition", "version": 1, **content}))
    with pytest.raises(ValueError, match=rf"partition.json is damaged: {message}"):
        Partition.load(path)


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "partition.parquet"
    Partition((np.arange(500), np.arange(500, 1000))).save(path)
    table, content = parquet.read_table(path), path.read_bytes()
    path.write_bytes(content[:10] + b"\xff" * 30 + content[40:])
    with pytest.raises(ValueError, match="is not a Parquet file"):
        Partition.load(path)
    for columns in (
        {"client": [0, 1]},
        {"client": [0, None], "sample": [0, 1]},
        {"client": [0.0, 1.0], "sample": [0, 1]},
    ):
        parquet.write_table(pyarrow.table(columns).replace_schema_metadata(table.schema.metadata), path)
        with pytest.raises(ValueError, match=r"is damaged: it must have a column `(client|sample)` of whole numbers"):
            Partition.load(path)
    with pytest.raises(FileNotFoundError):
        Partition.load(tmp_path / "other.parquet")


@pytest.mark.parametrize("num_clients", [0, -1, 2.0, True])
def test_the_number_of_clients_must_be_a_positive_whole_number(num_clients: int) -> None:
    with pytest.raises(ValueError, match="`num_clients` must be a whole number of at least 1"):
        IIDPartitioner(num_clients)


def test_the_seed_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="`seed` must be a whole number of at least 0, got -1"):
        IIDPartitioner(2, seed=-1)


@pytest.mark.parametrize("index", range(11))
@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (np.zeros((20, 1), dtype=int), ValueError, r"`labels` must be 1-D.*got shape \(20, 1\)"),
        (np.zeros(20), TypeError, "`labels` must be integers, got float64"),
        (np.zeros(6, dtype=int), ValueError, "`num_clients` is 7, but there are only 6 samples.*at most 6 clients"),
    ],
)
def test_invalid_labels_are_refused(index: int, labels: np.ndarray, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        partitioners()[index](labels)


def test_a_partition_of_one_client_says_so() -> None:
    assert repr(Partition((np.arange(3),))).startswith("Partition(1 client,")
