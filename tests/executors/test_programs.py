"""Networks of linear layers train as programs of batched products, which nobody can tell from one client alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FedAvg, FedDyn, FedProx, TensorDataModule
from fl_lightning.executors.stacked.mapped import MappedStep
from fl_lightning.executors.stacked.program.maker import ProgramMaker

SIZES = (9, 14, 3, 22, 10, 1)


class Logs(Module):
    """Logs as Lightning's examples do, with a metric object."""

    def __init__(self, layers: nn.Module, make_optimizer: Any = None, loss: Any = F.cross_entropy) -> None:
        super().__init__(layers, make_optimizer)
        self.loss = loss
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.shared_step(batch, batch_idx)

    def shared_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        output = self.layers(x.flatten(1))
        loss = self.loss(output, y)
        self.accuracy(output, y)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(y))
        self.log("acc", (output.argmax(dim=1) == y).float().mean(), on_step=False, on_epoch=True)
        self.log("confidence", output.detach().softmax(-1).max(dim=-1).values.mean(), on_step=False, on_epoch=True)
        self.log("metric", self.accuracy, on_step=False, on_epoch=True)
        return loss


def nll(output: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(output, dim=1), y)


def one_hot(output: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(output, F.one_hot(y, 3).to(output.dtype))


def chain(*between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), *between, nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))


NETWORKS: dict[str, Any] = {
    **{
        type(layer).__name__: (layer,) for layer in (nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.SiLU(), nn.ELU())
    },
    **{type(layer).__name__: (layer,) for layer in (nn.LeakyReLU(0.2), nn.Softplus())},
    "dropout": (nn.Tanh(), nn.Dropout(0.3)),
    "dropout of everything": (nn.Dropout(1.0),),
    "nothing": (),
}


def fit(module: Logs, executor: str, callback: Any = None, **trainer: Any) -> dict[str, float]:
    algorithm = callback(executor) if callback else FedAvg(1.0, seed=0, executor=executor, local_epochs=2)
    fitter = quiet_trainer(max_epochs=3, callbacks=[algorithm], **trainer)
    fitter.fit(module, datamodule=TensorDataModule(clients_of((2, 3), SIZES), batch_size=4))
    assert executor == "sequential" or fitter.fit_loop.executor.cause is None
    return {name: float(value) for name, value in fitter.callback_metrics.items()}


def assert_equal_both_ways(make: Any, callback: Any = None, **trainer: Any) -> None:
    """Train one after the other and at once, and compare."""
    alone, at_once = make(), make()
    expected, found = fit(alone, "sequential", callback, **trainer), fit(at_once, "vectorized", callback, **trainer)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(at_once.state_dict()[name], value, rtol=1e-9, atol=1e-12)


def compare(make: Any, monkeypatch: pytest.MonkeyPatch, callback: Any = None, **trainer: Any) -> None:
    """Train one after the other, and as a program: mapped steps fail."""

    def refuse(*args: Any) -> Any:
        raise AssertionError("the step is mapped")

    monkeypatch.setattr(MappedStep, "__call__", refuse)
    assert_equal_both_ways(make, callback, **trainer)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(lambda: Logs(chain(*NETWORKS[name])), monkeypatch)


def test_a_single_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    def single() -> Logs:
        torch.manual_seed(0)
        return Logs(nn.Linear(6, 3, bias=False))

    compare(single, monkeypatch)


def test_negative_log_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    compare(lambda: Logs(chain(nn.ReLU()), loss=nll), monkeypatch)


def test_many_classes_are_not_transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(Logs):
        def __init__(self) -> None:
            torch.manual_seed(0)
            super().__init__(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 20)))
            self.accuracy = MulticlassAccuracy(20, average="micro")

    compare(Wide, monkeypatch)


