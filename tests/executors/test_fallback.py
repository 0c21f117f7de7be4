"""What needs one model at a time is trained so, with one message that names it; results are as ever."""

from __future__ import annotations

import inspect
import logging
import os
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor
from fl_lightning.models import CharLSTM


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


class Manual(Module):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self.layers(batch[0]), batch[1]))
        optimizer.step()


class WithMetric(Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__(layers)
        self.train_acc = MulticlassAccuracy(3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self.layers(batch[0])
        self.train_acc(logits, batch[1])
        return F.cross_entropy(logits, batch[1]) * (2.0 - self.train_acc.compute())


class KeepsLosses(Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__(layers)
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss


def keeps_losses_elsewhere() -> Module:
    held: dict[str, list[Tensor]] = {"losses": []}

    class KeepsElsewhere(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.layers(batch[0]), batch[1])
            held["losses"].append(loss.detach())
            return loss

        @property
        def losses(self) -> list[Tensor]:
            return held["losses"]

    return KeepsElsewhere(linear())


class Hooked(Module):
    def on_after_backward(self) -> None:
        self.seen = True


class KeepsReference(Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__(layers)
        self.held = [layers[0].weight]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1]) + self.held[0].square().sum()


class EndsHarder(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        return 2 * loss if self.trainer.is_last_batch else loss


class CountsInTheEnvironment(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        steps = int(os.environ.get("STEPS", "0")) + 1
        os.environ["STEPS"] = str(steps)
        return F.cross_entropy(self.layers(batch[0]), batch[1]) / steps


def counts_in_the_environment() -> Module:
    os.environ.pop("STEPS", None)
    return CountsInTheEnvironment(linear())


class WithoutOptimizer(Module):
    def configure_optimizers(self) -> None:
        return None


class Watching(Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert batch is not None


class Checkpoints(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        output: Any = checkpoint(self.layers, batch[0], use_reentrant=False)
        return F.cross_entropy(output, batch[1]) + output.square().mean()


class MarksInputs(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(batch[0].requires_grad_()), batch[1])


class SetsRates(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.optimizers().param_groups[0]["lr"] = 0.01 if batch_idx else 0.3
        return F.cross_entropy(self.layers(batch[0]), batch[1])


class TakesTheNumber(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        return loss * torch.tensor(loss.item())


class GivesTheNumberToNumpy(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        return loss * float(np.exp(-loss.item()))


class WeighsCovariances(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.layers(x), y) + torch.cov(self.layers(x).T, aweights=x[:, 0].abs()).sum()


class LearnsFromBeta(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        output = self.layers(batch[0])
        return F.cross_entropy(output, batch[1]) + torch.distributions.Beta(output.exp(), 1.0).rsample().mean()


def pruned() -> Module:
    layers = linear()
    prune.random_unstructured(layers[0], "weight", 0.5)
    return Module(layers)


STARTS = ["`training_step` is no program of batched products", "Clients are not stacked"]

CASES: dict[str, tuple[Any, list[Callback], str]] = {
    "manual": (lambda: Manual(linear()), [], "Manual optimises manually"),
    "metric": (lambda: WithMetric(linear()), [], "calls `compute` of a metric object"),
    "list": (lambda: KeepsLosses(linear()), [], "changes `self.losses`"),
    "closure": (keeps_losses_elsewhere, [], "changes `held`"),
    "hook": (lambda: Hooked(linear()), [], "Hooked overrides `on_after_backward`"),
    "reference": (lambda: KeepsReference(linear()), [], "by another way than as attributes of the module"),
    "last batch": (lambda: EndsHarder(linear()), [], "reads `trainer.is_last_batch`"),
    "environment": (counts_in_the_environment, [], "sets environment variables"),
    "callback": (lambda: Module(linear()), [Watching()], "the callback Watching overrides `on_train_batch_end`"),
    "optimizer": (
        lambda: Module(linear(), lambda p: torch.optim.LBFGS(p, max_iter=2)),
        [],
        "the optimizer LBFGS may look at more than one value",
    ),
    "checkpoints": (lambda: Checkpoints(linear()), [], "activation checkpointing"),
    "marked inputs": (lambda: MarksInputs(linear()), [], "tensors of a batch require gradients"),
    "rates": (lambda: SetsRates(linear()), [], "reads or sets something of the optimizer"),
    "number": (lambda: TakesTheNumber(linear()), [], "a number that `.item()` took out of a tensor"),
    "numpy": (lambda: GivesTheNumberToNumpy(linear()), [], "a number that `.item()` took out of a tensor"),
    "covariances": (lambda: WeighsCovariances(linear()), [], "`cov` decides by a tensor's values"),
    "beta": (lambda: LearnsFromBeta(linear()), [], "a gradient of what Beta or Dirichlet distributions draw"),
    "pruned": (pruned, [], "a hook computes `layers.0.weight` from parameters before each call"),
    "no optimizer": (lambda: WithoutOptimizer(linear()), [], "WithoutOptimizer.configure_optimizers` returns None"),
    "momentum": (
        lambda: Module(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3))),
        [],
        "a number is taken out of a tensor",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_falls_back_with_one_message(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, callbacks, message = CASES[name]
    states = []
    for executor in ("sequential", "vectorized"):
        torch.manual_seed(0)
        module = make()
        fitter = quiet_trainer(max_epochs=3, callbacks=[FedAvg(3, seed=1, executor=executor), *callbacks])
        with caplog.at_level(logging.INFO):
            fitter.fit(module, datamodule=TensorDataModule(clients_of((6,), (8, 12, 4, 20)), batch_size=4))
        states.append((module.state_dict(), getattr(module, "losses", [])))
    assert message in fitter.fit_loop.executor.cause
    told = [record.message for record in caplog.records if "not stacked" in record.message]
    assert len(told) == 1 and message in told[0]
    for key, value in states[0][0].items():
        assert torch.equal(states[1][0][key], value), key
    assert len(states[1][1]) == len(states[0][1])
    assert all(torch.equal(a, b) for a, b in zip(*(losses for _, losses in states), strict=True))


class TakesANumber(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        return loss / (1 + float(loss.detach()))


class Selects(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        losses = F.cross_entropy(self.layers(batch[0]), batch[1], reduction="none")
        return losses[(losses >= losses.mean()).nonzero()].mean()


class MasksByLength(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        return loss + 0 * torch.arange(1 + batch[1].max()).sum()


class SelectsByWhere(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        losses = F.cross_entropy(self.layers(batch[0]), batch[1], reduction="none")
        return losses[torch.where(losses >= losses.mean())].mean()


class PunishesGradients(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        gradients = torch.autograd.grad(loss, list(self.parameters()), create_graph=True)
        return loss + sum(gradient.square().sum() for gradient in gradients)


class PunishesGradientsOfInputs(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs = batch[0].clone().requires_grad_(True)
        loss = F.cross_entropy(self.layers(inputs), batch[1])
        return loss + torch.autograd.grad(loss, inputs, create_graph=True)[0].square().sum()


class StepsBack(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        loss.backward(retain_graph=True)
        return loss


@pytest.mark.parametrize("made", [PunishesGradients, PunishesGradientsOfInputs, StepsBack])
def test_gradients_inside_of_the_step_are_named(made: type[Module]) -> None:
    fitter = quiet_trainer(max_epochs=1, callbacks=[FedAvg(3, executor="vectorized")])
    fitter.fit(made(linear()), datamodule=TensorDataModule(clients_of((6,), (8, 12, 4)), batch_size=4))
    cause = fitter.fit_loop.executor.cause
    assert cause.startswith("gradients are taken inside of `training_step`, and a stack takes those of all clients")
    assert "`torch.func.grad` computes the same" in cause


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (
            TakesANumber,
            "a number is taken out of a tensor (`float`, `int`, `tolist`, `numpy`), and each client has its own",
        ),
        (Selects, "a selection's size depends on values, and each client has its own"),
        (SelectsByWhere, "a selection's size depends on values, and each client has its own"),
        (MasksByLength, "`arange` takes a number out of a tensor, and each client has its own"),
    ],
)
def test_the_cause_names_the_line_of_the_step(made: type[Module], cause: str) -> None:
    """The line is that of the step's `return`, its last one."""
    fitter = quiet_trainer(max_epochs=1, callbacks=[FedAvg(3, executor="vectorized")])
    fitter.fit(made(linear()), datamodule=TensorDataModule(clients_of((6,), (8, 12, 4)), batch_size=4))
    lines, first = inspect.getsourcelines(made.training_step)
    expected = f"{cause} (test_fallback.py, line {first + len(lines) - 1})"
    assert fitter.fit_loop.executor.cause == expected


def test_the_debug_log_has_the_traceback_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that keeps records, as this one, must not keep the tensors of a stack's step."""
    fitter = quiet_trainer(max_epochs=1, callbacks=[FedAvg(3, executor="vectorized")])
    with caplog.at_level(logging.DEBUG, logger="fl_lightning"):
        fitter.fit(WithMetric(linear()), datamodule=TensorDataModule(clients_of((6,), (8, 12, 4)), batch_size=4))
    assert "calls `compute` of a metric object" in fitter.fit_loop.executor.cause
    shown = [record.message for record in caplog.records if record.levelno == logging.DEBUG]
    step = "in training_step"
    assert all(message.startswith(starts) and step in message for message, starts in zip(shown, STARTS, strict=True))


def test_fused_recurrent_kernels_fall_back() -> None:
    clients = [(torch.randint(0, 7, (8, 5)), torch.randint(0, 7, (8,))) for _ in range(3)]
    fitter = quiet_trainer(max_epochs=1, callbacks=[FedAvg(3, executor="vectorized")])
    fitter.fit(CharLSTM(7, hidden_size=6), datamodule=TensorDataModule(clients, batch_size=4))
    assert fitter.fit_loop.executor.cause.startswith("`nn.LSTM`, `nn.GRU` and `nn.RNN` compute one model at a time")


@pytest.mark.parametrize(
    ("pack", "cause"),
    [
        (False, "`nn.LSTM`, `nn.GRU` and `nn.RNN` compute one model at a time"),
        (True, "a packed sequence has a size of its own for each client"),
    ],
)
def test_recurrent_layers_of_torch_fall_back(pack: bool, cause: str) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(6, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            lengths = 3 + (x[:, 0, 0] > 0).long()
            sequences = nn.utils.rnn.pack_padded_sequence(x, lengths, True, False) if pack else x
            return self.layer(sequences)[1][0][-1]

    fitter = quiet_trainer(max_epochs=1, callbacks=[FedAvg(3, executor="vectorized")])
    fitter.fit(Module(Recurrent()), datamodule=TensorDataModule(clients_of((4, 6), (8, 8, 8)), batch_size=4))
    assert fitter.fit_loop.executor.cause.startswith(cause)


@pytest.mark.parametrize(
    ("argument", "value"), [("executor", "parallel"), ("clients_at_once", 0), ("clients_at_once", 1.5)]
)
def test_arguments_are_checked(argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=argument):
        FedAvg(3, **{argument: value})


@pytest.mark.parametrize("executor", ["sequential", VectorizedExecutor()], ids=["name", "object"])
def test_clients_at_once_without_effect(executor: Any) -> None:
    with pytest.raises(ValueError, match=r"`clients_at_once` has no effect .*, got 2. Leave it out"):
        FedAvg(3, executor=executor, clients_at_once=2)
    callback = FedAvg(3, executor="vectorized", clients_at_once=2)
    with pytest.raises(ValueError, match=r"`clients_at_once` has no effect .*, got 2. Leave it out"):
        callback.executor = executor
    assert callback.executor == "vectorized"


def test_batches_with_a_random_transfer_are_those_of_one_client_at_a_time() -> None:
    class Noisy(TensorDataModule):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [batch[0] + torch.randn_like(batch[0]), batch[1]]

    states = []
    for executor in ("sequential", "vectorized"):
        torch.manual_seed(0)
        module = Module(linear())
        fitter = quiet_trainer(max_epochs=3, callbacks=[FedAvg(3, seed=1, executor=executor)])
        fitter.fit(module, datamodule=Noisy(clients_of((6,), (8, 13, 4, 21)), batch_size=4))
        states.append(module.state_dict())
    assert fitter.fit_loop.executor.cause is None
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-9, atol=1e-9)
