"""How samples become batches: what is dropped, in which order they come, and what changes them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.tiny_files import set_up
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.utils.data import WeightedRandomSampler

from fl_lightning import ClientDatasetsModule, FedAvg, FederatedDataModule, TensorDataModule
from fl_lightning.data import find_targets
from fl_lightning.data.order import EvaluationShare, evaluation_share, shared_batch_size

SIZES = (8, 3, 5)


def client(size: int, first: int) -> tuple[Tensor, Tensor]:
    """Sample i has the input ``first + i`` and alternating classes."""
    return torch.arange(float(first), first + size), torch.arange(size) % 2


CLIENTS = [client(size, first) for size, first in zip(SIZES, (0, 10, 20), strict=True)]


def ready(**kwargs: Any) -> TensorDataModule:
    return set_up(TensorDataModule(**{"clients": CLIENTS, "batch_size": 4, **kwargs}))


def batches(data: FederatedDataModule, client: int, seed: int = 0) -> list[list[float]]:
    generator = torch.Generator().manual_seed(seed)
    return [batch[0].tolist() for batch in data.client_batches(client, generator=generator)]


# ---- the last batch ----


def test_a_smaller_last_batch_is_dropped_and_a_small_client_keeps_its_one() -> None:
    data = ready(drop_last=True, shuffle=False)
    assert [batches(data, k) for k in range(3)] == [
        [[0, 1, 2, 3], [4, 5, 6, 7]], [[10, 11, 12]], [[20, 21, 22, 23]]
    ]  # fmt: skip
    assert [data.num_client_batches(k) for k in range(3)] == [2, 1, 1]
    assert data.client_sizes.tolist() == list(SIZES)
    # Central training has all 16 samples.
    for size, expected in [(5, [5, 5, 5]), (16, [16]), (20, [16])]:
        loader = ready(drop_last=True, batch_size=size).train_dataloader()
        assert [len(x) for x, _ in loader] == expected


# ---- the order ----


def balanced(client: int, dataset: Any, generator: torch.Generator) -> WeightedRandomSampler:
    labels = find_targets(dataset)
    assert labels is not None
    return WeightedRandomSampler((1 / np.bincount(labels)[labels]).tolist(), len(labels), generator=generator)


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_function_draws_the_order_of_a_clients_samples(drop_last: bool) -> None:
    data = ready(sampler=lambda client, dataset, generator: range(len(dataset) - 1, -1, -1), drop_last=drop_last)
    assert batches(data, 0) == [[7, 6, 5, 4], [3, 2, 1, 0]]
    assert batches(data, 2) == [[24, 23, 22, 21], *([] if drop_last else [[20]])]


def test_it_gets_the_clients_position_and_samples_and_the_epochs_generator() -> None:
    seen: list[Any] = []

    def note(client: int, dataset: Any, generator: torch.Generator) -> Tensor:
        seen.append((client, [float(x) for x, _ in dataset]))
        return torch.randint(len(dataset), (len(dataset),), generator=generator)

    data = ready(sampler=note, train_transform=lambda x: -x)
    first, again, other = (batches(data, 1, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert seen == [(1, [10, 11, 12])] * 3
    assert all(-12 <= x <= -10 for x in first[0])


def test_central_training_draws_each_clients_samples_in_its_way() -> None:
    def same(client: int, dataset: Any, generator: torch.Generator) -> list[int]:
        assert isinstance(generator, torch.Generator)
        return [client] * len(dataset)

    data = ready(sampler=same, batch_size=5)
    torch.manual_seed(0)
    first, second = ([x for batch, _ in data.train_dataloader() for x in batch.tolist()] for _ in range(2))
    # client 0 draws its sample 0 eight times, client 1 its sample 1 three times, client 2 its sample 2 five times
    assert sorted(first) == [0.0] * 8 + [11.0] * 3 + [22.0] * 5
    assert sorted(first) == sorted(second)
    assert first != second != sorted(second)
    assert len(data.train_dataloader()) == 4
    for each in (data, ready()):
        orders = [each.pooled_order(range(3), torch.Generator().manual_seed(1)).tolist() for _ in range(2)]
        assert orders[0] == orders[1] != sorted(orders[0])


# ---- transforms ----

Sample = namedtuple("Sample", "x y")


def test_training_and_evaluation_have_transforms_of_their_own() -> None:
    options = {"train_transform": lambda x: x + 100, "eval_transform": lambda x: -x}
    data = ready(**options, val=client(2, 1), test=[client(1, 5), client(1, 6)], shuffle=False)
    assert batches(data, 1) == [[110, 111, 112]]
    assert next(iter(data.train_dataloader()))[0].tolist() == [100, 101, 102, 103]
    assert [x.tolist() for x, _ in data.val_dataloader()] == [[-1, -2]]
    assert [x.tolist() for x, _ in data.test_dataloader()] == [[-5, -6]]
    assert [y.tolist() for _, y in data.test_dataloader()] == [[0, 0]]
    assert data.augmented
    assert not ready().augmented


def test_a_transform_gets_the_first_of_several_or_the_whole_sample() -> None:
    for samples, transform, expected in [
        ([(1, "a"), (2, "b")], lambda x: 10 * x, [(10, "a"), (20, "b")]),
        ([[1, 2], [3, 4]], lambda x: 10 * x, [[10, 2], [30, 4]]),
        ([Sample(1, 2), Sample(3, 4)], lambda x: 10 * x, [Sample(10, 2), Sample(30, 4)]),
        ([{"x": 1}, {"x": 2}], lambda sample: {"y": sample["x"]}, [{"y": 1}, {"y": 2}]),
        ([1, 2], lambda x: 10 * x, [10, 20]),
    ]:
        data = set_up(ClientDatasetsModule([samples], train_transform=transform, collate_fn=list, shuffle=False))
        (batch,) = data.client_batches(0, generator=torch.Generator())
        assert batch == expected
        assert [type(sample) for sample in batch] == [type(sample) for sample in expected]


# ---- in a federated fit ----


class Alternating(TensorDataModule):
    """Turns the sign of every second batch."""

    def client_batches(self, client: int, **options: Any) -> Any:
        for number, (x, y) in enumerate(super().client_batches(client, **options)):
            yield [x * (-1) ** number, y]


HOOKS: dict[str, dict[str, Any]] = {
    "rows": {"drop_last": True, "sampler": balanced},
    "samples": {
        "train_transform": lambda x: x * (1 + torch.rand(())),
        "sampler": lambda client, dataset, generator: np.random.randint(len(dataset), size=len(dataset)),
    },
}


@pytest.mark.parametrize(
    ("kind", "options"), [(Alternating, {}), *((TensorDataModule, options) for options in HOOKS.values())]
)
def test_clients_at_once_are_as_one_after_the_other(kind: type[TensorDataModule], options: Any) -> None:
    weights = []
    for executor in ("sequential", "vectorized"):
        torch.manual_seed(0)
        module = Module(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
        data = kind(clients_of((4,)), batch_size=4, **options)
        callback = FedAvg(3, local_epochs=2, seed=1, executor=executor)  # type: ignore[arg-type]
        trainer = quiet_trainer(max_epochs=3, callbacks=[callback])
        trainer.fit(module, datamodule=data)
        weights.append((trainer.global_step, nn.utils.parameters_to_vector(module.parameters()).detach()))
    assert weights[0][0] == weights[1][0]
    assert torch.allclose(weights[0][1], weights[1][1], rtol=0, atol=1e-12)


# ---- a process's share ----


def test_shares_of_processes_hold_every_sample_once() -> None:
    for samples, processes in [(7, 2), (8, 2), (9, 4), (4, 4)]:
        shares = [EvaluationShare(range(samples), processes, rank) for rank in range(processes)]  # type: ignore[arg-type]
        assert sorted([position for share in shares for position in share]) == list(range(samples))
        assert [len(share) for share in shares] == [len([*share]) for share in shares]


def test_processes_share_as_many_batches_as_a_limit_leaves() -> None:
    asked: list[int] = []

    def at_most(number: int) -> Callable[[int], float]:
        return lambda batches: asked.append(batches) or min(batches, number)  # type: ignore[func-returns-value]

    for limit, positions, batch_size in [
        (None, [1, 3, 5, 7, 9], 4),
        (at_most(2), [1, 3, 5, 7], 4),  # 2 batches of 4 samples
        (at_most(1), [1, 3], 4),
        (at_most(0), [1], 4),  # one sample each
        (at_most(9), [1, 3, 5, 7, 9], 4),
    ]:
        share, size = evaluation_share(range(10), 4, 2, 1, limit)  # type: ignore[arg-type]
        assert (list(share), len(share), size) == (positions, len(positions), batch_size)
    assert asked == [3] * 4
    # 7 samples are 4 and 3: in batches of 3 one process would have a batch more
    share, size = evaluation_share(range(7), 3, 2, 0, None)  # type: ignore[arg-type]
    assert (list(share), size) == ([0, 2, 4, 6], 2)


def test_processes_have_equally_many_batches() -> None:
    for samples, processes, batch_size, expected in [
        (8, 2, 4, 4),
        (9, 2, 4, 3),  # batches of 4 would be 2 for 5 samples and 1 for 4
        (9, 2, 3, 3),
        (25, 2, 6, 5),
        (25, 2, 4, 5),  # 12 is divisible by 4, by 3 and by 2
        (9, 2, 1, 1),  # samples that cannot be batched
    ]:
        assert shared_batch_size(samples, processes, batch_size) == expected