class OneNumber(Logs):
    """Predicts one number for each sample, and logs it in several shapes."""

    def __init__(self, loss: Any) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)), loss=loss)
        self.accuracy = MeanSquaredError()

    def shared_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch[0].flatten(1), batch[1]
        output = self.layers(x)
        loss = self.loss(output, y)
        self.accuracy(output.view(-1), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("acc", ((output[:, 0] > 0) == y).double().mean(), on_step=False, on_epoch=True)
        self.log("mean", torch.sigmoid(output.squeeze(-1)).mean(), on_step=False, on_epoch=True)
        self.log("error", (output - y.unsqueeze(1)).abs().mean(), on_step=False, on_epoch=True)
        self.log("metric", self.accuracy, on_step=False, on_epoch=True)
        return loss


ONE_NUMBER: dict[str, Any] = {
    "squeezed": lambda output, y: F.mse_loss(output.squeeze(1), y.double()),
    "squeezed without a dimension": lambda output, y: F.mse_loss(output.squeeze(), y.double()),
    "first column": lambda output, y: F.l1_loss(output[:, 0], y.to(output.dtype)),
    "viewed": lambda output, y: F.huber_loss(output.view(-1), y.double()),
    "flattened": lambda output, y: nn.SmoothL1Loss()(output.flatten(), y.to(output)),
    "binary": lambda output, y: F.binary_cross_entropy_with_logits(output.squeeze(-1), y.double()),
    "binary, targets in a column": lambda output, y: nn.BCEWithLogitsLoss()(output, y.double()[:, None]),
    "targets unsqueezed": lambda output, y: F.mse_loss(output, y.unsqueeze(-1).double()),
    "targets scaled": lambda output, y: F.mse_loss(output.squeeze(1), (y - 1) / 10.0),
    "targets compared": lambda output, y: F.binary_cross_entropy_with_logits(output[:, 0], (y > 1).double()),
    "targets less their mean": lambda output, y: F.mse_loss(output[:, 0], y - y.double().mean()),
    "reversed targets": lambda output, y: F.mse_loss(output.flatten(), y.flip(0).double()),
}


@pytest.mark.parametrize("name", ONE_NUMBER)
def test_one_number_for_each_sample(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(lambda: OneNumber(ONE_NUMBER[name]), monkeypatch)


INPUTS: dict[str, Any] = {
    "scaled": lambda x: (x + 3.0) / 10.0,
    "each sample less its mean": lambda x: x - x.mean(dim=1, keepdim=True),
    "less the batch's mean": lambda x: x - x.mean(dim=0),
    "inverse": lambda x: 0.1 / x.abs().sqrt(),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_are_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scales(Logs):
        def shared_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch[0].flatten(1), batch[1]
            x = INPUTS[name](x)
            loss = F.cross_entropy(self.layers(x), y)
            self.log("loss", loss, on_step=False, on_epoch=True)
            self.log("mean", x.mean(), on_step=False, on_epoch=True)
            return loss

    compare(lambda: Scales(chain(nn.ReLU())), monkeypatch)


def test_targets_of_classes_by_one_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    compare(lambda: Logs(chain(nn.ReLU()), loss=one_hot), monkeypatch)


OTHER_LOSSES: dict[str, Any] = {
    "an option": lambda output, y: F.smooth_l1_loss(output.flatten(), y.double(), beta=0.5),
    "a sum": lambda output, y: F.mse_loss(output.flatten(), y.double(), reduction="sum"),
    "predictions against all targets": lambda output, y: F.mse_loss(output, y.double()),
    "a weight": lambda output, y: F.binary_cross_entropy_with_logits(output[:, 0], y.double(), output[:, 0].detach()),
    "reversed": lambda output, y: F.mse_loss(output.flatten().flip(0), y.double()),
    "another type of the same bytes": lambda output, y: F.mse_loss(output.flatten(), (y + 1).view(torch.float64)),
}


@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_other_losses_give_the_same_without_a_program(name: str) -> None:
    assert_equal_both_ways(lambda: OneNumber(OTHER_LOSSES[name]))


class Decodes(Module):
    loss: Any = staticmethod(F.mse_loss)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0].view(batch[0].size(0), -1)
        loss = self.loss(self.layers(x), x)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.binary_cross_entropy_with_logits])
def test_an_autoencoder_with_adam(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Decodes:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6))
        module = Decodes(layers, lambda p: torch.optim.Adam(p, lr=0.01))
        module.loss = loss
        return module

    compare(make, monkeypatch)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(lambda: Logs(chain(nn.ReLU()), OPTIMIZERS[name]), monkeypatch)


