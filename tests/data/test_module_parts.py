"""Parts of data modules: wrong kinds are refused by name, and the repr is one short line."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import TensorDataset

from fl_lightning.data import ClientSplit, FederatedDataModule, FederatedSplit, Source, Split
from fl_lightning.partitioners import IIDPartitioner

X, Y = torch.arange(24.0).view(12, 2), torch.arange(12) % 3


class Rows(FederatedDataModule):
    def __init__(self, labels: Any = None, loaded: Any = None, **options: Any) -> None:
        super().__init__(**{"partitioner": IIDPartitioner(6), "split": ClientSplit(3), **options})
        self.given, self.loaded = labels, loaded

    def load(self) -> Source:
        return self.loaded or Source(TensorDataset(X, Y), Y.numpy() if self.given is None else self.given)


def test_labels_may_be_lists_and_tensors() -> None:
    expected = Rows()
    expected.setup()
    for labels in (Y.tolist(), Y, tuple(Y.tolist())):
        data = Rows(labels)
        data.setup()
        assert data.partition == expected.partition
        assert data.statistics() == expected.statistics()


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
