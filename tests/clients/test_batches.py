"""Batches reach ``training_step`` as the data set or ``collate_fn`` made them; one of a single sample is told."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import Quadratic, quadratic_clients
from torch import Tensor, nn

from fl_lightning import ClientDatasetsModule, FedAvg, Federated, TensorDataModule
from fl_lightning.diagnostics import LocalCompute
from fl_lightning.parts import MeasuredLoss
from fl_lightning.testing.fits import fit

# ---- containers ----

Pair = namedtuple("Pair", "x name")


@dataclass
class Record:
    x: Tensor
    name: list[str]


def stack(samples: list[tuple[float, str]]) -> tuple[Tensor, list[str]]:
    xs, names = zip(*samples, strict=True)
    return torch.tensor(xs, dtype=torch.float64), list(names)


#: How samples become a batch of which type, and how a step reads inputs and names from it.
KINDS: dict[str, tuple[Any, type, Callable[[Any], Any]]] = {
    "dataclass": (lambda samples: Record(*stack(samples)), Record, lambda batch: (batch.x, batch.name)),
    "namedtuple": (lambda samples: Pair(*stack(samples)), Pair, lambda batch: batch),
    "nested": (lambda samples: {"inputs": [stack(samples)], "note": None}, dict, lambda batch: batch["inputs"][0]),
    "sparse": (lambda own: (stack(own)[0].to_sparse(), stack(own)[1]), tuple, lambda own: (own[0].to_dense(), own[1])),
    "default": (None, list, lambda batch: batch),
}


class Reading(Quadratic):
    """Moves half way to the mean of the batch, and remembers kinds and names."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__(0.5)
        self.read, self.kinds = read, set[type]()
        self.names: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.kinds.add(type(batch))
        x, names = self.read(batch)
        self.names += names
        loss = (0.5 * (self.w - x) ** 2).mean()
        self.log("loss", loss, batch_size=len(x))
        return loss


@pytest.mark.parametrize("kind", KINDS)
def test_clients_train_on_batches_of_any_container(kind: str) -> None:
    # one batch a client: client 0 goes half way to 3, client 1 to 8, of 2 samples and 1
    clients: list[Any] = [[(2.0, "a"), (4.0, "b")], [(8.0, "c")]]
    collate, expected, read = KINDS[kind]
    data = ClientDatasetsModule(clients, batch_size=2, collate_fn=collate, shuffle=False)
    callback = Federated(1.0, objective=MeasuredLoss(), executor="sequential")
    fit(callback, module := Reading(read), data, 1)
    assert float(module.w.detach()) == pytest.approx((2 * 1.5 + 4.0) / 3, abs=1e-12)
    assert (sorted(module.names), module.kinds) == ([*"aabbcc"], {expected})  # a loss is measured before each step


# ---- layouts: tensors that do not lie in memory row by row keep their strides in a stack ----

ROWS, COLUMNS = 4, 6
#: How a batch is laid out, and the strides that it has then.
LAYOUTS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "rows": (lambda x: x, (6, 1)),
    "columns": (lambda x: x.t().contiguous().t(), (1, 4)),
    "gaps": (lambda x: x.repeat_interleave(2, 1)[:, ::2], (12, 2)),
    "repeats": (lambda x: x[:, :1].expand(-1, COLUMNS), (6, 0)),
    "images": (lambda x: x.view(ROWS, 2, 1, 3).to(memory_format=torch.channels_last), (6, 1, 6, 2)),
}


def weighted(strides: tuple[int, ...]) -> int:
    return sum(place * stride for place, stride in enumerate(strides, 1))


