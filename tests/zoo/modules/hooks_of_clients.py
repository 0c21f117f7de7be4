"""Callbacks with hooks of clients: what they see of each client, set for it, and hand on to the next."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FedBuff, FedDyn, RADFed
from zoo.entry import CLASSES, Entry, alike
from zoo.modules.base import Classifier
from zoo.modules.optimizers import WithOptimizer


class Counted(Classifier):
    """Logs each step's loss, and has metric objects."""

    scale: Any = 1.0

    def prepare(self) -> None:
        self.accuracy, self.losses = MulticlassAccuracy(CLASSES, average="micro"), MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        loss = self.scale * F.cross_entropy(scores, batch[1])
        self.accuracy(scores, batch[1])
        self.losses.update(loss.detach())
        self.log("loss", loss)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss


class Notes(Callback):
    """Notes all that a callback can see of a client at its end; ``notes`` is compared."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        progress = trainer.fit_loop.epoch_loop.batch_progress
        counts = [result.task.client, trainer.global_step, progress.current.ready, progress.total.completed]
        metrics = [pl_module.accuracy.tp.sum(), pl_module.losses.compute(), trainer.callback_metrics["loss"]]
        model = torch.cat([parameter.detach().flatten() for parameter in pl_module.parameters()])
        self.notes.append([counts, list(map(float, metrics)), model, result.delta.norm()])


class NotesBoth(Notes):
    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        norm = float(sum(parameter.detach().abs().sum() for parameter in pl_module.parameters()))
        losses = float(pl_module.losses.compute()) if pl_module.losses.update_count else 0.0
        self.notes.append([client.task.client, trainer.global_step, norm, losses])


class NotesOptimizer(Notes):
    """Notes gradients, the optimizer's state and its options at each client's end."""

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        [optimizer], weight = trainer.optimizers, pl_module.layers[0].weight
        options = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
        self.notes.append([result.task.client, weight.grad.clone(), copy.deepcopy(optimizer.state[weight]), options])


class Resets(Notes):
    """Takes the metric object's value for each client, and starts it anew."""

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.notes.append(float(pl_module.accuracy.compute()))
        pl_module.accuracy.reset()


class Draws(Notes):
    """Draws from all global generators."""

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.notes.append([float(torch.rand(())), float(np.random.rand()), random.random()])


class MovesAndDraws(Draws):
    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        with torch.no_grad():
            pl_module.layers[0].bias.add_(0.1 * (torch.randn(()) + np.random.standard_normal() + random.random()))


class Prepares(Callback):
    """Prepares clients by ``prepare(trainer, module, client's number)``, from a round on, and from a client on."""

    def __init__(self, prepare: Callable[[Any, Any, int], Any], since: int = 0, first: int = 0) -> None:
        self.prepare, self.since, self.first = prepare, since, first

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if trainer.current_epoch >= self.since and client.task.client >= self.first:
            self.prepare(trainer, pl_module, client.task.client)


class KeepsHeads(Callback):
    """A client goes on from its own head."""

    def __init__(self) -> None:
        self.notes: dict[int, Tensor] = {}

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        with torch.no_grad():
            pl_module.layers[2].bias.copy_(self.start(client.task.client, pl_module.layers[2].bias))

    def start(self, client: int, bias: Tensor) -> Tensor:
        return self.notes.get(client, torch.full_like(bias, 0.3))

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.notes[result.task.client] = pl_module.layers[2].bias.detach().clone()


class MeanOfHeads(KeepsHeads):
    """A client starts from the mean of the heads of the clients before."""

    def start(self, client: int, bias: Tensor) -> Tensor:
        return torch.stack(list(self.notes.values())).mean(0) if self.notes else bias


