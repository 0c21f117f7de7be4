"""Settings of local training, and the library's models, end alike whether clients are stacked or not."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from helpers.algorithms import Net, data
from torch import nn
from torch.optim import SGD, Adagrad, Adam, RMSprop
from zoo.entry import tensors, words
from zoo.fitting import ends_alike

from fl_lightning import FedAvg, FedDyn, FedProx, Scaffold, TensorDataModule
from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.executors.stack.optimizer import StackedOptimizer
from fl_lightning.models import CharLSTM, ConvNetClassifier, LogisticRegressionClassifier, MLPClassifier
from fl_lightning.partitioners import DirichletPartitioner


def without_dropout() -> Net:
    net = Net()
    net.layers[3] = nn.Dropout(0.0)
    return net


SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "steps, clipped": (partial(FedProx, 0.1, clients_per_round=5, local_steps=7), {"gradient_clip_val": 0.05}),
    "accumulated": (partial(FedProx, 0.1, clients_per_round=5, local_epochs=2), {"accumulate_grad_batches": 2}),
    "limited": (partial(FedAvg, 5), {"limit_train_batches": 2}),
    "overfitted": (partial(FedAvg, 5), {"overfit_batches": 2}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    algorithm, trainer = SETTINGS[name]
    assert ends_alike(without_dropout, 1e-8, datamodule=data, algorithm=algorithm, trainer=trainer) is None


@pytest.mark.parametrize("number", [1, 2])
def test_the_number_of_clients_at_once_changes_nothing_but_rounding(number: int) -> None:
    federated = {"clients_at_once": number}
    assert ends_alike(Net, 1e-8, datamodule=data, algorithm=partial(FedAvg, 5), federated=federated) is None


WORDS = partial(TensorDataModule, words((8, 12, 6), torch.float32).clients, batch_size=4)
IMAGES = partial(TensorDataModule, tensors((3, 16, 16), (8, 12), torch.float32).clients, batch_size=4)


def digits() -> DigitsDataModule:
    """Images that a hook of the batches' transfer augments."""
    return DigitsDataModule(DirichletPartitioner(100, 0.3, seed=1), batch_size=8, augment=True)


MODELS: dict[str, tuple[Any, Any, Any, float]] = {
    "perceptron, Scaffold": (partial(MLPClassifier, 6, (5,), 3, weight_decay=0.1), data, partial(Scaffold, 5), 1e-7),
    "logistic, FedDyn": (
        partial(LogisticRegressionClassifier, 6, 3, l2=0.1),
        data,
        partial(FedDyn, 0.3, 5, penalty="weight_decay", scale_alpha="none"),
        1e-7,
    ),
    "characters": (partial(CharLSTM, 10, hidden_size=6, recurrence="plain"), WORDS, partial(FedAvg, 1.0), 1e-7),
    "digits, augmented": (partial(MLPClassifier, 3072, (4,)), digits, partial(FedAvg, 3), 1e-4),
    "convolutions": (partial(ConvNetClassifier, 3, image_size=16, channels=(2, 4)), IMAGES, partial(FedAvg, 1.0), 1e-4),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_library(name: str) -> None:
    module, datamodule, algorithm, tolerance = MODELS[name]
    dtype = torch.float64 if tolerance < 1e-6 else torch.float32
    assert ends_alike(module, tolerance, datamodule=datamodule, algorithm=algorithm, dtype=dtype) is None


def test_kernels_are_fused_unless_the_user_has_chosen() -> None:
    chosen: list[dict[str, Any]] = [{"fused": False}, {"foreach": False}, {"foreach": True}, {"differentiable": True}]
    parameters, rate = [nn.Parameter(torch.ones(2))], torch.tensor(0.1)
    makes = [Adam, Adagrad, partial(SGD, momentum=0.9), SGD, partial(SGD, weight_decay=0.1), RMSprop]
    makes += [partial(Adam, **options) for options in [*chosen, {"lr": rate}]]
    stacked = [StackedOptimizer(make(parameters), parameters) for make in makes]
    assert [own._own.param_groups[0].get("fused") is True for own in stacked] == [True] * 3 + [False] * 8
