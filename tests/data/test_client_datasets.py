"""One data set for each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import pandas
import pytest
import torch
from helpers.toys import Quadratic, quiet_trainer
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fl_lightning import ClientDatasetsModule, ClientMetrics, FedAvg, TensorDataModule
from fl_lightning.data import ClientSplit, FederatedDataModule, SampleSplit, WithinClientSplit, find_targets
from fl_lightning.partitioners import IIDPartitioner


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


class Named(Dataset[Any]):
    """Samples that are dicts."""

    def __init__(self, first: int, number: int) -> None:
        self.numbers = list(range(first, first + number))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"number": self.numbers[index]}


def ready(*args: Any, **kwargs: Any) -> ClientDatasetsModule:
    data = ClientDatasetsModule(*args, **kwargs)
    data.setup("fit")
    return data


def numbers(loader: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in loader]


CLIENTS = [Named(0, 5), Named(5, 2), Named(7, 3)]


def test_each_data_set_is_a_training_client() -> None:
    data = ready(CLIENTS, batch_size=2, shuffle=False)
    assert data.client_ids == [0, 1, 2]
    assert data.client_sizes.tolist() == data.partition.sizes.tolist() == [5, 2, 3]
    batches = [numbers(data.client_batches(k, generator=torch.Generator())) for k in range(3)]
    assert batches == [[[0, 1], [2, 3], [4]], [[5, 6]], [[7, 8], [9]]]
    assert numbers(data.train_dataloader()) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert data.val_dataloader() == data.test_dataloader() == []
    assert repr(ClientDatasetsModule(CLIENTS, batch_size=2)) == (
        "ClientDatasetsModule(3 clients, 10 samples, batch_size=2)"
    )


def test_data_sets_are_neither_copied_nor_read_before_a_client_trains() -> None:
    clients = [Pairs([1.0, 2.0]), Pairs([3.0]), Pairs([4.0, 5.0, 6.0])]
    data = ready(clients)
    assert [data.client_dataset(k) for k in range(3)] == clients
    assert [client.reads for client in clients] == [0, 0, 0]
    list(data.client_batches(2, generator=torch.Generator()))
    assert [client.reads for client in clients] == [0, 0, 3]


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_a_federation_of_data_sets_trains(executor: Any) -> None:
    # one full-batch step at learning rate 1/2 takes client k half way to its mean optimum: 2/2, 8/2; of 2 and 1 samples
    module = Quadratic(0.5)
    module.training_step = lambda batch, batch_idx: (0.5 * batch[0] * (module.w - batch[1]) ** 2).mean()  # type: ignore[method-assign]
    data = ClientDatasetsModule([Pairs([1.0, 3.0]), Pairs([8.0])], batch_size=None)
    quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor)]).fit(module, datamodule=data)
    assert float(module.w.detach()) == pytest.approx((2 * 1.0 + 4.0) / 3, abs=1e-12)


def test_evaluation_sets_of_nobody_and_of_clients() -> None:
    data = ready(CLIENTS, val=Named(20, 3), test=[Named(30, 2), None, Named(40, 1)], eval_batch_size=2)
    assert numbers(data.val_dataloader()) == [[20, 21], [22]]
    assert data.eval_client_ids("val") is None
    assert numbers(data.test_dataloader()) == numbers(data.predict_dataloader()) == [[30, 31], [40]]
    ids = data.eval_client_ids("test")
    assert ids is not None and ids.tolist() == [0, 0, 2]


@pytest.mark.parametrize("tensors", [True, False])
def test_a_split_takes_evaluation_sets_from_the_clients(tensors: bool) -> None:
    sizes, firsts = (10, 20, 30, 40), (0, 10, 30, 60)
    clients: list[Any] = [
        TensorDataset(torch.arange(first, first + n)) if tensors else Subset(Named(0, 100), range(first, first + n))
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


def test_tensors_take_a_split_too() -> None:
    clients = [(torch.arange(10 * k, 10 * k + 10), torch.arange(10) % 2) for k in range(3)]
    data = TensorDataModule(clients, split=WithinClientSplit(0.2, 0.0))
    data.setup()
    assert data.client_sizes.tolist() == [8, 8, 8]
    with pytest.raises(ValueError, match="Give `split` or `val` and `test`, not both; got WithinClientSplit"):
        TensorDataModule(clients, val=clients[0], split=WithinClientSplit(0.2, 0.0))


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


def test_data_sets_of_tensors_are_standardised() -> None:
    clients = [
        TensorDataset(torch.tensor([[1.0], [3.0]]), torch.zeros(2)),
        TensorDataset(torch.ones(2, 1), torch.ones(2)),
    ]
    data = ready(clients, standardize="local", shuffle=False)
    assert [x.flatten().tolist() for k in range(2) for x, _ in data.client_batches(k, generator=torch.Generator())] == [
        [-1.0, 1.0], [0.0, 0.0]
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"Subset of one.*but `clients\[0\]` is a Named"):
        ready(CLIENTS, standardize="local")


TABLE = torch.tensor([[0.0], [2.0], [10.0], [4.0], [6.0], [8.0]])
ROWS = TensorDataset(TABLE, torch.tensor([0, 1, 2, 0, 1, 2]))


@pytest.mark.parametrize(
    "clients",
    [
        [Subset(ROWS, [0, 1]), Subset(ROWS, [2, 5])],
        [Subset(Subset(ROWS, [5, 1, 0, 2]), [2, 1]), ConcatDataset([Subset(ROWS, [2]), Subset(ROWS, [-1])])],
        [TensorDataset(TABLE[:2], torch.tensor([0, 1])), Subset(ROWS, np.array([2, 5], dtype=np.uint8))],
    ],
)
def test_subsets_and_joined_sets_of_tensors_are_standardised(clients: list[Dataset[Any]]) -> None:
    data = ready(clients, standardize="local", shuffle=False)
    batches = [next(iter(data.client_batches(k, generator=torch.Generator()))) for k in range(2)]
    assert [x.flatten().tolist() for x, _ in batches] == [[-1.0, 1.0], [1.0, -1.0]]
    assert [y.tolist() for _, y in batches] == [[0, 1], [2, 2]]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ((torch.ones(1, 3), torch.ones(1).long()), r"float32 of shape \(3,\) and int64"),
        ((torch.ones(1, 1).double(), torch.ones(1).long()), r"float64 of shape \(1,\) and int64 of shape \(\)\."),
        ((torch.ones(1, 1),), r"those of `clients\[1\]` float32 of shape \(1,\)\."),
    ],
)
@pytest.mark.parametrize("options", [{"standardize": "global"}, {"impute": "local"}])
def test_clients_whose_samples_differ_cannot_be_standardised(
    other: tuple[Tensor, ...], message: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=rf"those of `clients\[0\]` are float32 of shape \(1,\) and .*{message}"):
        TensorDataModule([(TABLE, torch.ones(6).long()), other], **options).setup()


def test_a_split_holds_out_clients_whose_samples_have_other_features() -> None:
    clients = [(torch.ones(2, features), torch.ones(2)) for features in (1, 2, 3)]
    data = TensorDataModule(clients, split=ClientSplit(3), shuffle=False)
    data.setup()
    ((x, _),) = data.client_batches(0, generator=torch.Generator())
    assert x.tolist() == clients[data.client_ids[0]][0].tolist()


@pytest.mark.parametrize(
    "kind", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64], ids=lambda k: k.__name__
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_indices_of_a_subset_may_have_any_type_of_whole_numbers(kind: Any, shuffle: bool) -> None:
    rows = TensorDataset(torch.arange(300), torch.arange(300) % 3)
    chosen = np.array([3, 1, 120], dtype=kind)
    data = ready([Subset(rows, chosen), Subset(rows, torch.from_numpy(chosen.astype(np.int64)).int())], shuffle=shuffle)
    for client in range(2):
        ((x, _),) = data.client_batches(client, generator=torch.Generator())
        assert (sorted(x.tolist()) if shuffle else x.tolist()) == ([1, 3, 120] if shuffle else [3, 1, 120])
    assert data.labels is not None and data.labels.tolist() == [0, 1, 0] * 2


def test_a_subset_of_short_negative_indices_does_not_overflow() -> None:
    rows = TensorDataset(torch.arange(40_000))
    ((batch,),) = ready([Subset(rows, np.array([-1, -2], dtype=np.int16))], shuffle=False).client_batches(
        0, generator=torch.Generator()
    )
    assert batch.tolist() == [39_999, 39_998]


def test_a_mask_is_no_subset() -> None:
    mask = np.array([True, False, True, False, False, False])
    with pytest.raises(TypeError, match=r"`indices` of the `Subset` must be integers, got a mask .*flatnonzero"):
        ready([Subset(ROWS, mask)])


@pytest.mark.parametrize("labels", [pandas.Series([0, 1, 1]), pandas.Series([0, 1, 1], dtype="Int64"), [0, 1, 1]])
def test_classes_may_be_a_column_of_a_table(labels: Any) -> None:
    assert ready([Pairs([0.0, 1.0, 2.0], labels)]).statistics().as_dict()["entropy"] == pytest.approx(0.6365, abs=1e-4)


@pytest.mark.parametrize("targets", [[0, 1, 2], [-1, 0, 1]])
def test_each_class_needs_a_name(targets: list[int]) -> None:
    message = f"`class_names` must have a name for each class.* got 2 names; there are classes from {targets[0]} to"
    with pytest.raises(ValueError, match=message):
        ready([Pairs([0.0] * 3, targets)], class_names=["cat", "dog"])


def test_a_collate_fn_makes_the_batches() -> None:
    data = ready(CLIENTS, batch_size=2, collate_fn=len, val=Named(0, 3))
    assert list(data.client_batches(0, generator=torch.Generator())) == [2, 2, 1]
    assert list(data.val_dataloader()) == [3]


def test_every_client_is_evaluated_by_itself() -> None:
    class Scores(Quadratic):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x, -x], dim=1)

        def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
            return {"preds": self(batch[1]), "target": batch[0].long() - 1}

    metrics = ClientMetrics()
    data = ClientDatasetsModule([Pairs([1.0])], val=[Pairs([1.0, -1.0]), Pairs([1.0])])
    quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0), metrics]).fit(Scores(0.1), datamodule=data)
    assert metrics.values["val"] == {0: 0.5, 1: 1.0}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClientDatasetsModule({"a": Named(0, 1)}), r"`clients` must be a list .*list\(clients.values\(\)\)"),  # type: ignore[arg-type]
        (lambda: ClientDatasetsModule(Named(0, 3)), "`clients` must be a list with one data set for each client, got"),  # type: ignore[arg-type]
        (
            lambda: ClientDatasetsModule(Named(0, 3)),  # type: ignore[arg-type]
            r"To distribute one data set: datamodules.TorchDatasetDataModule\(dataset, partitioner\)",
        ),
        (
            lambda: ClientDatasetsModule(DataLoader(Named(0, 3))),  # type: ignore[arg-type]
            r"`clients` must be a list .* datamodules.TorchDatasetDataModule\(loader.dataset, partitioner\)",
        ),
        (
            lambda: ClientDatasetsModule([DataLoader(Named(0, 3))]),  # type: ignore[list-item]
            r"`clients\[0\]` must be a data set .* Give the DataLoader's `dataset`; `batch_size` is an argument here",
        ),
        (lambda: ClientDatasetsModule([]), "`clients` is empty; give one data set for each client"),
        (lambda: ClientDatasetsModule([Named(0, 1), Named(0, 0)]), r"`clients\[1\]` has no samples; leave it out"),
        (lambda: ClientDatasetsModule([Stream()]), r"`clients\[0\]` must be .*list\(dataset\) keeps them"),
        (
            lambda: ClientDatasetsModule([(torch.ones(2), torch.ones(2))]),  # type: ignore[list-item]
            r"`clients\[0\]` must be a data set .* TensorDataModule takes tensors",
        ),
        (lambda: ClientDatasetsModule(CLIENTS, val=[[]]), r"`val\[0\]` has no samples"),  # type: ignore[list-item]
        (lambda: ClientDatasetsModule(CLIENTS, test=3), "`test` must be a data set"),  # type: ignore[arg-type]
        (
            lambda: ClientDatasetsModule(CLIENTS, partitioner=IIDPartitioner(4)),  # type: ignore[call-arg]
            "^ClientDatasetsModule has no argument `partitioner`: `clients` says which .*s.TorchDatasetDataModule",
        ),
        (
            lambda: TensorDataModule([(torch.ones(2),)], partitioner=IIDPartitioner(4)),  # type: ignore[call-arg]
            "^TensorDataModule has no argument `partitioner`",
        ),
        (lambda: FederatedDataModule.from_datasets(CLIENTS), r"from_datasets` does not know .*ClientDatasetsModule\("),
    ],
)
def test_what_is_no_list_of_data_sets_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("rows", [[-1, -2, 0], torch.tensor([-1, -2, 0]), np.array([-1, -2, 0])])
def test_rows_may_be_counted_from_the_end(rows: Any) -> None:
    """Of three samples with optima 1, 2 and 6 all are taken: one step of rate 1 over them goes to their mean."""
    samples = TensorDataset(torch.ones(3, dtype=torch.float64), torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64))
    module = Quadratic(1.0)
    data = ClientDatasetsModule([Subset(samples, rows)] * 2, batch_size=None)
    quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)]).fit(module, datamodule=data)
    assert float(module.w) == pytest.approx(3.0)


def test_what_no_federated_fit_reads_is_told() -> None:
    class Own(TensorDataModule):
        def train_dataloader(self) -> Any:
            raise AssertionError

    pair = (torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    data = Own([pair, pair], batch_size=1)
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    with pytest.warns(UserWarning, match="`Own.train_dataloader` is not called in a federated fit.*`client_batches`"):
        trainer.fit(Quadratic(1.0), datamodule=data)


def test_a_test_without_samples_is_told() -> None:
    class Tested(Quadratic):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            raise AssertionError

    pair = (torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    with pytest.warns(UserWarning, match="no test samples"):
        quiet_trainer().test(Tested(1.0), datamodule=TensorDataModule([pair, pair], batch_size=1), verbose=False)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("length", [2, 4])
def test_a_data_set_that_changes_its_length_in_a_fit_is_an_error(shuffle, length):
    growing = Pairs([1.0, 2.0, 3.0])

    class Grows(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == 1:
                growing.optima = [1.0, 2.0, 3.0, 4.0][:length]

    data = ClientDatasetsModule([Pairs([5.0]), growing], shuffle=shuffle)
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(executor="sequential"), Grows()])
    message = rf"`clients\[1\]` had 3 samples at the set-up, and has {length} now.*`sampler`"
    with pytest.raises(RuntimeError, match=message):
        trainer.fit(Quadratic(lr=0.1), datamodule=data)


def test_a_test_set_that_changes_its_length_is_an_error():
    growing = Pairs([1.0])
    data = ready([Pairs([5.0])], test=[None, growing])
    growing.optima = [1.0, 2.0]
    with pytest.raises(RuntimeError, match=r"`test\[1\]` had 1 sample at the set-up, and has 2 now"):
        data.test_dataloader()


@pytest.mark.parametrize("val", [None, 1.0, [None, 1.0]])
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
    assert ("1 validates and 1 tests" if clients else "the server validates on 3 and tests on 3") in (
        data.describe_clients()
    )


def test_evaluation_rows_of_clients_are_gathered_by_batches() -> None:
    sizes = [1, 3, 2, 4]
    rows = torch.arange(10.0)
    clients = [(part[:, None], part.long()) for part in rows.split(sizes)]
    data = TensorDataModule(clients, val=clients, eval_batch_size=4)
    data.setup()
    batches = [(x.flatten().tolist(), y.tolist()) for x, y in data.val_dataloader()]
    assert batches == [([0, 1, 2, 3], [0, 1, 2, 3]), ([4, 5, 6, 7], [4, 5, 6, 7]), ([8, 9], [8, 9])]
    clients[2][0].fill_(-1.0)  # the tensors are the user's own, not copies
    assert [x.flatten().tolist() for x, _ in data.val_dataloader()] == [[0, 1, 2, 3], [-1, -1, 6, 7], [8, 9]]
    torch.manual_seed(0)
    drawn = torch.cat([x for x, _ in data.train_dataloader()]).flatten().tolist()
    assert sorted(drawn) == [-1, -1, 0, 1, 2, 3, 6, 7, 8, 9]
    assert drawn != sorted(drawn)
