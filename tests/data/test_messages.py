"""Errors about data, models and what is watched: each is provoked once, and the file beside this one has what they say.

A new message with a value in it has a line here. Those of data sets and partitions are in their own folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import torch
from helpers.toys import Quadratic, fit_clients, quadratic_clients
from helpers.written import all_told, assert_as_in
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fl_lightning as fl
from fl_lightning import ClientDatasetsModule, TensorDataModule, data, models, parts
from fl_lightning import diagnostics as watchers
from fl_lightning.data.targets import inputs_of
from fl_lightning.datamodules import TorchDatasetDataModule
from fl_lightning.partitioners import DirichletPartitioner, IIDPartitioner
from fl_lightning.testing.fits import fit

X = torch.zeros(4, 3)
Y = torch.arange(4) % 2
RAGGED = [[1], [1, 2]]
NAN = float("nan")
TWO_CLIENTS = [np.array([0, 1]), np.array([2, 3])]
IMAGES = torch.zeros(6, 1, 4, 4)
PRIVACY = parts.DifferentialPrivacy(1.0, noise_multiplier=1.0, delta=1e-3)
TWO = IIDPartitioner(2)
MODEL = models.LogisticRegressionClassifier(3, 2)
THREE_PROCESSES = Mock(world_size=3, callbacks=[Mock(spec=fl.FedAvg, algorithm=Mock(schedule=parts.Synchronous()))])
ALL = data.WithinClientSplit(val=0.0, test=0.0)


def run(*observers: Any, algorithm: Any = None) -> Any:
    return fit_clients(algorithm or fl.FedAvg(1.0), Quadratic(0.1), quadratic_clients([1.0], [1.0]), 1, *observers)


def set_up(*clients: tuple[Tensor, ...], poison: Any = None, **options: Any) -> TensorDataModule:
    module = TensorDataModule(clients, **options)
    if poison is not None:
        module.poison_with(poison)
    module.setup()
    return module


def set_up_two(x: Tensor = X, **options: Any) -> None:
    """Share four samples out between two clients."""
    TorchDatasetDataModule(TensorDataset(x, Y), TWO, split=ALL, **options).setup()


def drawn(sampler: Callable[..., Any]) -> Tensor:
    """Return the order of the second client, which has eight samples."""
    return set_up((X, Y), (X.repeat(2, 1), Y.repeat(2)), sampler=sampler).client_order(1, torch.Generator())


def changing(callback: Any, changes: data.Changes | None = None) -> None:
    """Fit clients of which the third has no sample of the class that arrives first."""
    clients = [(torch.zeros(len(of), 2), torch.tensor(of)) for of in ([0, 1, 1, 2], [0, 0, 2], [2, 1, 1, 1, 1])]
    module = TensorDataModule(clients, batch_size=2, changes=changes or data.ClassArrival(2))
    fit(callback, models.LogisticRegressionClassifier(2, 3), module, 1)


def giving(*held: Sequence[int]) -> data.Changes:
    """Return changes by which clients have these samples."""
    return type("Wrong", (data.Changes,), {"samples": lambda *given: held})(every=1)


#: What is refused, perhaps with a folder.
CALLS: list[Callable[[Path], Any]] = [
    # Splits.
    lambda _: data.ClientSplit(4, 2, val_fold=5),
    lambda _: data.ClientSplit(7).apply(9, IIDPartitioner(3)),
    lambda _: data.WithinClientSplit(0.5, 0.75),
    lambda _: data.SampleSplit().apply(np.zeros((2, 3)), TWO),
    lambda _: data.SampleSplit().apply(RAGGED, TWO),
    lambda _: data.SampleSplit().apply(9, 7),
    lambda _: data.SampleSplit(test="official").apply(9, IIDPartitioner(4)),
    lambda _: data.SampleSplit(test="official").apply(9, IIDPartitioner(4), np.array([0, 10])),
    lambda _: data.SampleSplit(test="official").apply(9, IIDPartitioner(4), np.array([0, -1])),
    lambda _: data.SampleSplit(stratify=True).apply(9, IIDPartitioner(4)),
    # A tenth of 2 samples is 0.2, which is rounded down to none, and so is 0.01 times 20.
    lambda _: data.WithinClientSplit(val=0.1, test=0.1).apply(20, IIDPartitioner(10)),
    lambda _: data.WithinClientSplit(val=0.5, test=0.1).apply(20, IIDPartitioner(10)),
    lambda _: data.SampleSplit(val=0.01, test=0.5).apply(20, IIDPartitioner(10)),
    # Sources.
    lambda _: data.Source(X, labels=RAGGED),
    lambda _: data.Source(X, labels=[0, 1]),
    lambda _: data.Source(X, clients=RAGGED),
    lambda _: data.Source(X, clients=[1.0, NAN, 2.0, 3.0]),
    lambda _: data.Source(X, clients=["a"]),
    lambda _: data.Source([]),
    lambda _: data.Source(()),
    lambda _: data.Source((X, X[:2])),
    lambda _: data.Source((X, Y), Y + 1, class_names=["cat", "dog"]),
    lambda _: data.Source((X, Y), Y - 1, class_names=["cat", "dog"]),
    lambda _: fl.FederatedDataModule().load(),
    lambda _: data.Source(torch.tensor(1.0)),
    lambda _: data.Source(pd.DataFrame({"x": [1.0]})),
    lambda _: TensorDataModule([(X, Y), 3]),
    lambda _: TensorDataModule([(X, Y), ()]),
    lambda _: ClientDatasetsModule([["a"], ["b"]], test=[None, 3]),
    lambda _: TensorDataModule([(X, Y)]).odd,
    lambda _: TensorDataModule([(X, Y)], val=(X, Y), split=data.WithinClientSplit(0.3)),
    lambda _: TensorDataModule([(X, Y)]).preprocessing(),
    lambda here: torch.save({}, here / "other.ckpt") or fl.load_preprocessing(here / "other.ckpt"),
    lambda _: set_up((X, Y), (X, Y), standardize="local").preprocessing(),
    lambda _: set_up((X, Y), (X, Y), standardize="local").preprocessing(2),
    # Targets.
    lambda _: set_up((X, Y)).outputs_and_targets(X, None),
    lambda _: set_up((X, Y)).outputs_and_targets([X], None),
    lambda _: set_up((X, Y)).outputs_and_targets({"x": X}, None),
    lambda _: inputs_of([X]),
    lambda _: set_up((X, Y)).outputs_and_targets((X, X, X), X),
    lambda _: set_up((X, Y), target=2).outputs_and_targets((X, Y), None),
    lambda _: TorchDatasetDataModule(TensorDataset(X, Y, Y), DirichletPartitioner(2, 1.0), split=ALL).setup(),
    # Inputs.
    lambda _: set_up((X, Y), (X[:, :1], Y), standardize="global"),
    lambda _: set_up((X, Y), (X.double(), Y), standardize="global"),
    lambda _: set_up((X, Y), (X,), standardize="global"),
    lambda _: ClientDatasetsModule([["a", "b"]], standardize="local").setup(),
    lambda _: set_up((X.long(), Y), standardize="global"),
    lambda _: set_up((X.long(), Y), impute="local"),
    lambda _: set_up((IMAGES, torch.zeros(6)), impute="global"),
    lambda _: set_up_two(X.long(), feature_noise=0.5),
    lambda _: set_up((X, Y), (torch.tensor([[0.0, 0.0, NAN]]), Y[:1]), standardize="global"),
    lambda _: set_up((X, Y), (torch.tensor([[0.0, -torch.inf, 0.0]]), Y[:1]), standardize="local"),
    lambda _: set_up((X, Y), test=(torch.tensor([[NAN, 0.0, 0.0]]), Y[:1]), standardize="global"),
    lambda _: set_up((X, Y), val=[(torch.tensor([[torch.inf, 0.0, 0.0]]), Y[:1])], standardize="global"),
    # Poisons.
    lambda _: set_up((X, Y)).poison_with(data.LabelFlipping([0], 3)),
    lambda _: set_up((X, Y, Y), poison=data.LabelFlipping([0], 3)),
    lambda _: set_up((X, Y / 1), (X[:3], Y[:3] / 2), poison=data.LabelFlipping([1], 3)),
    lambda _: set_up((X, X.long()), poison=data.Backdoor([0], size=2)),
    lambda _: set_up((X, torch.tensor([1, 2, 5, 2])), (X, Y), poison=data.LabelFlipping([0], 3)),
    lambda _: data.Backdoor([0, 7]).apply(X, X[:, 0], TWO_CLIENTS),
    lambda _: data.Backdoor([0], size=4).stamped(torch.zeros(2, 1, 3, 5)),
    lambda _: data.Backdoor([0], size=4).stamped(torch.zeros(5, 5)),
    # Orders of samples.
    lambda _: TensorDataModule([(X, Y)], sampler=lambda *_: [], shuffle=False),
    lambda _: drawn(lambda client, dataset, generator: range(7)),
    lambda _: drawn(lambda client, dataset, generator: iter(lambda: 0, 1)),
    lambda _: drawn(lambda client, dataset, generator: [8] + [0] * 7),
    lambda _: drawn(lambda client, dataset, generator: [-1] + [0] * 7),
    lambda _: drawn(lambda client, dataset, generator: [0.5] * 8),
    # Changing samples, and what counts on samples that stay.
    lambda _: data.ClassArrival(2).samples(0, TWO_CLIENTS, None),
    lambda _: set_up((X, Y), changes=data.ClientRotation(2), standardize="local"),
    lambda _: set_up((X, Y), changes=data.ClientRotation(2), impute="local"),
    lambda _: set_up_two(changes=data.ClientRotation(2), feature_noise=0.5),
    lambda _: set_up((X, Y), changes=data.ClientRotation(2), poison=data.LabelFlipping([0], 3)),
    lambda _: changing(fl.FedAvg(1.0), giving([0], [0], [])),
    lambda _: changing(fl.FedAvg(1.0), giving([0], [1])),
    lambda _: changing(fl.FedAvg(1.0), giving([0, 1], [99], [])),
    lambda _: changing(fl.FedAsync()),
    lambda _: changing(fl.DiLoCo()),
    lambda _: changing(fl.FedAvg(1.0, partial="stale")),
    lambda _: changing(fl.FedDyn(0.1)),
    lambda _: changing(fl.FedAvg(sampler=parts.Oort(2, fl.VirtualClock(work="samples")))),
    lambda _: changing(fl.FedAvg(sampler=parts.PowerOfChoice(1, 2))),
    lambda _: changing(fl.FedAvgFineTuned(1.0, every=1)),
    lambda _: changing(fl.FedAvg(1.0, exchange=PRIVACY, weighting="uniform", buffers="server")),
    # Models.
    lambda _: models.LogisticRegressionClassifier(2, 2, momentum=0.25, optimizer="adam"),
    lambda _: models.add_lora(nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)), "tail"),
    lambda _: models.add_lora(nn.Sequential(nn.Linear(2, 2), nn.MultiheadAttention(2, 1)), rank=1),
    lambda _: models.ResNet18Classifier(groups=3),
    lambda _: models.ConvNetClassifier(image_size=15),
    # What is watched.
    lambda _: watchers.Contribution().plot(),
    lambda _: watchers.Contribution("a.txt"),
    lambda _: run(watchers.Contribution()),
    lambda _: run(watchers.Contribution(), algorithm=fl.FedAsync(1)),
    lambda _: run(watchers.Contribution(), algorithm=fl.RADFed(2)),
    lambda _: run(watchers.BackdoorSuccess(data.Backdoor([0])), watchers.BackdoorSuccess(data.Backdoor([1]))),
    lambda _: run(watchers.UpdateNorms(), type("Norms", (watchers.UpdateNorms,), {})()),
    lambda _: fit(fl.FedAvg(1.0), MODEL, set_up((X, Y), val=(X, Y)), 1, watchers.Communication(0.5, "acc")),
    lambda _: run(watchers.Communication()),
    lambda _: run(watchers.Communication(0.5, "val_loss")),
    lambda _: run(watchers.Communication(0.25, "val_acc", "min")),
    lambda _: watchers.Contribution().on_train_start(THREE_PROCESSES, None),
    lambda _: watchers.Timeline().plot(),
    lambda _: watchers.Timeline("a.txt"),
    lambda _: run(watchers.Timeline()),
    lambda _: run(watchers.VirtualTime(fl.VirtualClock()), algorithm=fl.FedAsync(1)),
]


def test_errors(tmp_path: Path) -> None:
    assert_as_in(Path(__file__).with_suffix(".txt"), all_told(CALLS, tmp_path), tmp_path)
