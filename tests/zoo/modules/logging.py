"""How training steps log and what they return, as in Lightning's documentation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fl_lightning import QFedAvg, Scaffold
from zoo.entry import UNEQUAL, Entry, one_by_one
from zoo.modules.base import Classifier


class LogsStepAndEpoch(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True, logger=True)
        self.log("last", loss)
        self.log("number", loss.item(), on_step=False, on_epoch=True)
        return loss


class SkipsBatches(Classifier):
    """Returns nothing for the second batch of a client."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        return None if batch_idx == 1 else self.loss(batch, batch_idx)


class LogsReductions(Classifier):
    """Logs in a step for all stages, which returns more than the loss."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return self.shared_step(batch, batch_idx, "train")

    def shared_step(self, batch: Any, batch_idx: int, stage: str) -> dict[str, Tensor]:
        loss = self.loss(batch, batch_idx)
        logits = self(batch[0])
        self.log(f"{stage}/entropy", torch.distributions.Categorical(logits=logits).entropy().mean())
        for reduce in ("min", "max", "sum", "mean"):
            self.log(f"loss_{reduce}", loss, on_step=False, on_epoch=True, reduce_fx=reduce)
        self.log("weighted", loss, on_step=False, on_epoch=True, batch_size=1)
        self.log("as many", loss, on_step=False, on_epoch=True, batch_size=len(batch[1]))
        self.log("samples", float(len(batch[1])), on_step=False, on_epoch=True, reduce_fx="sum")
        return {"loss": loss, "logits": logits.detach()}


class LogsParameters(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("bias", self.layers[2].bias[0], on_step=False, on_epoch=True)
        self.log("infinite", batch[0].sum().abs() * float("inf"), on_step=False, on_epoch=True)
        return super().loss(batch, batch_idx)


class LogsByWeight(Classifier):
    """Logs a share that counts as often as the batch has samples of its class."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        first = batch[1] == 0
        self.log("share", first.double().mean(), on_step=False, on_epoch=True, batch_size=1 + first.sum().item())
        self.log("by tensor", first.double().mean(), on_step=False, on_epoch=True, batch_size=1 + first.sum())
        return super().loss(batch, batch_idx) * (1 + first.sum().item() / 3)


class LogsTypes(Classifier):
    """Logs large numbers in narrow types, whose sums no narrow type holds."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss, none = super().loss(batch, batch_idx), 0 * batch[1].sum()
        for name, value in {
            "half": (none + 10_000).half(),
            "whole": none + 257,
            "single": (none + 0.1).float(),
        }.items():
            self.log(name, value, on_step=True, on_epoch=True)
            self.log(f"{name}_sum", value, on_step=False, on_epoch=True, reduce_fx="sum")
        return loss


class CountsInBuffer(Classifier):
    """Counts its steps in a buffer, and logs the count."""

    def prepare(self) -> None:
        self.register_buffer("steps", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mask", torch.tensor([True] * 4 + [False] * 2))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        self.seen.fill_(True)
        self.log("steps", self.steps, on_step=False, on_epoch=True)
        return super().loss((batch[0] * self.mask, batch[1]), batch_idx)


class LogsInAllWays(LogsReductions, LogsParameters, LogsByWeight, LogsTypes):
    """Logs all that these log."""


ENTRIES = [
    Entry(
        "logs narrow types, bf16-true",
        LogsTypes,
        trainer={"precision": "bf16-true"},
        dtype=torch.float32,
        tolerance=0.02,
        by_hand=False,
    ),
    Entry("logs in all ways", LogsInAllWays, sizes=UNEQUAL, trainer={"precision": "64-true"}, tolerance=1e-9),
    Entry(
        "logs a count of steps, gradients first",
        CountsInBuffer,
        by_hand=False,
        algorithm=partial(Scaffold, 1.0, option=1),
    ),
]
LONG = [
    Entry("logs narrow types", LogsTypes, tolerance=1e-05),
    Entry("logs a count of steps, losses first", CountsInBuffer, by_hand=False, algorithm=partial(QFedAvg, 1.0, 1.0)),
    *one_by_one(Entry("returns None for a batch index", SkipsBatches)),
]
