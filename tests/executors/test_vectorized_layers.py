"""One training step, many models: layer by layer, the weights of clients trained one after the other."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import pytest
import torch
from helpers.stacked import SIZES, Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg, FedDyn, FedProx, Scaffold, TensorDataModule
from fl_lightning.models import CharLSTM, ConvNetClassifier, LogisticRegressionClassifier, MLPClassifier


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x)).mean(1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(1)


class Cells(nn.Module):
    """Both cells in turn over the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(4, 5), nn.GRUCell(5, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = state = x.new_zeros(len(x), 5)
        for step in x.unbind(1):
            hidden, state = self.lstm(step, (hidden, state))
            state = self.gru(hidden, state)
        return hidden


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "Linear": (lambda: [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)], (6,)),
    "Tanh": (lambda: [nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)], (6,)),
    "Conv2d+BatchNorm2d": (
        lambda: [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)],
        (2, 6, 6),
    ),
    "depthwise": (lambda: [nn.Conv2d(4, 4, 3, groups=4), nn.ReLU6(), nn.Flatten(), nn.Linear(16, 3)], (4, 4, 4)),
    "GroupNorm": (lambda: [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)], (2, 6, 6)),
    "LayerNorm": (lambda: [nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)], (6,)),
    "BatchNorm1d": (lambda: [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)], (6,)),
    "Dropout(0)": (lambda: [nn.Linear(6, 5), nn.Dropout(0.0), nn.Linear(5, 3)], (6,)),
    "attention": (lambda: [Attention(), nn.Linear(4, 3)], (5, 4)),
    "transformer": (lambda: [Encoder(), nn.Linear(4, 3)], (5, 4)),
    "cells": (lambda: [Cells(), nn.Linear(5, 3)], (5, 4)),
    "frozen": (lambda: [nn.Linear(6, 5).requires_grad_(False), nn.BatchNorm1d(5).eval(), nn.Linear(5, 3)], (6,)),
}


def train(module: L.LightningModule, data: TensorDataModule, executor: str, **trainer: Any) -> Any:
    callback = FedAvg(len(SIZES), seed=1, executor=executor, local_epochs=trainer.pop("local_epochs", 1))
    fitter = quiet_trainer(**{"max_epochs": 3, "callbacks": [callback], **trainer})
    fitter.fit(module, datamodule=data)
    return fitter


def assert_equal_both_ways(make: Any, data: TensorDataModule, rtol: float = 1e-9, **trainer: Any) -> None:
    states = []
    for executor in ("sequential", "vectorized"):
        torch.manual_seed(0)
        module = make()
        fitter = train(module, data, executor, **trainer)
        states.append((module.state_dict(), float(fitter.callback_metrics["train_loss"])))
    assert fitter.fit_loop.executor.cause is None
    assert states[1][1] == pytest.approx(states[0][1], rel=1e-5)
    for name, value in states[0][0].items():
        torch.testing.assert_close(states[1][0][name], value, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("local_epochs", [1, 2])
def test_layers(name: str, local_epochs: int) -> None:
    layers, shape = LAYERS[name]
    data = TensorDataModule(clients_of(shape), batch_size=4)
    # a tail of one sample has no variance, which BatchNorm refuses
    if "BatchNorm1d" in name:
        data = TensorDataModule(clients_of(shape, (8, 14, 6, 22, 10)), batch_size=4)
    assert_equal_both_ways(lambda: Module(nn.Sequential(*layers())), data, local_epochs=local_epochs)


@pytest.mark.parametrize("classes", [3, 20])
def test_ignored_labels(classes: int) -> None:
    clients = [(x, torch.arange(len(x)) % classes) for x, _ in clients_of((6,))]
    for _, y in clients:
        y[1] = -100
    data = TensorDataModule(clients, batch_size=8)  # no batch has a single sample
    assert_equal_both_ways(lambda: Module(nn.Sequential(nn.Linear(6, classes))), data)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "groups": lambda p: torch.optim.SGD([{"params": [q], "lr": 0.1 / (1 + i)} for i, q in enumerate(p)], lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    def make() -> Module:
        return Module(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), OPTIMIZERS[name])

    assert_equal_both_ways(make, TensorDataModule(clients_of((6,)), batch_size=4))


def test_schedule_by_steps() -> None:
    def optimizers(parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    assert_equal_both_ways(
        lambda: Module(nn.Sequential(nn.Linear(6, 3)), optimizers), TensorDataModule(clients_of((6,)), batch_size=4)
    )


def test_embedding_and_recurrence_in_elementary_operations() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randint(0, 7, (n, 5), generator=generator), torch.randint(0, 7, (n,), generator=generator))
        for n in SIZES
    ]

    def make() -> CharLSTM:
        return CharLSTM(7, hidden_size=6, recurrence="plain").double()

    assert_equal_both_ways(make, TensorDataModule(clients, batch_size=4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: MLPClassifier(6, (5,), 3).double(),
        lambda: MLPClassifier(6, (5, 4), 3, weight_decay=0.1).double(),
        lambda: LogisticRegressionClassifier(6, 3).double(),
        lambda: LogisticRegressionClassifier(6, 3, l2=0.1).double(),
        lambda: LogisticRegressionClassifier(6, 3, optimizer="adam", lr=0.01).double(),
    ],
    ids=["mlp", "weight_decay", "logistic", "l2", "adam"],
)
def test_classifiers_of_the_library(make: Any) -> None:
    assert_equal_both_ways(make, TensorDataModule(clients_of((6,)), batch_size=4), rtol=1e-7)


