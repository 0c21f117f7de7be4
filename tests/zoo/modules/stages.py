"""What changes between rounds, or shows late: a trial in the first round cannot have seen it."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import Entry
from zoo.modules.base import Classifier, perceptron


class FromTheSecondRound(Classifier):
    """Does something else from the second round on."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return self.later(batch, batch_idx) if self.current_epoch > 0 else super().loss(batch, batch_idx)

    def later(self, batch: Any, batch_idx: int) -> Tensor:
        return 2 * super().loss(batch, batch_idx)


class ItemLater(FromTheSecondRound):
    """Reads a number in the middle of a client's training."""

    def later(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().later(batch, batch_idx)
        return loss / loss.item() if batch_idx == 2 else loss


class SkipsLater(FromTheSecondRound):
    """Returns nothing for the third batch."""

    def later(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 2 else super().later(batch, batch_idx)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch, batch_idx)


class KeepsLater(FromTheSecondRound):
    """Keeps numbers in a list."""

    def prepare(self) -> None:
        self.kept: list[int] = []

    def later(self, batch: Any, batch_idx: int) -> Tensor:
        self.kept.append(len(batch[1]))
        return super().later(batch, batch_idx)


class KeepsTensorLater(KeepsLater):
    def later(self, batch: Any, batch_idx: int) -> Tensor:
        loss = FromTheSecondRound.later(self, batch, batch_idx)
        self.last = loss.detach()
        return loss


class LogsLater(FromTheSecondRound):
    def later(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().later(batch, batch_idx)
        self.log("doubled", loss, on_step=False, on_epoch=True)
        return loss


class GlobalStepLater(FromTheSecondRound):
    def later(self, batch: Any, batch_idx: int) -> Tensor:
        return super().later(batch, batch_idx) * (1 + 0.01 * self.global_step)


class InPlaceLater(FromTheSecondRound):
    """Unit rows."""

    def later(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.layers[0].weight.div_(self.layers[0].weight.norm(dim=1, keepdim=True))
        return super().later(batch, batch_idx)


class CallsLoggerLater(FromTheSecondRound):
    def later(self, batch: Any, batch_idx: int) -> Tensor:
        self.logger.experiment.add_scalar("direct", float(len(batch[1])), self.current_epoch)
        return super().later(batch, batch_idx)


class RareValue(Classifier):
    """Logs something of batches of two samples, which few clients have."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        if len(batch[1]) == 2:
            self.log("of_pairs", loss, on_step=False, on_epoch=True)
        return loss


class ChangesLayer(Classifier):
    """Another activation from the second round on."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.layers[1] = nn.Tanh()


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


class Curriculum(Classifier):
    """A harder loss in each round, by an attribute."""

    def prepare(self) -> None:
        self.power = 0.0

    def on_train_epoch_start(self) -> None:
        self.power = float(self.current_epoch)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        return ((1 - torch.exp(-losses)) ** self.power * losses).mean()


class WritesWeights(Classifier):
    """Writes into the module between rounds: that is the server's model from then on."""

    def on_train_epoch_end(self) -> None:
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


def entry(name: str, module: Any, *callbacks: Any) -> Entry:
    return Entry(name, module, callbacks=lambda: [kind() for kind in callbacks], trainer=THREE)


ENTRIES = [
    entry("another loss from the second round on", FromTheSecondRound),
    entry("item() from the second round on", ItemLater),
    entry("returns None from the second round on", SkipsLater),
    entry("list filled from the second round on", KeepsLater),
    entry("tensor kept from the second round on", KeepsTensorLater),
    entry("logs a new name in the second round", LogsLater),
    entry("global_step from the second round on", GlobalStepLater),
    entry("unit rows from the second round on", InPlaceLater),
    entry("logger called from the second round on", CallsLoggerLater),
    entry("logs of batches of two", RareValue),
    entry("another layer in the second round", ChangesLayer),
    entry("dropout added in the second round", AddsDropout),
    entry("forward hook in the second round", AddsHook),
    entry("parameter hook in the second round", AddsParameterHook),
    entry("optimizer hook in the second round", AddsOptimizerHook),
    entry("optimizer's options change", ChangesOptions),
    entry("statistics frozen in the second round", FreezesStatistics),
    entry("curriculum by an attribute", Curriculum),
    entry("weights written between rounds", WritesWeights),
    entry("own learning rate in the second round", Classifier, LearningRateLater),
    entry("own attribute in the second round", Powered, AttributeLater),
    entry("own weights in the second round", Classifier, WeightsLater),
    entry("attribute set by round", Powered, SetByRound),
]
