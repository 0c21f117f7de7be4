"""Parts of data modules: wrong kinds are refused by name, and the repr is one short line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from datamodules import DigitsDataModule, FedProxSyntheticDataModule, TorchDatasetDataModule
from fl_lightning.data import ClientSplit, FederatedDataModule, FederatedSplit, Source, Split, TensorDataModule
from fl_lightning.partitioners import DirichletPartitioner, IIDPartitioner, Partition

ROOT = Path(__file__).parents[2]
X, Y = torch.arange(24.0).view(12, 2), torch.arange(12) % 3


class Rows(FederatedDataModule):
    def __init__(self, labels: Any = None, loaded: Any = None, **options: Any) -> None:
        super().__init__(**{"partitioner": IIDPartitioner(6), "split": ClientSplit(3), **options})
        self.given, self.loaded = labels, loaded

    def load(self) -> Source:
        return self.loaded or Source(TensorDataset(X, Y), Y.numpy() if self.given is None else self.given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitioner": "iid"}, "`partitioner` must be a partitioner, such as IIDPartitioner.* got 'iid'"),
        ({"partitioner": IIDPartitioner}, r"got the class IIDPartitioner. Make one first: IIDPartitioner\(...\)"),
        ({"partitioner": lambda: None}, "`partitioner` must be a function of one argument, the labels"),
        (
            {"partitioner": Partition((np.array([0]),))},
            r"or a function .* got Partition\(1 client, 1 sample,",
        ),
        ({"split": ClientSplit}, r"`split` must be a split, got the class ClientSplit. Make one: ClientSplit\(\)"),
        ({"split": 5}, r"`split` must be a split such as ClientSplit\(num_folds=5\), .* got 5"),
        ({"split": "client"}, "`split` must be a split such as .* got 'client'"),
        ({"split": (0.8, 0.2)}, r"`split` must be a split such as .* got \(0.8, 0.2\)"),
    ],
)
def test_partitioners_and_splits_of_the_wrong_kind(options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Rows(**options)


def test_a_text_is_no_partitioner_of_digits() -> None:
    with pytest.raises(TypeError, match=r"`partitioner` must be a partitioner, such as IIDPartitioner.* got 'iid'"):
        DigitsDataModule("iid")  # type: ignore[arg-type]


def test_labels_may_be_lists_and_tensors() -> None:
    expected = Rows()
    expected.setup()
    for labels in (Y.tolist(), Y, tuple(Y.tolist())):
        data = Rows(labels)
        data.setup()
        assert data.partition == expected.partition
        assert data.statistics() == expected.statistics()


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (Y[:5], ValueError, r"`labels` must have one entry per sample, shape \(12,\), got shape \(5,\)"),
        (Y[:, None], ValueError, r"`labels` must be .* have shape \(12, 1\).* shape \(12,\). Use `y.squeeze\(1\)`"),
        ([[0]] * 11 + [[1, 2]], TypeError, "`labels` must be an array, a list or a tensor, got"),
        (Y / 2, TypeError, "`labels` must be integers, got float32. Number the classes.*numpy.digitize"),
    ],
)
def test_labels_of_the_wrong_kind(labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Rows(labels).setup()


def test_methods_of_subclasses_must_return_the_right_kind() -> None:
    with pytest.raises(
        TypeError, match=r"`load\(\)` of Rows must .* got \(<Tensor.*Write `return Source\(dataset, labels"
    ):
        Rows(loaded=(X, Y)).setup()

    class Half(Split):
        def split(self, labels, partitioner, test_indices):
            return np.split(np.arange(len(labels)), 2)

    with pytest.raises(TypeError, match=r"`federate\(\)` of Rows must return a FederatedSplit, got \[<ndarray of"):
        Rows(split=Half()).setup()


def test_a_split_of_ones_own() -> None:
    class LastClientTests(Split):
        def split(self, labels, partitioner, test_indices):
            partition = partitioner(labels)
            *train, last = range(partition.num_clients)
            part = {client: partition.indices[client] for client in train}
            return FederatedSplit(part, {}, {last: partition.indices[last]}, partition)

    data = Rows(split=LastClientTests())
    data.setup()
    assert data.client_ids == [0, 1, 2, 3, 4]
    assert data.eval_client_ids("test").tolist() == [5, 5]  # type: ignore[union-attr]
    assert repr(data.split) == "LastClientTests()"


def test_the_representation_is_one_short_line() -> None:
    tensors = [(X[:4], Y[:4])] * 3
    assert str(TensorDataModule(tensors, batch_size=4)) == "TensorDataModule(3 clients, 12 samples, batch_size=4)"
    assert repr(TensorDataModule(tensors, batch_size=4)) == "TensorDataModule(3 clients, 12 samples, batch_size=4)"
    assert repr(TensorDataModule(tensors[:1], shuffle=False)) == (
        "TensorDataModule(1 client, 4 samples, batch_size=32, shuffle=False)"
    )
    digits = DigitsDataModule(DirichletPartitioner(5, 0.3), split=ClientSplit(3), augment=True)
    assert repr(digits) == (
        "DigitsDataModule(partitioner=DirichletPartitioner(num_clients=5, alpha=0.3, seed=0), augment=True, "
        "batch_size=32, split=ClientSplit(num_folds=3, fold=0, seed=0))"
    )
    digits.setup()
    assert repr(digits).startswith("DigitsDataModule(1 of 5 clients train, 1797 samples, partitioner=")
    synthetic = FedProxSyntheticDataModule(0.5, num_clients=7)
    assert repr(synthetic).startswith("FedProxSyntheticDataModule(7 clients, alpha=0.5, split=Within")
    module = TorchDatasetDataModule(TensorDataset(X, Y), clients=Y.tolist())
    assert repr(module).startswith("TorchDatasetDataModule(TensorDataset of 12 samples, batch_size=32, split=")
    assert repr(Source(TensorDataset(X, Y), Y.numpy())).endswith(", labels=<ndarray of shape (12,)>)")


_PROGRAM = """
import importlib, importlib.metadata, sys, types

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def hidden(cls, name, original=importlib.metadata.Distribution.from_name.__func__):
    if name == "torchvision":
        raise importlib.metadata.PackageNotFoundError(name)
    return original(cls, name)

sys.meta_path.insert(0, Missing())
importlib.metadata.Distribution.from_name = classmethod(hidden)  # torchmetrics looks there
models = types.ModuleType("fl_lightning.models")  # the models need torchvision; nothing here needs the models
models.__path__ = [sys.argv[1]]
sys.modules["fl_lightning.models"] = models
for name in ("fl_lightning.partitioners", "fl_lightning.data", "datamodules"):
    importlib.import_module(name)
from datamodules import DigitsDataModule, MNISTDataModule
MNISTDataModule("data")
try:
    MNISTDataModule("data").prepare_data()
except ModuleNotFoundError as error:
    print(error)
"""


def test_torchvision_is_imported_where_it_is_used() -> None:
    command = [sys.executable, "-c", _PROGRAM, str(ROOT / "fl_lightning" / "models")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "No module named 'torchvision'"
