"""Changes between rounds, and effects that show late: a step that was captured in the first round has not seen it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import Entry, one_by_one
from zoo.modules.adaptation import unit_rows
from zoo.modules.base import Classifier, changed, perceptron
from zoo.modules.gradients import halve_inputs


class Changing(Classifier):
    """Is changed by a function of itself when its second round begins."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.change(self)


class Flagged(Classifier):
    """Doubles its loss once a flag says so, ``read(module)``, which ``write(module, flag)`` sets after the first round.

    It begins with the flag down.
    """

    doubles = False

    def __init__(self, read: Callable[[Any], Any], write: Callable[[Any, bool], Any]) -> None:
        super().__init__()
        self.flag, self.read, self.write = torch.zeros(()), read, write
        write(self, False)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        return 2 * loss if self.read(self) else loss

    def on_train_epoch_end(self) -> None:
        self.write(self, True)


FLAGS: dict[str, bool] = {}


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


class Powered(Classifier):
    """Its loss has an exponent, which is the round's index."""

    def on_train_epoch_start(self) -> None:
        self.power = float(self.current_epoch)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        return ((1 - torch.exp(-losses)) ** self.power * losses).mean()


class ReadsKeys(Classifier):
    """Looks for a key, and in small batches for another, which is there from the second round on."""

    def prepare(self) -> None:
        self.known = dict[str, bool]()

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        weight = 2 if "first" in self.known else 1
        return super().loss(batch, batch_idx) * (3 if len(batch[1]) < 4 and "second" in self.known else weight)

    def on_train_epoch_end(self) -> None:
        self.known["second"] = True


THREE = {"max_epochs": 3}


def entry(name: str, module: Callable[[], Any]) -> Entry:
    return Entry(name, module, trainer=THREE)


def changing(name: str, change: Callable[[Any], Any]) -> Entry:
    return entry(name, lambda: Changing(change))


def flagged(name: str, read: Callable[[Any], Any], write: Callable[[Any, bool], Any]) -> Entry:
    return entry(name, lambda: Flagged(read, write))


def later(name: str, change: Callable[[Any, Tensor, Any, int], Any]) -> Entry:
    """Return an entry whose loss changes from the second round on."""

    def from_second_round(module: Any, loss: Tensor, batch: Any, index: int) -> Any:
        return change(module, loss, batch, index) if module.current_epoch > 0 else loss

    return changed(name, from_second_round, trainer=THREE)


def keeps(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    module.last = len(batch[1])
    return loss


def logs_new(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    module.log("doubled", 2 * loss, on_step=False, on_epoch=True)
    return loss


def logs_pairs(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Logs something of batches of two samples, which few clients have."""
    if len(batch[1]) == 2:
        module.log("of_pairs", loss, on_step=False, on_epoch=True)
    return loss


def adds_optimizer_hook(module: Any) -> None:
    weight = module.layers[0].weight
    module.trainer.optimizers[0].register_step_post_hook(lambda *_: weight.data.mul_(0.9))


def replaces_step(module: Any) -> None:
    module.training_step = lambda batch, batch_idx: 2 * type(module).training_step(module, batch, batch_idx)


ENTRIES = [
    changed("logs of batches of two", logs_pairs, trainer=THREE),
    changing("dropout added", lambda m: m.layers.__setitem__(1, nn.Sequential(nn.ReLU(), nn.Dropout(0.3)))),
    flagged("flag in a global", lambda m: FLAGS["on"], lambda m, on: FLAGS.update(on=on)),
    entry("weights written between rounds", WritesWeights),
    entry("key that small batches look for", ReadsKeys),
    *one_by_one(later("number kept from the second round on", keeps)),
]
LONG = [
    later("item() from the second round on", lambda m, loss, b, i: loss / loss.item() if i == 2 else loss),
    later("another loss from the second round on", lambda m, loss, b, i: 2 * loss),
    later("logs a new name in the second round", logs_new),
    changing("forward hook added", lambda m: m.layers[0].register_forward_hook(lambda *args: 1.5 * args[2])),
    changing("forward pre-hook added", lambda m: m.layers[2].register_forward_pre_hook(lambda _, x: (2 * x[0],))),
    changing("weights written at a round's start, once", lambda m: m.layers[0].bias.data.zero_()),
    changing("forward replaced", lambda m: setattr(m.layers[1], "forward", torch.sigmoid)),
    changing("step replaced", replaces_step),
    flagged("flag in the class", lambda m: m.doubles, lambda m, on: setattr(type(m), "doubles", on)),
    entry("optimizer's options change", ChangesOptions),
    entry("statistics frozen in the second round", FreezesStatistics),
    entry("attribute set by round", Powered),
    *one_by_one(
        later("unit rows from the second round on", lambda m, loss, b, i: unit_rows(m, *b)),
        changing("backward hook added", lambda m: m.layers[0].register_full_backward_hook(halve_inputs)),
        changing("parameter hook added", lambda m: m.layers[0].weight.register_hook(lambda g: 0.1 * g)),
        changing("optimizer hook added", adds_optimizer_hook),
        flagged("flag in a tensor", lambda m: bool(m.flag > 0), lambda m, on: m.flag.fill_(float(on))),
    ),
]
