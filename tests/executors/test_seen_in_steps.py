"""What a training step does with metric objects, logged numbers and state that is hard to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FedAvg, TensorDataModule

SIZES = (8, 13, 6, 21, 10)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def fit(module: Module, executor: Any, sizes: tuple[int, ...] = SIZES, seed: int = 1, **trainer: Any) -> Any:
    fitter = quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0, seed=seed, executor=executor)], **trainer)
    fitter.fit(module, datamodule=TensorDataModule(clients_of((6,), sizes), batch_size=4))
    return fitter


def assert_same(make: Callable[[], Module], *arguments: Any, **options: Any) -> str | None:
    """Compare a fit's weights and logged values under both executors; return why clients are not stacked."""
    weights, values = [], []
    for executor in ("sequential", "vectorized"):
        module = make()
        fitter = fit(module, executor, *arguments, **options)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
        values.append({name: float(value) for name, value in fitter.callback_metrics.items()})
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-10)
    assert values[1] == pytest.approx(values[0], abs=1e-6)
    return fitter.fit_loop.executor.cause  # type: ignore[no-any-return]


# ---- metric objects ----


class Rates(Module):
    """Scales its loss by what a metric object returns, in one of several ways."""

    def __init__(self, use: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(linear())
        self.accuracy = MulticlassAccuracy(3, average="micro")
        self.use = use

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        accuracy = self.accuracy(scores, batch[1])
        self.log("accuracy", accuracy)
        return self.use(accuracy, F.cross_entropy(scores, batch[1]))


@pytest.mark.parametrize(
    "use",
    [
        lambda accuracy, loss: 0.1 * loss if accuracy == 1.0 else loss,
        lambda accuracy, loss: 0.1 * loss if accuracy in (0.0, 1.0) else loss,
        lambda accuracy, loss: loss * accuracy,
        lambda accuracy, loss: loss / (1 + float(accuracy)),
        lambda accuracy, loss: loss * (2 - accuracy.item()),
    ],
)
def test_a_returned_value_that_is_used_is_each_clients_own(use: Any) -> None:
    cause = assert_same(lambda: Rates(use))
    assert cause is not None
    assert "uses what a metric object returns" in cause


def test_a_returned_value_that_is_only_logged_does_not_stop_stacks() -> None:
    assert assert_same(lambda: Rates(lambda accuracy, loss: loss)) is None
