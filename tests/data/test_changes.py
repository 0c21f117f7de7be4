"""Samples that clients have in some rounds only: beside plain loops, resumed, and what cannot work with them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.examples import example
from torch import Tensor
from torch.nn import functional as F

import fl_lightning as fl
from fl_lightning.data import ClassArrival, ClientRotation
from fl_lightning.models import LogisticRegressionClassifier
from fl_lightning.testing.check_part import PartChecks
from fl_lightning.testing.fits import BodyAndHead, fit, six_clients

LR = 0.3
Client = tuple[Tensor, Tensor]


def clients_with(classes: Sequence[Sequence[int]], seed: int = 0) -> list[Client]:
    generator = torch.Generator().manual_seed(seed)
    make = {"generator": generator, "dtype": torch.float64}
    return [(torch.randn(len(of), 4, **make), torch.tensor(of)) for of in classes]


CLIENTS = clients_with([[0, 1, 1, 2], [0, 0, 2], [2, 1, 1, 1, 1]])


def averaged(rounds: Sequence[Sequence[Client | None]]) -> Tensor:
    """Return FedAvg's weights after full-batch steps on each round's samples, weighted by their numbers."""
    w = torch.zeros(3, 4, dtype=torch.float64)
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
    module = LogisticRegressionClassifier(4, 3, LR, bias=False).double()
    fit(callback or fl.FedAvg(1.0), module, data, rounds)
    return module.weight.detach()


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({}, [[0], [0, 1], [0, 1, 2]]),
        ({"keep": False}, [[0], [1], [2]]),
        ({"classes": 2, "keep": False}, [[0, 1], [2], [2]]),
    ],
)
def test_classes_arrive_and_who_has_none_is_away(options: dict[str, Any], stages: list[list[int]]) -> None:
    data = fl.TensorDataModule(CLIENTS, batch_size=None, changes=ClassArrival(2, **options))
    rounds = [[only(client, stages[number // 2]) for client in CLIENTS] for number in range(6)]
    assert (trained(data, 6) - averaged(rounds)).abs().max() < 1e-14


def test_clients_distributions_rotate() -> None:
    data = fl.TensorDataModule(CLIENTS, batch_size=None, changes=ClientRotation(1, step=2))
    rounds = [[only(CLIENTS[place], [0, 1, 2])] for place in (0, 2, 1, 0, 2)]
    participation = fl.Participation(available=lambda number: [0])
    w = trained(data, 5, fl.FedAvg(1.0, participation=participation))
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
    assert classes[1] == {2, 5}  # the same from version to version


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