def test_convolutional_classifier_in_single_precision() -> None:
    clients = [(x.float(), y) for x, y in clients_of((3, 16, 16))]

    def make() -> ConvNetClassifier:
        return ConvNetClassifier(3, image_size=16, channels=(4, 8), lr=0.05)

    assert_equal_both_ways(make, TensorDataModule(clients, batch_size=4), rtol=1e-4)


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.relu(self.first(x)))

    assert_equal_both_ways(lambda: Module(Tied()), TensorDataModule(clients_of((6,)), batch_size=4))


def test_masks_of_dropout_differ_among_clients_and_keep_the_mean() -> None:
    class Probe(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4000, dtype=torch.float64))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return (F.dropout(torch.ones_like(self.w), 0.25) * self.w).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1.0)

    module = Probe()
    vectors = []

    class Keep(L.Callback):
        def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
            vectors.append(result.vector)

    fitter = train(
        module,
        TensorDataModule(clients_of((6,), (1, 1, 1, 1, 1)), batch_size=1),
        "vectorized",
        max_epochs=1,
        callbacks=[FedAvg(5, seed=1, executor="vectorized"), Keep()],
    )
    assert fitter.fit_loop.executor.cause is None
    masks = torch.stack(vectors)
    assert len({tuple(mask.tolist()) for mask in masks}) == 5
    deviation = math.sqrt(0.25 / 0.75 / masks.numel())
    assert abs(float(masks.mean()) + 1) < 4 * deviation


FUSED = {
    "prox": lambda **k: FedProx(0.3, clients_per_round=5, **k),
    "dyn": lambda **k: FedDyn(0.3, 5, **k),
    "dyn-decay": lambda **k: FedDyn(0.3, 5, penalty="weight_decay", scale_alpha="none", **k),
    "scaffold": lambda **k: Scaffold(5, **k),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_steps_with_local_objectives(name: str) -> None:
    states = []
    for executor in ("sequential", "vectorized"):
        torch.manual_seed(0)
        module = MLPClassifier(6, (5,), 3, weight_decay=0.1).double()
        fitter = quiet_trainer(max_epochs=4, callbacks=[FUSED[name](seed=1, executor=executor)])
        fitter.fit(module, datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
        states.append(module.state_dict())
    assert fitter.fit_loop.executor.cause is None
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-7, atol=1e-8)


class FreezesStatistics(Module):
    """Sets BatchNorm to eval mode when a round begins, as for fine-tuning."""

    first_round = 0

    def on_train_epoch_start(self) -> None:
        if self.current_epoch >= self.first_round:
            self.layers[1].eval()


@pytest.mark.parametrize("first_round", [0, 1])
def test_layers_that_a_hook_sets_to_eval_mode(first_round: int) -> None:
    def make() -> Module:
        torch.manual_seed(0)
        module = FreezesStatistics(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)))
        module.first_round = first_round
        return module

    assert_equal_both_ways(make, TensorDataModule(clients_of((6,)), batch_size=4, drop_last=True))


def test_a_gradient_of_rounding_alone_is_named() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    module = Module(layers, lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    fitter = train(module, TensorDataModule(clients_of((6,)), batch_size=4, drop_last=True), "vectorized")
    assert fitter.fit_loop.executor.cause == (
        "a gradient of 'layers.0.bias' is zero but for rounding, as that of a bias before normalisation, and Adam "
        "makes whole steps of it. Leave it out, as by `bias=False`, or take SGD"
    )


def test_adagrad_beside_a_hook_that_sets_learning_rates() -> None:
    class Rates(L.Callback):
        def on_client_start(self, trainer: L.Trainer, pl_module: L.LightningModule, client: Any) -> None:
            trainer.optimizers[0].param_groups[0]["lr"] = 0.01 * (client.task.client + 1)

    def make() -> Module:
        torch.manual_seed(0)
        return Module(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), torch.optim.Adagrad)

    data = TensorDataModule(clients_of((6,)), batch_size=4, drop_last=True)
    trained = {}
    for executor in ("sequential", "vectorized"):
        trained[executor] = make()
        callback = FedAvg(len(SIZES), seed=1, executor=executor)
        fitter = quiet_trainer(max_epochs=3, callbacks=[callback, Rates()])
        fitter.fit(trained[executor], datamodule=data)
    assert fitter.fit_loop.executor.cause is None
    for name, value in trained["sequential"].state_dict().items():
        torch.testing.assert_close(trained["vectorized"].state_dict()[name], value, rtol=1e-9, atol=1e-12)
