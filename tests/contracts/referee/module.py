"""The small network of all cells, the clients' data, and the same network as a function of a dictionary of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

FEATURES = 5
WIDTH = 4
CLASSES = 4
SIZES = (6, 4, 7, 3)
#: Classes that each client has.
OWN_CLASSES = ((0, 1, 2, 3), (0, 1), (1, 2, 3), (0, 3))
BATCH_SIZE = 4
CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=torch.float64)
LR = 0.2
DECAY = 0.9
#: Before BatchNorm gradients of a bias are rounding errors, which a smaller number would enlarge.
ADAM_EPS = 0.1


@dataclass(frozen=True)
class Kind:
    """What the module has.

    Attributes:
        norm: Whether it has BatchNorm, and a buffer of its own that the forward pass moves.
        adam: Whether its optimizer is AdamW, and not SGD.
        momentum: Momentum of its SGD.
        weight_decay: Weight decay of its optimizer.
        class_weights: Whether its cross-entropy weighs classes.
        tied: Whether a layer in its middle shares its weight with the head.
        decays: Whether a schedule multiplies the learning rate after every step.
        head_only: Whether its optimizer holds the head alone.
    """

    norm: bool = False
    adam: bool = False
    momentum: float = 0.0
    weight_decay: float = 0.0
    class_weights: bool = False
    tied: bool = False
    decays: bool = False
    head_only: bool = False


class Net(L.LightningModule):
    """Body, perhaps BatchNorm and a moving centre, tanh, perhaps a middle layer, and a head."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.note: list[list[float]] | None = None
        self.body = nn.Linear(FEATURES, WIDTH)
        if kind.norm:
            self.norm = nn.BatchNorm1d(WIDTH)
            self.register_buffer("centre", torch.zeros(WIDTH))
        if kind.tied:
            self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        if kind.tied:
            self.head.weight = self.middle.weight
        self.double()
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        if self.kind.norm:
            hidden = self.norm(hidden)
            if self.training:
                self.centre = 0.8 * self.centre + 0.2 * hidden.mean(0).detach()
            hidden = hidden - self.centre
        hidden = torch.tanh(hidden)
        if self.kind.tied:
            hidden = torch.tanh(self.middle(hidden))
        return self.head(hidden)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        if self.note is not None and self.training and torch.is_grad_enabled():
            self.note.append(x[:, 0].tolist())
        loss = F.cross_entropy(self(x), y, weight=CLASS_WEIGHTS if self.kind.class_weights else None)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("still", 0.0)

    def configure_optimizers(self) -> Any:
        held = self.head.parameters() if self.kind.head_only else self.parameters()
        kind = self.kind
        optimizer: torch.optim.Optimizer
        if kind.adam:
            optimizer = torch.optim.AdamW(held, lr=LR, eps=ADAM_EPS, weight_decay=kind.weight_decay)
        else:
            optimizer = torch.optim.SGD(held, lr=LR, momentum=kind.momentum, weight_decay=kind.weight_decay)
        if not kind.decays:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def make_clients(count: tuple[int, ...], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return the samples of clients of unequal sizes and class mixes."""
    generator = torch.Generator().manual_seed(seed)
    clients = []
    for client, size in enumerate(count):
        classes = torch.tensor(OWN_CLASSES[client])
        x = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64) + 0.3 * client
        # every class of the client occurs, as far as there are samples
        y = classes[torch.arange(size) % len(classes)]
        clients.append((x, y))
    return clients


TRAIN = make_clients(SIZES, seed=1)
VAL = make_clients((3, 3, 3, 3), seed=2)


# ---- the same network, as a function ----


def forward(state: State, x: Tensor, train: bool) -> tuple[Tensor, Tensor, State]:
    """Return features, logits and the new values of buffers."""
    hidden = x @ state["body.weight"].T + state["body.bias"]
    new: State = {}
    if "norm.weight" in state:
        mean = state["norm.running_mean"]
        variance = state["norm.running_var"]
        if train:
            size = len(hidden)
            mean = hidden.mean(0)
            variance = ((hidden - mean) ** 2).mean(0)
            new["norm.running_mean"] = 0.9 * state["norm.running_mean"] + 0.1 * mean.detach()
            new["norm.running_var"] = 0.9 * state["norm.running_var"] + 0.1 * variance.detach() * size / (size - 1)
            new["norm.num_batches_tracked"] = state["norm.num_batches_tracked"] + 1
        hidden = (hidden - mean) / (variance + 1e-5).sqrt() * state["norm.weight"] + state["norm.bias"]
        centre = state["centre"]
        if train:
            centre = 0.8 * centre + 0.2 * hidden.mean(0).detach()
            new["centre"] = centre
        hidden = hidden - centre
    features = torch.tanh(hidden)
    if "middle.weight" in state:
        features = torch.tanh(features @ state["middle.weight"].T + state["middle.bias"])
    # a tied head has the middle layer's weight
    weight = state["head.weight"] if "head.weight" in state else state["middle.weight"]
    return features, features @ weight.T + state["head.bias"], new


def cross_entropy(logits: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over samples, weighted by their classes."""
    losses = torch.logsumexp(logits, 1) - logits.gather(1, y[:, None])[:, 0]
    if weights is None:
        return losses.mean()
    return (losses * weights[y]).sum() / weights[y].sum()


def fingerprint(preds: Tensor, target: Tensor) -> Tensor:
    """Return a number in which every prediction counts, in whatever order: a metric of one client."""
    table = torch.sin(1 + torch.arange(CLASSES * CLASSES, dtype=torch.float64)).reshape(CLASSES, CLASSES)
    weights = table[target]
    return (weights * preds + (weights + 0.1) * preds**2).sum()