def test_short_gradients_are_not_made_longer_by_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    compare(lambda: Logs(chain(nn.ReLU())), monkeypatch, gradient_clip_val=1e3)
    compare(lambda: Logs(chain(nn.ReLU())), monkeypatch, gradient_clip_val=0.05)


@pytest.mark.parametrize(
    "callback",
    [
        lambda executor: FedProx(0.3, 1.0, seed=0, executor=executor),
        lambda executor: FedDyn(0.1, 0.5, seed=0, executor=executor),
    ],
    ids=["FedProx", "FedDyn"],
)
def test_local_objectives(callback: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(lambda: Logs(chain(nn.ReLU())), monkeypatch, callback)


def test_one_step_by_hand() -> None:
    """Two clients of one sample, one layer: w - lr (softmax(w x) - y) x, averaged."""
    x = [torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[-1.0, 1.0]]).double()]
    y = [torch.tensor([0]), torch.tensor([1])]
    layer = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(layer.weight)
    module = Module(layer)
    fitter = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, seed=0, executor="vectorized")])
    clients = list(zip(x, y, strict=True))
    fitter.fit(module, datamodule=TensorDataModule([*clients, *clients], batch_size=4))
    # both classes have probability 1/2: the first client's step is 0.1 x [[.5, 1], [-.5, -1]], the other's
    # 0.1 x [[.5, -.5], [-.5, .5]], so that the mean is [[.05, .025], [-.05, -.025]]. Then the logits' difference is
    # (.1 + 2 x .05) = .2 for the first and (-.1 + .05) = -.05 for the second.
    first, second = 1 / (1 + math.exp(0.2)), 1 / (1 + math.exp(0.05))
    row = [0.05 + 0.05 * (first + second), 0.025 + 0.05 * (2 * first - second)]
    expected = torch.tensor([row, [-value for value in row]], dtype=torch.float64)
    torch.testing.assert_close(layer.weight.detach(), expected, rtol=1e-12, atol=1e-12)


class OtherTargets(OneNumber):
    """Predicts classes or its inputs, from targets in other shapes."""

    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 6)).double()

    def shared_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch[0].flatten(1), batch[1]
        loss = self.loss(self.layers(x), x, y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


OTHER_TARGETS: dict[str, Any] = {
    "a class in a column": lambda output, x, y: F.cross_entropy(output, y.unsqueeze(1).squeeze(1)),
    "flattened rows": lambda output, x, y: F.mse_loss(output.flatten(), x.flatten()),
    "computed from flattened rows": lambda output, x, y: F.mse_loss(output.flatten(), x.flatten() * 2),
    "half precision": lambda output, x, y: F.mse_loss(output[:, 0], (4049 * y).to(torch.float16).double()),
}


@pytest.mark.parametrize("name", OTHER_TARGETS)
def test_targets_in_other_shapes_are_stacked(name: str) -> None:
    assert_equal_both_ways(lambda: OtherTargets(OTHER_TARGETS[name]))


def test_classes_that_come_in_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    class Column(Logs):
        def shared_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().shared_step((batch[0], batch[1].squeeze(1)), batch_idx)

    columns = [(x, y.unsqueeze(1)) for x, y in clients_of((2, 3), SIZES)]
    monkeypatch.setitem(fit.__globals__, "clients_of", lambda *args: columns)
    compare(lambda: Column(chain(nn.ReLU())), monkeypatch)


def test_a_batch_that_no_client_fills_is_as_large_as_the_largest_client(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, make = [], ProgramMaker.make

    def noted(self: ProgramMaker, form: Any, size: int, round_index: int) -> Any:
        sizes.append(size)
        return make(self, form, size, round_index)

    monkeypatch.setattr(ProgramMaker, "make", noted)
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor="vectorized")])
    trainer.fit(Logs(chain()), datamodule=TensorDataModule(clients_of((2, 3), SIZES), batch_size=1000))
    assert sizes[-1] == max(SIZES)
