"""Settings of local training, and the library's models, end alike whether clients are stacked or not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.algorithms import Net, data
from helpers.toys import quiet_trainer
from torch import nn

from fl_lightning import AggregationCallback, FedAvg, FedDyn, FedProx, Scaffold, TensorDataModule
from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.executors import VectorizedExecutor
from fl_lightning.models import CharLSTM, ConvNetClassifier, LogisticRegressionClassifier, MLPClassifier
from fl_lightning.partitioners import DirichletPartitioner


def compare(
    make: Callable[..., AggregationCallback],
    module: Callable[[], Any] = Net,
    data_module: Callable[[], Any] = data,
    rtol: float = 1e-9,
    rounds: int = 3,
    **trainer: Any,
) -> None:
    """Check that stacks are used, and that weights, traffic, logged values and counters are those without them."""
    ends: list[dict[str, Any]] = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        torch.manual_seed(0)
        own, callback = module(), make(seed=1, executor=executor)
        fitter = quiet_trainer(max_epochs=rounds, callbacks=[callback], **trainer)
        fitter.fit(own, datamodule=data_module())
        values = {name: float(value) for name, value in fitter.callback_metrics.items()}
        traffic = vars(callback.algorithm.traffic)
        ends.append({"state": own.state_dict(), "values": values, "traffic": traffic, "steps": fitter.global_step})
    assert stacks.cause is None
    torch.testing.assert_close(ends[1]["state"], ends[0]["state"], rtol=rtol, atol=rtol)
    assert ends[1]["values"] == pytest.approx(ends[0]["values"], rel=1e-5, abs=1e-6)
    assert ends[1]["traffic"] == ends[0]["traffic"]
    assert ends[1]["steps"] == ends[0]["steps"]


def without_dropout() -> Net:
    net = Net()
    net.layers[3] = nn.Dropout(0.0)
    return net


SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "steps": (partial(FedAvg, 5, local_steps=7), {}),
    "accumulated": (partial(FedProx, 0.1, clients_per_round=5, local_epochs=2), {"accumulate_grad_batches": 2}),
    "clipped": (partial(FedProx, 0.1, clients_per_round=5), {"gradient_clip_val": 0.05}),
    "limited": (partial(FedAvg, 5), {"limit_train_batches": 2}),
    "overfitted": (partial(FedAvg, 5), {"overfit_batches": 2}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    make, trainer = SETTINGS[name]
    compare(make, without_dropout, **trainer)


def test_settings_of_stacks() -> None:
    """The number of clients at once changes nothing but rounding."""
    states = []
    for executor in ("sequential", VectorizedExecutor(1), VectorizedExecutor(2)):
        net = Net()
        quiet_trainer(max_epochs=2, callbacks=[FedAvg(5, seed=1, executor=executor)]).fit(net, datamodule=data())
        states.append(net.state_dict())
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=1e-9, atol=1e-10)


def words() -> TensorDataModule:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randint(0, 7, (n, 5), generator=generator), torch.randint(0, 7, (n,), generator=generator))
        for n in (8, 12, 6)
    ]
    return TensorDataModule(clients, batch_size=4)


def images() -> TensorDataModule:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 3, 16, 16, generator=generator), torch.randint(0, 3, (n,), generator=generator))
        for n in (8, 12)
    ]
    return TensorDataModule(clients, batch_size=4)


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
    "characters": (partial(CharLSTM, 7, hidden_size=6, recurrence="plain"), words, partial(FedAvg, 1.0), 1e-7),
    "digits, augmented": (partial(MLPClassifier, 3072, (4,)), digits, partial(FedAvg, 3), 1e-4),
    "convolutions": (partial(ConvNetClassifier, 3, image_size=16, channels=(2, 4)), images, partial(FedAvg, 1.0), 1e-4),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_library(name: str) -> None:
    module, data_module, make, rtol = MODELS[name]
    compare(make, lambda: module().double() if rtol < 1e-6 else module(), data_module, rtol, rounds=2)
