"""Steps that stacks might take otherwise than a client alone: they end alike, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FedAvg, Participation, TensorDataModule
from fl_lightning.executors import VectorizedExecutor
from fl_lightning.executors.compiler.capture import CapturedStep

#: Batches have eight samples, and last ones may have six: PyTorch captures a step for each size.
SIZES = (8, 14, 6, 22, 16)


class Reversed(MulticlassAccuracy):
    """Is given the classes' scores in the reverse order."""

    def forward(self, scores: Tensor, target: Tensor) -> Any:
        return super().forward(scores.flip(1), target)


class Steps(Module):
    """Takes a step that is given as a function of module and batch."""

    def __init__(self, step: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__(linear())
        self.step = step
        self.square = nn.Parameter(torch.arange(36.0).sin().reshape(6, 6).double())
        self.accuracy, self.reversed = MulticlassAccuracy(3), Reversed(3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(self, *batch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.rates = [torch.optim.lr_scheduler.StepLR(optimizer, 2)]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.rates[0], "interval": "step"}}


def fit(step: Any, precision: Any = "64-true", bound: float = 1e-9) -> str | None:
    """Train with stacks and without; check that both end alike, and return why clients were not stacked."""
    ends: list[Any] = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        module = Steps(step)
        dtype = torch.float64 if precision == "64-true" else torch.float32
        clients = [(x.to(dtype), y) for x, y in clients_of((6,), (1, *SIZES))]
        # The first client never trains, so that the others' slots are not their numbers.
        others = Participation(available=lambda t: range(1, 1 + len(SIZES)))
        callback = FedAvg(1.0, executor=executor, seed=1, participation=others)
        trainer = quiet_trainer(max_epochs=2, precision=precision, callbacks=[callback])
        trainer.fit(module.to(dtype), datamodule=TensorDataModule(clients, batch_size=8))
        ends.append((dict(module.named_parameters()), {k: float(v) for k, v in trainer.callback_metrics.items()}))
    torch.testing.assert_close(ends[1][0], ends[0][0], rtol=bound, atol=bound)
    assert ends[1][1] == pytest.approx(ends[0][1], rel=1e-5)
    return stacks.cause


def of_known_class(module: Any, x: Tensor, y: Tensor) -> Tensor:
    scores = module.layers(x)
    for name, part in module.named_children():
        if isinstance(part, Metric):
            module.log(name, part(scores, y), on_step=False, on_epoch=True)
    return F.cross_entropy(scores, y)


def of_own_forward(module: Any, x: Tensor, y: Tensor) -> Tensor:
    module.reversed(scores := module.layers(x), y)
    module.log("reversed", module.reversed, on_step=False, on_epoch=True)
    module.accuracy.update(scores, y)
    module.log("accuracy", module.accuracy, on_step=False, on_epoch=True)
    return F.cross_entropy(scores, y)


def of_matrices(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """A matrix turned twice, values that are filled up, columns, attention without dropout, and a sum of two types."""
    padded = F.pad(x @ module.square.t().permute(1, 0), (1, 0))
    turned = F.cross_entropy(module.layers(padded[:, 1:]), y)
    columns = module.layers(x)[:, [0, 2]].square().mean()
    heads = (x @ module.square).view(-1, 1, 3, 2)
    attended = F.cross_entropy(module.layers(F.scaled_dot_product_attention(heads, heads, heads).flatten(1)), y)
    return turned + columns + attended + F.cross_entropy((x @ module.square + torch.arange(6))[:, :3], y)


STACKED: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "matrices": of_matrices,
    "number of a schedule": lambda m, x, y: F.cross_entropy(m.layers(x), y) * (1 + m.rates[0].last_epoch),
    "metric objects of a class": of_known_class,
    "metric object of another forward, and one that is updated": of_own_forward,
}


@pytest.mark.parametrize("name", STACKED)
def test_stacked(name: str) -> None:
    assert fit(STACKED[name]) is None


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_classes_in_half_precision(precision: str) -> None:
    assert fit(lambda m, x, y: F.cross_entropy(m.layers(x), y), precision, 1e-2) is None


def in_single_precision(module: Any, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return F.cross_entropy(module.layers(x), y)


def test_gradients_of_what_autocast_leaves_out_have_single_precision() -> None:
    assert fit(in_single_precision, "bf16-mixed", 1e-6) is None


class ReadsAgain(Module):
    """Reads results after an operation that could write there, also in the backward pass, and multiplies by ones."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        first, _, last = self.layers
        hidden = first(x)
        self.log("hidden", hidden.mean(), on_step=False, on_epoch=True)
        loss = F.cross_entropy(last(F.gelu(hidden * 3) / 2), y)
        return loss + (hidden.relu() - torch.ones_like(hidden) * hidden.square()).square().mean()


def test_nothing_is_overwritten_that_is_read_again() -> None:
    ends: list[dict[str, Tensor]] = []
    logged: list[float] = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor, seed=1)])
        data = TensorDataModule(clients_of((6,), (8, 8, 8)), batch_size=4)
        trainer.fit(module := ReadsAgain(linear()), datamodule=data)
        ends.append({name: parameter.detach() for name, parameter in module.named_parameters()})
        logged.append(float(trainer.callback_metrics["hidden"]))
    assert stacks.cause is None
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-9, atol=1e-12)
    assert logged[1] == pytest.approx(logged[0], rel=1e-9)


REFUSED: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "reads `num_classes` of a metric object": lambda m, x, y: (
        F.cross_entropy(m.layers(x), y) * getattr(m.accuracy, "num_classes", 1)
    ),
    "reads the optimizer's state": lambda m, x, y: F.cross_entropy(m.layers(x), y) * (1 + len(m.optimizers().state)),
    "reads `trainer.fit_loop`": lambda m, x, y: (
        F.cross_entropy(m.layers(x), y) * (1 + m.trainer.fit_loop.total_batch_idx)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    assert name in str(fit(REFUSED[name]))


def test_a_fit_forgets_the_sizes_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch takes for a variable what it has seen change, and batches of a variable size cannot all be filled up
    inputs, capture = list[Any](), CapturedStep.__call__

    def capture_and_keep(captured: Any, *args: Any, short: bool = False, **options: Any) -> Any:
        found = capture(captured, *args, short=short, **options)
        inputs.extend(() if short else found[1])
        return found

    monkeypatch.setattr(CapturedStep, "__call__", capture_and_keep)
    for features, batch_size in ((4, 2), (6, 4)):
        trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=VectorizedExecutor())])
        data = TensorDataModule(clients_of((features,), (8, 13, 6, 21, 10)), batch_size=batch_size)
        trainer.fit(Module(nn.Linear(features, 3)), datamodule=data)
    assert len(inputs) >= 8
    assert not any(isinstance(own, int) for own in inputs)
