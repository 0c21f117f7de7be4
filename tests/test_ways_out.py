"""Errors of constructors and small functions name the value and a way out that the user has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from datamodules import DigitsDataModule
from fl_lightning import (
    Clip,
    FedAvg,
    Federated,
    FederatedCheckpoint,
    FedProx,
    Participation,
    UniformSampler,
    VirtualClock,
)
from fl_lightning.data import ClientSplit, LabelFlipping, SampleSplit
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import DirichletPartitioner, IIDPartitioner
from fl_lightning.parts import Federation, SignFlipping, TrimmedMean
from fl_lightning.report import plot_run, read_curves

CLIENTS = IIDPartitioner(20, seed=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAvg(torch.tensor(5)), "their number; got tensor(5). Give `.item()`."),
        (lambda: FedProx(mu=torch.tensor(0.5)), "`mu` must be a finite number of at least 0, got tensor(0.5000). Give"),
        (lambda: DirichletPartitioner(torch.tensor(10), 0.3), "at least 1, got tensor(10). Give `.item()`."),
        (lambda: Clip(torch.tensor(1.0)), "`norm` must be a finite number greater than 0, got tensor(1.). Give `.item"),
        (lambda: DigitsDataModule(CLIENTS, batch_size=torch.tensor(8)), "got tensor(8). Give `.item()`."),
        (lambda: SampleSplit(test=torch.tensor(0.5)), "`test` must be a number in [0, 1), got tensor(0.5000). Give"),
        (lambda: MLPClassifier(torch.tensor(10)), "at least 1, got tensor(10). Give `.item()`."),
        (lambda: VirtualClock(torch.tensor(1.0)), "one for each client, got tensor(1.). Give `.item()`."),
        (lambda: TrimmedMean(torch.tensor(1)), "got tensor(1). Give `.item()`."),
        (lambda: SignFlipping(torch.tensor(0.5)), "got tensor(0.5000). Give `.item()`."),
    ],
)
def test_a_number_in_a_tensor_is_refused_with_the_way_to_unpack_it(make: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        make()


def test_a_clock_takes_the_speeds_of_a_tensor() -> None:
    clocks = VirtualClock(torch.tensor([1.0, 0.5, 0.1])), VirtualClock([1.0, 0.5, 0.1])
    assert clocks[0].speeds.tolist() == pytest.approx([1.0, 0.5, 0.1])
    vector = torch.zeros(1)
    for clock in clocks:
        clock.setup(Federation([1, 1, 1], vector, 0))
    # a tenth as it is written, not the nearest number of 32 bits
    assert clocks[0].ticks_per_unit == clocks[1].ticks_per_unit


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (1, "only 1 client can be held out. Instead give SampleSplit() or WithinClientSplit()"),
        (2, "only 2 clients can be held out. Instead give SampleSplit() or WithinClientSplit()"),
        (4, "only 4 clients can be held out. Give at most 4 folds, or more clients, or SampleSplit() or WithinClient"),
    ],
)
def test_too_few_clients_for_folds(number: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"`num_folds` is 5, but {message}")):
        ClientSplit().apply(100, IIDPartitioner(number))


@pytest.mark.parametrize("option", [{"standardize": "global"}, {"impute": "local"}, {"feature_noise": 0.5}])
def test_images_are_not_standardised_otherwise(option: dict[str, object]) -> None:
    [name] = option
    with pytest.raises(ValueError, match=f"takes no `{name}`: images stay bytes, and are normalised by `mean` and"):
        DigitsDataModule(CLIENTS, **option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAvg(5, sampler=UniformSampler), "Call it: UniformSampler(...)."),
        (
            lambda: FedAvg(5, aggregation="median"),
            "must be an Aggregation of fl_lightning.parts, such as Median(), got",
        ),
        (lambda: FedAvg(5, exchange="topk"), "such as Clip(1.0), or a list of them, got 'topk'"),
        (lambda: FedAvg(5, participation=0.5), "such as Participation(available=0.5), got 0.5"),
        (lambda: Federated(server="adam"), "such as Momentum(0.9), got 'adam'"),
        (lambda: FedAvg(5, participation=Participation), "Call it: Participation(...)."),
        (lambda: LabelFlipping(0.2, 10), "`clients` of LabelFlipping must be a list of positions, got 0.2. A share of"),
        (lambda: SignFlipping([0, 0]), "`clients` of SignFlipping must name each client once, got [0, 0]"),
        (lambda: MLPClassifier(10, num_classes=1), "`num_classes` must be a whole number of at least 2, got 1"),
        (lambda: FederatedCheckpoint(mode="max"), "`mode` has no effect without `monitor`, got 'max'"),
        (lambda: read_curves([]), "`log_dir` must be a folder, or a list of at least one, got []"),
        (lambda: plot_run(Path(), clients={"val_acc": 3}), "got 3. Give `ClientMetrics.values`"),
    ],
)
def test_the_way_out_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        make()


@pytest.mark.parametrize("client", [12, 99, -1, "a"])
def test_a_client_that_does_not_train(client: object) -> None:
    data = DigitsDataModule(CLIENTS)
    data.setup()
    message = re.escape(f"`client` must be from 0 to 11, the position of a training client, got {client!r}.")
    for method in (data.client_dataset, data.num_client_batches):
        with pytest.raises(ValueError, match=message):
            method(client)  # type: ignore[arg-type, operator]
