"""Samples that clients have in some rounds only: beside plain loops, resumed, and what cannot work with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.examples import example
from torch import Tensor, nn
from torch.nn import functional as F

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.data import Changes, ClassArrival, ClientRotation, LabelFlipping
from fl_lightning.testing.check_part import PartChecks
from fl_lightning.testing.fits import BodyAndHead, fit, six_clients

LR = 0.3
Client = tuple[Tensor, Tensor]


class Linear(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, bias=False).double()
        nn.init.constant_(self.layer.weight, 0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LR)


def clients_with(classes: Sequence[Sequence[int]], seed: int = 0) -> list[Client]:
    generator = torch.Generator().manual_seed(seed)
    make = {"generator": generator, "dtype": torch.float64}
    return [(torch.randn(len(of), 4, **make), torch.tensor(of)) for of in classes]


CLIENTS = clients_with([[0, 1, 1, 2], [0, 0, 2], [2, 1, 1, 1, 1]])


def averaged(rounds: Sequence[Sequence[Client | None]]) -> Tensor:
    """Return FedAvg's weights after full-batch steps on each round's samples, weighted by their numbers."""
    w = torch.full((3, 4), 0.1, dtype=torch.float64)
    for clients in rounds:
        moved, total = torch.zeros_like(w), 0
        for x, y in filter(None, clients):
            own = w.clone().requires_grad_()
            loss = -F.log_softmax(x @ own.T, dim=1)[torch.arange(len(y)), y].mean()
            moved += len(y) * (w - LR * torch.autograd.grad(loss, own)[0])
            total += len(y)
        w = moved / total
    return w


def only(client: Client, classes: Sequence[int]) -> Client | None:
    x, y = client
    rows = torch.isin(y, torch.tensor(classes))
    return (x[rows], y[rows]) if rows.any() else None


def trained(data: fl.FederatedDataModule, rounds: int, callback: fl.AggregationCallback | None = None) -> Tensor:
    module = Linear()
    fit(callback or fl.FedAvg(1.0), module, data, rounds)
    return module.layer.weight.detach()


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({}, [[0], [0, 1], [0, 1, 2]]),
        ({"keep": False}, [[0], [1], [2]]),
        ({"classes": 2, "keep": False}, [[0, 1], [2], [2]]),
    ],
)
def test_classes_arrive_and_clients_without_any_cannot_be_reached(
    options: dict[str, Any], stages: list[list[int]]
) -> None:
    data = fl.TensorDataModule(CLIENTS, batch_size=None, changes=ClassArrival(2, **options))
    rounds = [[only(client, stages[number // 2]) for client in CLIENTS] for number in range(6)]
    assert (trained(data, 6) - averaged(rounds)).abs().max() < 1e-14


def test_clients_distributions_rotate() -> None:
    data = fl.TensorDataModule(CLIENTS, batch_size=None, changes=ClientRotation(1, step=2))
    rounds = [[only(CLIENTS[place], [0, 1, 2])] for place in (0, 2, 1, 0)]
    participation = fl.Participation(available=lambda number: [0])
    w = trained(data, 4, fl.FedAvg(1.0, participation=participation))
    assert (w - averaged(rounds)).abs().max() < 1e-14
    # after the fit, in central training, clients have their own samples again
    assert data.client_sizes.tolist() == [4, 3, 5]


def test_labels_rotate_as_the_page_shows() -> None:
    data = example("rotating_labels").rotating(CLIENTS, every=2, classes=3, batch_size=None)
    rounds = [[(x, (y + number // 2) % 3) for x, y in CLIENTS] for number in range(5)]
    assert (trained(data, 5) - averaged(rounds)).abs().max() < 1e-14


def test_the_order_of_classes_is_drawn_from_the_seed_and_samples_are_those_of_a_pure_function() -> None:
    labels = np.arange(60) % 6
    clients = [np.arange(0, 30), np.arange(30, 60)]
    stages = [ClassArrival(5, classes=2, seed=3).samples(stage, clients, labels) for stage in (2, 0, 1, 9)]
    classes = [set(labels[held[0]]) for held in stages]
    assert [len(present) for present in classes] == [6, 2, 4, 6]
    assert classes[1] < classes[2]
    assert classes[1] != {0, 1}


def changing() -> fl.TensorDataModule:
    """Six clients with three classes, of which one arrives with each round."""
    data = six_clients()
    data.changes = ClassArrival(1)
    return data


def test_a_fit_whose_data_change_keeps_the_contract(tmp_path: Path, subtests: pytest.Subtests) -> None:
    checks = checks_of(fl.FedPer("head", 4, seed=1, executor="sequential"), tmp_path)
    with subtests.test("broken off in mid-round and resumed, it ends with the same bits"):
        assert checks.resumes().was_made
    with subtests.test("broken off in mid-round, it goes on as if nothing had happened"):
        assert checks.rolls_back().was_made


def checks_of(callback: fl.AggregationCallback, folder: Path) -> PartChecks:
    return PartChecks(lambda: deepcopy(callback), BodyAndHead, changing, 3, folder)


@pytest.mark.long
def test_stacks_and_two_processes_have_the_samples_of_the_round(tmp_path: Path) -> None:
    checks = checks_of(fl.Ditto(0.5, 4, seed=1, executor="sequential"), tmp_path)
    assert checks.two_processes().was_made
    assert "together" in checks.stacks().meaning


def test_processes_that_make_batches_ahead_have_the_samples_of_the_round() -> None:
    makers = [changing() for _ in range(2)]
    makers[1].train_transform = makers[0].train_transform = torch.sin
    makers[1].num_workers = 1
    modules = [BodyAndHead(), BodyAndHead()]
    for data, module in zip(makers, modules, strict=True):
        fit(fl.FedAvg(2, seed=1), module, data, 2)
    assert torch.equal(modules[0].head.weight, modules[1].head.weight)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (fl.FedAsync, r"changes.*got ClassArrival\(.*with Asynchronous\("),
        (fl.DiLoCo, r"continue_epochs.*got ClassArrival\("),
        (lambda: fl.FedAvg(1.0, partial="stale"), "weighting"),
        (lambda: fl.FedDyn(0.1), "scale_alpha"),
        (lambda: fl.FedAvg(sampler=parts.Oort(2, fl.VirtualClock(work="samples"))), "work"),
        (
            lambda: fl.FedAvg(sampler=parts.PowerOfChoice(1, 2)),
            r"sampler.* PowerOfChoice\(.* in round 1: .*client 2 has",
        ),
        (lambda: fl.FedAvgFineTuned(1.0, every=1), "changes"),
        (
            lambda: fl.FedAvg(
                1.0,
                exchange=parts.DifferentialPrivacy(1.0, noise_multiplier=1.0, delta=1e-3),
                weighting="uniform",
                buffers="server",
            ),
            "changes",
        ),
    ],
)
def test_what_counts_on_samples_that_stay_raises_an_error(make: Callable[[], Any], name: str) -> None:
    # client 2 has no sample of the first class
    data = fl.TensorDataModule(CLIENTS, batch_size=2, changes=ClassArrival(2))
    with pytest.raises(ValueError, match=name):
        trained(data, 1, make())


@pytest.mark.parametrize("options", [{"standardize": "local"}, {"impute": "local"}, {}])
def test_what_is_done_to_a_client_s_samples_raises_an_error(options: dict[str, Any]) -> None:
    data = fl.TensorDataModule(CLIENTS, changes=ClientRotation(2), **options)
    if not options:
        data.poison_with(LabelFlipping([0], 3))
    name = "|".join(options) or "poison_with"
    with pytest.raises(ValueError, match=rf"`changes` .* with `{name}.*; got ClientRotation\(every=2\)"):
        data.setup()


class Wrong(Changes):
    """Returns what it is told."""

    def __init__(self, held: Any) -> None:
        self.every, self.held = 1, held

    def samples(self, stage: int, clients: Sequence[np.ndarray], labels: Any) -> Any:
        return self.held


@pytest.mark.parametrize(
    ("held", "shown"),
    [([[0], [0], []], "2 indices of 3"), ([[0], [1]], "2 indices of 2"), ([[0, 1], [99], []], "3 ind")],
)
def test_samples_must_be_distinct_training_samples_of_each_client(held: Any, shown: str) -> None:
    with pytest.raises(ValueError, match=rf"Wrong\.samples.* of the 3 clients.* stage 0 it returned {shown}"):
        trained(fl.TensorDataModule(CLIENTS, changes=Wrong(held)), 1)
