from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning import TensorDataModule

SIZES = (5, 2, 3)


def client(size: int, value: int) -> tuple[Tensor, Tensor]:
    """All inputs of a client are its value; labels are 0, 1, 0, ..."""
    return torch.full((size, 2), float(value)), torch.arange(size) % 2


CLIENTS = [client(size, value) for value, size in enumerate(SIZES)]


def ready(**kwargs) -> TensorDataModule:
    data = TensorDataModule(**{"clients": CLIENTS, "batch_size": 2, **kwargs})
    data.setup("fit")
    return data


def values(loader) -> list[float]:
    return [value for x, _ in loader for value in x[:, 0].tolist()]


def test_the_users_tensors_are_not_copied():
    data = ready(shuffle=False, val=CLIENTS[0])
    for k, (x, _) in enumerate(CLIENTS):
        assert data.client_dataset(k).tensors[0] is x
    assert data.val_dataloader().dataset.tensors[0] is CLIENTS[0][0]


def test_replaced_inputs_follow_the_order_of_the_source():
    data = ready(val=client(2, 7), shuffle=False)
    assert data.source_inputs()[:, 0].tolist() == [0] * 5 + [1] * 2 + [2] * 3 + [7] * 2
    data.replace_inputs(data.source_inputs() + 10)
    assert values(data.client_batches(1, generator=torch.Generator())) == [11, 11]
    assert values(data.train_dataloader()) == [10] * 5 + [11] * 2 + [12] * 3
    assert values(data.val_dataloader()) == [17, 17]
    data.teardown("fit")
    assert values(data.client_batches(1, generator=torch.Generator())) == [1, 1]


def test_none_stands_for_a_client_without_an_evaluation_set() -> None:
    x, y = torch.arange(3.0).view(3, 1), torch.tensor([0, 1, 0])
    data = TensorDataModule([(x, y), (x, y)], val=[None, (x + 7, y)], test=[None, None])
    data.setup()
    ids = data.eval_client_ids("val")
    assert ids is not None and ids.tolist() == [1, 1, 1]
    [(inputs, _)] = data.val_dataloader()
    assert inputs.flatten().tolist() == [7, 8, 9]
    assert data.eval_client_ids("test") is None
    assert data.describe_clients() == "2 clients train (6 samples), 1 validates and none tests"


def test_the_partition_counts_what_clients_validate_and_test_on() -> None:
    def samples(number: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(number, 2), torch.arange(number) % 2

    data = TensorDataModule([samples(4), samples(6)], val=[samples(2), None], test=[samples(3), samples(1), samples(9)])
    data.setup()
    assert [indices.tolist() for indices in data.partition.indices] == [
        [0, 1, 2, 3, 10, 11, 12, 13, 14],
        [4, 5, 6, 7, 8, 9, 15],
        list(range(16, 25)),
    ]
    statistics = data.statistics()
    assert (statistics.num_clients, statistics.num_samples, statistics.min) == (3, 25, 7)
    assert data.client_sizes.tolist() == [4, 6]
    assert data.describe_clients() == "2 of 3 clients train (10 samples), 1 validates and 3 test"
    of_server = TensorDataModule([samples(4), samples(6)], val=samples(5))
    of_server.setup()
    assert of_server.partition.sizes.tolist() == [4, 6]
    far = TensorDataModule([samples(4), samples(6)], test=[None, None, None, samples(2)])
    far.setup()
    assert (far.statistics().num_clients, far.statistics().min) == (3, 2)
