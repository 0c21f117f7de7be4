"""What changes between rounds, or shows late: a trial in the first round cannot have seen it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import Entry
from zoo.modules.base import Classifier, changed, perceptron


class AddsDropout(Classifier):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.layers[1] = nn.Sequential(nn.ReLU(), nn.Dropout(0.3))


class AddsHook(Classifier):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.layers[0].register_forward_hook(lambda module, inputs, output: 1.5 * output)


class AddsParameterHook(Classifier):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.layers[0].weight.register_hook(lambda gradient: 0.1 * gradient)


class AddsOptimizerHook(Classifier):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.trainer.optimizers[0].register_step_post_hook(self.shrink)

    def shrink(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            self.layers[0].weight.mul_(0.9)


class ChangesOptions(Classifier):
    """More weight decay and momentum from the second round on."""

    def on_train_epoch_start(self) -> None:
        for group in self.trainer.optimizers[0].param_groups:
            group["weight_decay"], group["momentum"] = 0.1 * self.current_epoch, 0.5 * self.current_epoch


class FreezesStatistics(Classifier):
    """BatchNorm in eval mode from the second round on."""

    def __init__(self) -> None:
        super().__init__(perceptron(nn.LayerNorm(5), nn.Unflatten(1, (5, 1)), nn.BatchNorm1d(5), nn.Flatten()))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(torch.cat([x, -x])), torch.cat([y, y]))

    def on_train_epoch_start(self) -> None:
        self.layers[4].train(self.current_epoch == 0)


class WritesWeights(Classifier):
    """Writes into the module between rounds: that is the server's model from then on."""

    def on_train_epoch_end(self) -> None:
        with torch.no_grad():
            self.layers[0].bias.zero_()


class WritesWeightsAtStart(Classifier):
    """Writes into the module when a round begins, before its clients."""

    def on_train_epoch_start(self) -> None:
        with torch.no_grad():
            self.layers[0].bias.zero_()


class LearningRateLater(Callback):
    """Gives one client another learning rate, from the second round on."""

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if trainer.current_epoch > 0 and client.task.client == 0:
            for group in trainer.optimizers[0].param_groups:
                group["lr"] = 0.5


class AttributeLater(Callback):
    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if trainer.current_epoch > 0:
            pl_module.power = float(client.task.client)


class WeightsLater(Callback):
    """Writes a client's own bias into the module, from the second round on."""

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if trainer.current_epoch > 0:
            with torch.no_grad():
                pl_module.layers[2].bias.fill_(0.1 * client.task.client)


class SetByRound(Callback):
    """Sets an attribute for all clients of a round."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.power = float(trainer.current_epoch)


class Powered(Classifier):
    power = 0.0

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        return ((1 - torch.exp(-losses)) ** self.power * losses).mean()


THREE = {"max_epochs": 3}
SHARED = "reads what clients share"


def entry(name: str, module: Any, *callbacks: Any, **options: Any) -> Entry:
    return Entry(name, module, callbacks=lambda: [kind() for kind in callbacks], trainer=THREE, **options)


def later(name: str, change: Callable[[Any, Tensor, Any, int], Any], **options: Any) -> Entry:
    """Return an entry whose loss changes from the second round on."""

    def from_second_round(module: Any, loss: Tensor, batch: Any, index: int) -> Any:
        return change(module, loss, batch, index) if module.current_epoch > 0 else loss

    return changed(name, from_second_round, trainer=THREE, **options)


def keeps(name: str, value: Callable[[Tensor, Any], Any]) -> Entry:
    def keep(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
        module.last = value(loss, batch)
        return loss

    return later(name, keep, alone="changes what clients share", long=name.startswith("tensor"))


def unit_rows(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    with torch.no_grad():
        module.layers[0].weight.div_(module.layers[0].weight.norm(dim=1, keepdim=True))
    return F.cross_entropy(module(batch[0]), batch[1])


def calls_logger(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    module.logger.experiment.add_scalar("direct", float(len(batch[1])), module.current_epoch)
    return loss


def logs_new(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    module.log("doubled", 2 * loss, on_step=False, on_epoch=True)
    return loss


def logs_pairs(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Logs something of batches of two samples, which few clients have."""
    if len(batch[1]) == 2:
        module.log("of_pairs", loss, on_step=False, on_epoch=True)
    return loss


ENTRIES = [
    later("another loss from the second round on", lambda m, loss, b, i: 2 * loss, long=True),
    later("item() from the second round on", lambda m, loss, b, i: loss / loss.item() if i == 2 else loss),
    keeps("number kept from the second round on", lambda loss, batch: len(batch[1])),
    keeps("tensor kept from the second round on", lambda loss, batch: loss.detach()),
    later("logs a new name in the second round", logs_new, long=True),
    later("global_step in the second round", lambda m, loss, b, i: loss * m.global_step, alone=SHARED, long=True),
    later("unit rows from the second round on", unit_rows, alone="weights changed in place", long=True),
    later("logger called from the second round on", calls_logger, alone="calls the logger", long=True),
    changed("logs of batches of two", logs_pairs, trainer=THREE),
    entry("dropout added in the second round", AddsDropout),
    entry("forward hook in the second round", AddsHook, long=True),
    entry("parameter hook in the second round", AddsParameterHook, alone="hooks of parameters", long=True),
    entry("optimizer hook in the second round", AddsOptimizerHook, alone="hooks of the optimizer", long=True),
    entry("optimizer's options change", ChangesOptions, long=True),
    entry("statistics frozen in the second round", FreezesStatistics, long=True),
    entry("attribute set by round", Powered, SetByRound, long=True),
    entry("weights written between rounds", WritesWeights),
    entry("weights written at a round's start", WritesWeightsAtStart, long=True),
    entry("own learning rate in the second round", Classifier, LearningRateLater, long=True),
    entry("own attribute in the second round", Powered, AttributeLater, alone="sets what clients share", long=True),
    entry("own weights in the second round", Classifier, WeightsLater, long=True),
]