class KeepsOptimizer(Callback):
    """Lets each client's optimizer, or its schedule by steps, go on in its next round."""

    def __init__(self, schedule: bool = False) -> None:
        self.states: dict[int, Any] = {}
        self.schedule = schedule

    def held(self, trainer: Any) -> Any:
        return trainer.lr_scheduler_configs[0].scheduler if self.schedule else trainer.optimizers[0]

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if client.task.client in self.states:
            self.held(trainer).load_state_dict(self.states[client.task.client])
            if self.schedule:
                trainer.optimizers[0].param_groups[0]["lr"] = self.held(trainer).get_last_lr()[0]

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.states[result.task.client] = copy.deepcopy(self.held(trainer).state_dict())


class Halves(Callback):
    """Halves the loss after each client, from the second round on."""

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        pl_module.scale *= 0.5 if trainer.current_epoch else 1.0


class Follows(Callback):
    """Gives a client a learning rate by what the client before has left."""

    last = 0.1

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        trainer.optimizers[0].param_groups[0]["lr"] = self.rate(trainer, pl_module)

    def rate(self, trainer: Any, pl_module: Any) -> float:
        return self.last

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.last = 0.02 + 0.1 * float(result.delta.norm())


class FollowsLoss(Follows):
    def rate(self, trainer: Any, pl_module: Any) -> float:
        return 0.05 * float(trainer.callback_metrics.get("loss", 1.0))


class FollowsSteps(Follows):
    def rate(self, trainer: Any, pl_module: Any) -> float:
        return float(0.1 / (1 + 0.01 * trainer.global_step))


class FollowsMetric(Follows):
    def rate(self, trainer: Any, pl_module: Any) -> float:
        return 0.1 / (1 + float(pl_module.losses.mean_value))


class StrengthensData(Callback):
    """Scales each client's samples, from the second round on."""

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if trainer.current_epoch:
            trainer.datamodule.strength = 1.0 + client.task.client


class Strengthened(Classifier):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] * getattr(self.trainer.datamodule, "strength", 1.0), batch[1]


class TwoThings(Callback):
    """Sets a learning rate for every client, and an attribute for one, from the second round on."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.scale = 1.0

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        trainer.optimizers[0].param_groups[0]["lr"] = 0.1 * (1 + client.task.client % 2)
        if trainer.current_epoch and client.task.slot >= 1:
            pl_module.scale = 2.0


class DoublesLater(Callback):
    """Doubles gradients from the second round on, by what is set on an object of Lightning's or on this callback."""

    def __init__(self, place: str) -> None:
        self.place = place

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch != 1:
            return
        if self.place == "precision":
            trainer.precision_plugin.pre_backward = lambda loss, module: 2 * loss
        elif self.place == "strategy":
            stock = trainer.strategy.backward
            trainer.strategy.backward = lambda loss, *rest: stock(2 * loss, *rest)
        else:
            weight = pl_module.layers[0].weight
            self.on_after_backward = lambda *_: weight.grad.mul_(2)  # type: ignore[method-assign]


def option(name: str, value: Callable[[int], Any]) -> Callable[[], Callback]:
    """Return a callback that sets an option of the optimizer for each client."""

    def prepare(trainer: Any, module: Any, client: int) -> None:
        trainer.optimizers[0].param_groups[0][name] = value(client)

    return lambda: Prepares(prepare)


def fill_bias(trainer: Any, module: Any, client: int) -> None:
    with torch.no_grad():
        module.layers[2].bias.fill_(0.1 * client)


def set_rate(trainer: Any, module: Any, client: int) -> None:
    trainer.optimizers[0].param_groups[0]["lr"] = 0.01 * (client + 1)


def set_scale(trainer: Any, module: Any, client: int) -> None:
    module.scale = 0.5 * client


def adagrad(module: Any) -> Any:
    return torch.optim.Adagrad(module.parameters())


def sgd(**options: Any) -> Callable[[], Classifier]:
    return lambda: WithOptimizer(lambda module: torch.optim.SGD(module.parameters(), lr=0.1, **options))


def by_step(module: Any) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return [optimizer], [{"scheduler": ExponentialLR(optimizer, 0.8), "interval": "step"}]