class Strided(Quadratic):
    """Adds up inputs, weighted by the strides of the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.w * batch["x"].sum() * weighted(batch["x"].stride())


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_strides_are_those_of_the_client_alone(layout: str, executor: Any) -> None:
    # the first clients' rows lie in order
    def collate(drawn: list[tuple[int, Tensor]]) -> dict[str, Tensor]:
        x = torch.stack([row for _, row in drawn])
        return {"x": LAYOUTS[layout][0](x) if drawn[0][0] >= 4 else x}

    clients = [[(k, torch.full((COLUMNS,), 1.0 + k, dtype=torch.float64))] * 2 * ROWS for k in range(8)]
    data = ClientDatasetsModule(clients, collate_fn=collate, batch_size=ROWS, split=None)
    fit(FedAvg(1.0, executor=executor, weighting="uniform"), module := Strided(1e-3), data, 1)
    # two batches of each client; a batch of client k holds 24 values of 1 + k
    steps = [2 * 24 * (1 + k) * weighted(LAYOUTS["rows" if k < 4 else layout][1]) for k in range(8)]
    assert module.w.item() == pytest.approx(-1e-3 * sum(steps) / 8, rel=1e-12)


# ---- how many: clients of 10 and of 5 samples in batches of 4 have 4 + 4 + 2 and 4 + 1 in an epoch ----

#: Options; then the samples and steps of all, and the steps that the fit is told to have: of a mean client, rounded up.
WORK: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "an epoch": ({}, (15, 5, 3)),
    "without the last": ({"drop_last": True}, (12, 3, 2)),
    "at most two": ({"limit_train_batches": 2}, (13, 4, 2)),
    "at most five": ({"limit_train_batches": 5}, (15, 5, 3)),
    "half": ({"limit_train_batches": 0.5}, (8, 2, 1)),
    "a tenth": ({"limit_train_batches": 0.1}, (8, 2, 1)),
    "three epochs": ({"local_epochs": 3}, (45, 15, 8)),
    "three epochs of at most two": ({"local_epochs": 3, "limit_train_batches": 2}, (39, 12, 6)),
    "five steps": ({"local_steps": 5}, (18 + 14, 10, 5)),
    "five steps of whole batches": ({"local_steps": 5, "drop_last": True}, (20 + 20, 10, 5)),
    "two steps of two": ({"local_steps": 2, "accumulate_grad_batches": 2}, (14 + 10, 4, 2)),
    # an epoch's rest is a step: 2 + 1 + 2 + 1 batches, and 2 + 2; in the mean 5 batches, two a step
    "two epochs, two a step": ({"local_epochs": 2, "accumulate_grad_batches": 2}, (30, 6, 3)),
    "all at once": ({"batch_size": None}, (15, 2, 1)),
    # the second round begins with the last 2 samples of the one, and a new epoch of the other
    "going on": ({"local_steps": 2, "continue_epochs": True, "rounds": 2}, (8 + 6 + 5 + 5, 8, 4)),
}


class Asking(Quadratic):
    """Asks when the fit begins how many steps it has, and counts the samples that it gets."""

    samples = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.samples += len(batch[0])
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        self.expected = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


@pytest.mark.parametrize("name", WORK)
def test_samples_steps_and_batches_are_counted(name: str) -> None:
    options, (samples, steps, expected) = WORK[name]
    given = dict(options)
    of_data = {key: given.pop(key, usual) for key, usual in (("batch_size", 4), ("drop_last", False))}
    of_work = {key: given.pop(key) for key in ("local_epochs", "local_steps", "continue_epochs") if key in given}
    data = TensorDataModule(quadratic_clients([1.0, 1.0], [1.0, 1.0], [10, 5]), **of_data)
    callback, compute = FedAvg(1.0, **of_work, executor="sequential"), LocalCompute()
    fit(callback, module := Asking(0.1), data, given.pop("rounds", 1), compute, **given)
    assert (compute.values["fed/local_samples"], compute.values["fed/local_steps"]) == (samples, steps)
    assert (module.expected, module.samples) == (expected, samples)


# ---- single samples: clients that have them are named before a BatchNorm meets one ----


@pytest.mark.parametrize(
    ("sizes", "batch_size", "drop_last", "told", "first"),
    [
        ((4, 5, 8), 4, False, 1, 1),  # 5 = 4 + 1
        ((4, 5, 8), 4, True, 0, None),
        ((4, 6, 8), 4, False, 0, None),
        ((4, 1), 4, True, 1, 1),
        ((4, 1), None, False, 1, 1),
        ((4, 2), 1, False, 2, 0),
    ],
)
def test_a_batch_of_one_sample_is_told_at_the_start(
    sizes: tuple[int, ...], batch_size: int | None, drop_last: bool, told: int, first: int | None
) -> None:
    data = TensorDataModule(clients_of((6,), sizes), batch_size=batch_size, drop_last=drop_last)
    module = Module(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            fit(FedAvg(1, seed=1), module, data, 1)
        except ValueError as error:  # torch's, if the client was drawn
            assert "more than 1 value" in str(error)
    lines = [str(each.message) for each in found if "`batch_size`" in str(each.message)]
    assert len(lines) == bool(told)
    assert all(f"({told} of {len(sizes)}, such as client {first})" in line for line in lines)
