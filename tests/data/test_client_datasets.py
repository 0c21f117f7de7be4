"""One data set for each client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_files import set_up
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from fl_lightning import ClientDatasetsModule, TensorDataModule
from fl_lightning.data import ClientSplit, SampleSplit, WithinClientSplit, find_targets


class Pairs(Dataset[Any]):
    """Samples (1, c), which are counted when they are read."""

    def __init__(self, optima: list[float], targets: list[int] | None = None) -> None:
        self.optima, self.reads = optima, 0
        if targets is not None:
            self.targets = targets

    def __len__(self) -> int:
        return len(self.optima)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return torch.tensor(1.0, dtype=torch.float64), torch.tensor(self.optima[index], dtype=torch.float64)


def named(first: int, number: int) -> Subset:
    """Return samples that are dicts."""
    return Subset([{"number": place} for place in range(100)], range(first, first + number))  # type: ignore[arg-type]


def ready(*args: Any, **kwargs: Any) -> ClientDatasetsModule:
    return set_up(ClientDatasetsModule(*args, **kwargs))


def numbers(loader: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in loader]


CLIENTS = [named(0, 5), named(5, 2), named(7, 3)]


def test_each_data_set_is_a_training_client() -> None:
    data = ready(CLIENTS, batch_size=2, shuffle=False)
    assert data.client_ids == [0, 1, 2]
    assert data.client_sizes.tolist() == data.partition.sizes.tolist() == [5, 2, 3]
    batches = [numbers(data.client_batches(k, generator=torch.Generator())) for k in range(3)]
    assert batches == [[[0, 1], [2, 3], [4]], [[5, 6]], [[7, 8], [9]]]
    assert numbers(data.train_dataloader()) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert data.val_dataloader() == data.test_dataloader() == []
    shown = repr(ClientDatasetsModule(CLIENTS, batch_size=2))
    assert shown == "ClientDatasetsModule(3 clients, 10 samples, batch_size=2)"


def test_data_sets_are_neither_copied_nor_read_before_a_client_trains() -> None:
    clients = [Pairs([1.0, 2.0]), Pairs([3.0]), Pairs([4.0, 5.0, 6.0])]
    data = ready(clients)
    assert [data.client_dataset(k) for k in range(3)] == clients
    assert [client.reads for client in clients] == [0, 0, 0]
    list(data.client_batches(2, generator=torch.Generator()))
    assert [client.reads for client in clients] == [0, 0, 3]


def test_evaluation_sets_of_nobody_and_of_clients() -> None:
    data = ready(CLIENTS, val=named(20, 3), test=[named(30, 2), None, named(40, 1)], eval_batch_size=2)
    assert numbers(data.val_dataloader()) == [[20, 21], [22]]
    assert data.eval_client_ids("val") is None
    assert numbers(data.test_dataloader()) == numbers(data.predict_dataloader()) == [[30, 31], [40]]
    ids = data.eval_client_ids("test")
    assert ids is not None and ids.tolist() == [0, 0, 2]


@pytest.mark.parametrize("tensors", [True, False])
def test_a_split_takes_evaluation_sets_from_the_clients(tensors: bool) -> None:
    sizes, firsts = (10, 20, 30, 40), (0, 10, 30, 60)
    clients: list[Any] = [
        TensorDataset(torch.arange(first, first + n)) if tensors else named(first, n)
        for first, n in zip(firsts, sizes, strict=True)
    ]

    def read(loader: Any) -> list[int]:
        return [int(n) for batch in loader for n in (batch[0] if tensors else batch["number"])]

    data = ready(clients, split=WithinClientSplit(0.1, 0.2, seed=1), batch_size=None)
    assert data.client_sizes.tolist() == [7, 14, 21, 28]
    train = [read(data.client_batches(k, generator=torch.Generator())) for k in range(4)]
    assert all(set(own) <= set(range(f, f + n)) for own, f, n in zip(train, firsts, sizes, strict=True))
    everything = [*(n for own in train for n in own), *read(data.val_dataloader()), *read(data.test_dataloader())]
    assert sorted(everything) == list(range(100))
    ids = data.eval_client_ids("val")
    assert ids is not None and np.bincount(ids).tolist() == [1, 2, 3, 4]

    whole = ready(clients, split=ClientSplit(4, seed=3), batch_size=None)
    held_out = {*whole.eval_client_ids("val").tolist(), *whole.eval_client_ids("test").tolist()}  # type: ignore[union-attr]
    assert sorted([*whole.client_ids, *held_out]) == [0, 1, 2, 3]
    assert whole.client_sizes.tolist() == [sizes[client] for client in whole.client_ids]
    assert "split=ClientSplit(num_folds=4" in repr(whole)

    drawn = ready(clients, split=SampleSplit(0.1, 0.1))
    assert drawn.client_sizes.sum() == 80
    assert drawn.eval_client_ids("val") is None


def test_classes_are_found_without_reading_samples() -> None:
    clients = [Pairs([0.0, 0.0], [1, 0]), Pairs([0.0] * 3, [2, 2, 1])]
    data = ready(clients, class_names=["a", "b", "c"])
    assert data.labels is not None and data.labels.tolist() == [1, 0, 2, 2, 1]
    assert data.class_names == ["a", "b", "c"]
    assert data.statistics().num_clients == 2
    assert clients[0].reads == 0
    shared = Pairs([0.0] * 4, [3, 1, 4, 1])
    assert [find_targets(Subset(shared, rows)).tolist() for rows in ([2, 0], [1])] == [[4, 3], [1]]  # type: ignore[union-attr]
    assert ready([*clients, Pairs([0.0])]).labels is None


def test_replaced_inputs_follow_the_order_of_the_source() -> None:
    rows, labels = torch.arange(8.0)[:, None], torch.zeros(8)
    clients = [(rows[:3], labels[:3]), (rows[3:5], labels[3:5])]
    data = set_up(TensorDataModule(clients, (rows[5:], labels[5:]), shuffle=False))

    def served() -> list[list[float]]:
        loaders = data.client_batches(1, generator=torch.Generator()), data.train_dataloader(), data.val_dataloader()
        return [[value for x, _ in loader for value in x.flatten().tolist()] for loader in loaders]

    as_given = [[3, 4], [0, 1, 2, 3, 4], [5, 6, 7]]
    assert served() == as_given
    data.replace_inputs(data.source_inputs() + 10)
    assert served() == [[13, 14], [10, 11, 12, 13, 14], [15, 16, 17]]
    data.teardown("fit")
    assert served() == as_given


def rows_of(number: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(number, 2), torch.arange(number) % 2


def test_the_partition_counts_what_clients_validate_and_test_on() -> None:
    data = TensorDataModule([rows_of(4), rows_of(6)], val=[None, rows_of(2)], test=[rows_of(3), rows_of(1), rows_of(9)])
    data.setup()
    assert [indices.tolist() for indices in data.partition.indices] == [
        [0, 1, 2, 3, 12, 13, 14], [4, 5, 6, 7, 8, 9, 10, 11, 15], list(range(16, 25))
    ]  # fmt: skip
    assert data.eval_client_ids("val").tolist() == [1, 1]  # type: ignore[union-attr]
    statistics = data.statistics()
    assert (statistics.num_clients, statistics.num_samples, statistics.min) == (3, 25, 7)
    assert data.client_sizes.tolist() == [4, 6]
    assert data.describe_clients() == "2 of 3 clients train (10 samples), 1 validates and 3 test"
    far = set_up(TensorDataModule([rows_of(4), rows_of(6)], val=[None, None], test=[None, None, None, rows_of(2)]))
    assert (far.statistics().num_clients, far.statistics().min) == (3, 2)
    assert far.eval_client_ids("val") is None
    assert far.describe_clients() == "2 of 4 clients train (10 samples), none validates and 1 tests"


@pytest.mark.parametrize("val", [None, 1.0, [None, 1.0], []])
@pytest.mark.parametrize(("test", "clients"), [(2.0, None), ([None, 2.0], [1, 1, 1])])
def test_sets_that_are_given_may_be_validated_and_tested_on_alike(val: Any, test: Any, clients: Any) -> None:
    def sets(value: Any) -> Any:
        if isinstance(value, list):
            return [sets(each) for each in value]
        return None if value is None else (torch.full((3, 1), value), torch.zeros(3))

    data = TensorDataModule([sets(0.0), sets(0.0)], val=sets(val), test=sets(test))
    data.validates_on_test = True
    data.setup()
    for loader in (data.val_dataloader(), data.test_dataloader()):
        ((x, _),) = loader
        assert x.flatten().tolist() == [2.0, 2.0, 2.0]
    ids = data.eval_client_ids("val")
    assert (ids if ids is None else ids.tolist()) == clients
    both = "1 validates and 1 tests" if clients else "the server validates on 3 samples and the server tests on 3"
    assert both in data.describe_clients()


def test_evaluation_rows_of_clients_are_gathered_by_batches() -> None:
    sizes = [1, 3, 2, 4]
    rows = torch.arange(10.0)
    clients = [(part[:, None], part.long()) for part in rows.split(sizes)]
    data = set_up(TensorDataModule(clients, val=clients, eval_batch_size=4))
    loader = data.val_dataloader()
    batches = [(x.flatten().tolist(), y.tolist()) for x, y in loader]
    assert batches == [([0, 1, 2, 3], [0, 1, 2, 3]), ([4, 5, 6, 7], [4, 5, 6, 7]), ([8, 9], [8, 9])]
    clients[2][0].fill_(-1.0)  # the tensors are the user's own, not copies
    assert [x.flatten().tolist() for x, _ in loader] == [[0, 1, 2, 3], [-1, -1, 6, 7], [8, 9]]
    torch.manual_seed(0)
    drawn = torch.cat([x for x, _ in data.train_dataloader()]).flatten().tolist()
    assert sorted(drawn) == [-1, -1, 0, 1, 2, 3, 6, 7, 8, 9]
    assert drawn != sorted(drawn)