def hooked(name: str, module: Any, callback: Callable[[], Callback], **options: Any) -> Entry:
    options = {"trainer": {"max_epochs": 3}, "by_hand": False, **options}
    return Entry(name, module, callbacks=lambda: [callback()], **options)


NO_MOMENTUM, NO_DECAY = (lambda client: 0.9 * (client != 2)), (lambda client: 0.1 * (client % 2))
ENTRIES = [
    hooked("notes all of clients", Counted, Notes, long=True),
    hooked("notes all of clients, stacks of two", Counted, NotesBoth, federated={"clients_at_once": 2}),
    hooked("notes all of clients, RADFed", Counted, NotesBoth, algorithm=partial(RADFed, 2, 3), long=True),
    hooked("notes all of clients, FedBuff", Counted, NotesBoth, algorithm=partial(FedBuff, 3), long=True),
    hooked("notes gradients and momentum", sgd(momentum=0.5), NotesOptimizer),
    hooked("notes rates of a schedule", lambda: WithOptimizer(by_step), NotesOptimizer, long=True),
    hooked("notes gradients of FedDyn", sgd(), NotesOptimizer, algorithm=partial(FedDyn, 0.5), long=True),
    hooked("metric object reset for each client", Counted, Resets),
    hooked("hook draws", Counted, Draws, long=True),
    hooked("hook moves weights at random", Counted, MovesAndDraws, long=True),
    hooked("own head kept", Classifier, KeepsHeads),
    hooked("mean of others' heads", Classifier, MeanOfHeads, alone="a client hands on", long=True),
    hooked("optimizer goes on", sgd(momentum=0.9), KeepsOptimizer, alone="state is loaded"),
    hooked(
        "schedule goes on",
        lambda: WithOptimizer(by_step),
        lambda: KeepsOptimizer(True),
        alone="state is loaded",
        long=True,
    ),
    hooked("loss halved after each client", Counted, Halves, alone="a client hands on"),
    hooked("data for each client", Strengthened, StrengthensData, alone="changes what clients share", long=True),
    hooked("rate and attribute set later", Counted, TwoThings, alone="changes what clients share", long=True),
    *alike(
        hooked("rate by the client before", Classifier, Follows, alone="handed on"),
        hooked("rate by the last loss", Counted, FollowsLoss, alone="reads what is logged"),
        hooked("rate by the step", Counted, FollowsSteps, alone="reads shared counters"),
        hooked("rate by a metric object", Counted, FollowsMetric, alone="reads a metric object"),
    ),
    *alike(
        hooked("some clients do not move", sgd(), option("lr", lambda client: 0.5 * (client % 2))),
        hooked("weight decay for some clients", sgd(weight_decay=0.1), option("weight_decay", NO_DECAY)),
        hooked("momentum for some clients", sgd(momentum=0.9), option("momentum", NO_MOMENTUM)),
        hooked("Nesterov for some clients", sgd(momentum=0.9), option("nesterov", lambda client: client % 2 == 0)),
        hooked("maximize for one client", sgd(), option("maximize", lambda client: client == 3)),
        hooked("Adagrad, own learning rate", lambda: WithOptimizer(adagrad), lambda: Prepares(set_rate), long=True),
    ),
    *alike(
        hooked("own bias for some clients later", Counted, lambda: Prepares(fill_bias, 2, 3)),
        hooked("own rate for some clients later", Counted, lambda: Prepares(set_rate, 2, 3)),
        hooked("own attribute for some clients later", Counted, lambda: Prepares(set_scale, 2, 3)),
    ),
    *alike(
        hooked("gradients doubled by the strategy", Classifier, lambda: DoublesLater("strategy"), alone="hook"),
        hooked("gradients doubled by the precision", Classifier, lambda: DoublesLater("precision"), alone="hook"),
        hooked("gradients doubled by a callback", Classifier, lambda: DoublesLater("callback"), alone="hook"),
    ),
]
