"""Steps that stacks might take otherwise than a client alone: they end alike, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy
from zoo.entry import tensors
from zoo.fitting import ends_alike
from zoo.modules.base import Classifier, Losing

from fl_lightning import FedAvg, Participation, TensorDataModule
from fl_lightning.executors import VectorizedExecutor
from fl_lightning.executors.compiler.capture import CapturedStep

#: Batches have four samples, and last ones may have two. The first client never trains: slots are no client's number.
OTHERS: dict[str, Any] = {
    "sizes": (1, 8, 14, 6, 22),
    "federated": {"participation": Participation(available=lambda t: range(1, 5))},
}


class Reversed(MulticlassAccuracy):
    """Is given the classes' scores in the reverse order, and returns a number."""

    def forward(self, scores: Tensor, target: Tensor) -> Any:
        return super().forward(scores.flip(1), target).item()


class Steps(Losing):
    """Has metric objects, a matrix and a schedule by steps."""

    def prepare(self) -> None:
        self.square = nn.Parameter(torch.arange(36.0).sin().reshape(6, 6))
        self.accuracy, self.reversed = MulticlassAccuracy(3), Reversed(3)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.rates = [torch.optim.lr_scheduler.StepLR(optimizer, 2)]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.rates[0], "interval": "step"}}


def of_known_class(module: Any, x: Tensor, y: Tensor) -> Tensor:
    scores = module(x)
    for name, part in module.named_children():
        if isinstance(part, Metric):
            module.log(name, part(scores, y), on_step=False, on_epoch=True)
    return F.cross_entropy(scores, y)


def of_own_forward(module: Any, x: Tensor, y: Tensor) -> Tensor:
    module.reversed(scores := module(x), y)
    module.log("reversed", module.reversed, on_step=False, on_epoch=True)
    module.accuracy.update(scores, y)
    module.log("accuracy", module.accuracy, on_step=False, on_epoch=True)
    return F.cross_entropy(scores, y)


def of_matrices(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """A matrix turned twice, values that are filled up, columns, attention without dropout, and a sum of two types."""
    padded = F.pad(x @ module.square.t().permute(1, 0), (1, 0))
    turned = F.cross_entropy(module.layers(padded[:, 1:]), y)
    columns = module(x)[:, [0, 2]].square().mean()
    heads = (x @ module.square).view(-1, 1, 3, 2)
    attended = F.cross_entropy(module.layers(F.scaled_dot_product_attention(heads, heads, heads).flatten(1)), y)
    return turned + columns + attended + F.cross_entropy((x @ module.square + torch.arange(6))[:, :3], y)


def reads_again(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Reads results after an operation that could write there, also in the backward pass, and multiplies by ones."""
    first, _, last = module.layers
    hidden = first(x @ module.square)
    module.log("hidden", hidden.mean(), on_step=False, on_epoch=True)
    loss = F.cross_entropy(last(F.gelu(hidden * 3) / 2), y)
    return loss + (hidden.relu() - torch.ones_like(hidden) * hidden.square()).square().mean()


STACKED: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "matrices": of_matrices,
    "number of a schedule": lambda m, x, y: F.cross_entropy(m(x), y) * (1 + m.rates[0].last_epoch),
    "metric objects of a class": of_known_class,
    "metric object of another forward, and one that is updated": of_own_forward,
    "results read again": reads_again,
}


@pytest.mark.parametrize("name", STACKED)
def test_stacked(name: str) -> None:
    assert ends_alike(lambda: Steps(STACKED[name]), trainer={"precision": "64-true"}, **OTHERS) is None


def in_single_precision(module: Any, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return F.cross_entropy(module(x), y)


@pytest.mark.parametrize(
    ("make", "precision", "tolerance"),
    [
        (Classifier, "bf16-mixed", 1e-2),
        (Classifier, "bf16-true", 1e-2),
        # Gradients of what autocast leaves out have single precision.
        (lambda: Losing(in_single_precision), "bf16-mixed", 1e-6),
    ],
)
def test_classes_in_half_precision(make: Callable[[], Classifier], precision: str, tolerance: float) -> None:
    trainer = {"precision": precision}
    assert ends_alike(make, tolerance, trainer=trainer, dtype=torch.float32, **OTHERS) is None


REFUSED: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "reads `num_classes` of a metric object": lambda m, x, y: (
        F.cross_entropy(m(x), y) * getattr(m.accuracy, "num_classes", 1)
    ),
    "reads the optimizer's state": lambda m, x, y: F.cross_entropy(m(x), y) * (1 + len(m.optimizers().state)),
    "reads `trainer.fit_loop`": lambda m, x, y: F.cross_entropy(m(x), y) * (1 + m.trainer.fit_loop.total_batch_idx),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    assert name in str(ends_alike(lambda: Steps(REFUSED[name])))


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
        clients = tensors((features,), (8, 13, 6, 21, 10), torch.float32).clients
        data = TensorDataModule(clients, batch_size=batch_size)
        trainer.fit(Classifier(nn.Linear(features, 3)), datamodule=data)
    assert len(inputs) >= 8
    assert not any(isinstance(own, int) for own in inputs)
