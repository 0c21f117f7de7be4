"""How training steps log and what they return, as in Lightning's documentation."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import QFedAvg, Scaffold
from zoo.entry import Entry
from zoo.modules.base import Classifier, perceptron


class LogsEachStep(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("train_loss", loss)
        return loss


class LogsStepAndEpoch(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True, logger=True)
        return loss


class LogsDict(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss, acc = self._shared_eval_step(batch, batch_idx)
        self.log_dict({"train_acc": acc, "train_loss": loss}, on_step=False, on_epoch=True)
        return loss

    def _shared_eval_step(self, batch: Any, batch_idx: int) -> tuple[Tensor, Tensor]:
        x, y = batch
        y_hat = self(x)
        return F.cross_entropy(y_hat, y), (y_hat.argmax(1) == y).double().mean()


class SharedStep(Classifier):
    """One step for all stages, with the stage in the names."""

    def shared_step(self, batch: Any, stage: str) -> dict[str, Tensor]:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log(f"{stage}/loss", loss, on_epoch=True, on_step=False, batch_size=len(y))
        self.log(f"{stage}/entropy", torch.distributions.Categorical(logits=logits).entropy().mean())
        return {"loss": loss, "logits": logits.detach()}

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return self.shared_step(batch, "train")


class SavesHyperparameters(L.LightningModule):
    """The guide's module with hyperparameters."""

    def __init__(self, hidden: int = 5, learning_rate: float = 0.1, smoothing: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = perceptron(width=hidden)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y, label_smoothing=self.hparams.smoothing)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)


class NoBatchIndex(Classifier):
    def training_step(self, batch: Any) -> Tensor:  # type: ignore[override]
        return self.loss(batch, 0)


class SkipsBatches(Classifier):
    """Returns nothing for the second batch of a client."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        return None if batch_idx == 1 else self.loss(batch, batch_idx)


class SkipsByContent(Classifier):
    """Returns nothing for batches of which it does not like the look."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if (batch[1] == 0).all():
            return None
        return self.loss(batch, batch_idx)


class LogsItem(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("train_loss", loss.item(), on_step=False, on_epoch=True)
        return loss


class LogsReductions(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        for reduce in ("min", "max", "sum", "mean"):
            self.log(f"loss_{reduce}", loss, on_step=False, on_epoch=True, reduce_fx=reduce)
        self.log("weighted", loss, on_step=False, on_epoch=True, batch_size=1)
        self.log("samples", float(len(batch[1])), on_step=False, on_epoch=True, reduce_fx="sum")
        return loss


class LogsSometimes(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        if batch_idx % 2 == 0:
            self.log("even_loss", loss, on_step=True, on_epoch=True)
        return loss


class LogsOptionalPart(Classifier):
    """Logs the auxiliary loss only where its weight is not zero."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        weight = 0.0 if self.current_epoch == 0 else 0.01
        if weight:
            auxiliary = self.layers[0].weight.square().sum()
            self.log("auxiliary", auxiliary, on_step=False, on_epoch=True)
            loss = loss + weight * auxiliary
        return loss


class LogsAtTheEnd(Classifier):
    """Keeps losses and logs their mean when the epoch ends, as the guide to migration shows."""

    def prepare(self) -> None:
        self.training_step_outputs: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.training_step_outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("training_epoch_average", torch.stack(self.training_step_outputs).mean())
        self.training_step_outputs.clear()


class CallsExperiment(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.logger.experiment.add_scalar("direct", float(len(batch[1])), self.current_epoch)
        return loss


class LogsInHook(Classifier):
    """Logs the norm of gradients as Lightning's documentation does."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [p.grad.norm() for p in self.layers.parameters() if p.grad is not None]
        self.log("grad_norm", torch.stack(norms).norm(), on_step=False, on_epoch=True)


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


ENTRIES = [
    Entry("logs over the epoch", Classifier),
    Entry("logs each step", LogsEachStep, long=True),
    Entry("logs step and epoch", LogsStepAndEpoch),
    Entry("log_dict and a shared step", LogsDict, long=True),
    Entry("shared step, returns a dict", SharedStep, long=True),
    Entry("save_hyperparameters", SavesHyperparameters, long=True),
    Entry("training_step(batch)", NoBatchIndex, long=True),
    Entry("returns None for a batch index", SkipsBatches, alone="a batch without a loss", long=True),
    Entry("returns None by content", SkipsByContent, alone="a batch without a loss", long=True),
    Entry("logs .item()", LogsItem, long=True),
    Entry("logs min, max, sum", LogsReductions),
    Entry("logs every other batch", LogsSometimes, long=True),
    Entry("logs from the second epoch on", LogsOptionalPart, long=True),
    Entry("keeps losses in a list", LogsAtTheEnd, alone="changes what clients share", long=True),
    Entry("logger.experiment.add_scalar", CallsExperiment, alone="calls the logger", long=True),
    Entry("logs gradient norms in a hook", LogsInHook, alone="hooks of batches", long=True),
    Entry("logs parameters and infinite values", LogsParameters),
    Entry("logs by a weight", LogsByWeight),
    Entry("logs narrow types", LogsTypes, tolerance=1e-5),
    Entry(
        "logs narrow types, bf16-true",
        LogsTypes,
        trainer={"precision": "bf16-true"},
        dtype=torch.float32,
        tolerance=2e-2,
        by_hand=False,
        long=True,
    ),
    Entry("logs a count of steps", CountsInBuffer, long=True),
    Entry(
        "logs a count of steps, gradients first",
        CountsInBuffer,
        by_hand=False,
        algorithm=partial(Scaffold, 1.0, option=1),
    ),
    Entry(
        "logs a count of steps, losses first",
        CountsInBuffer,
        by_hand=False,
        algorithm=partial(QFedAvg, 1.0, 1.0),
        long=True,
    ),
]
