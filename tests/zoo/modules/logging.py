"""How training steps log and what they return, as in Lightning's documentation."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


class LogsWeights(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("norm", torch.linalg.vector_norm(self.layers[0].weight.detach()), on_step=False, on_epoch=True)
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


class CallsLogMetrics(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        if batch_idx == 0:
            self.logger.log_metrics({"first_loss": loss.item()}, step=self.global_step)
        return loss


class LogsInHook(Classifier):
    """Logs the norm of gradients as Lightning's documentation does."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [p.grad.norm() for p in self.layers.parameters() if p.grad is not None]
        self.log("grad_norm", torch.stack(norms).norm(), on_step=False, on_epoch=True)


class ChecksForNan(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        if torch.isnan(loss):
            raise ValueError("the loss is not a number")
        return loss


class WithExample(Classifier):
    def prepare(self) -> None:
        self.example_input_array = torch.zeros(2, 6, dtype=torch.float64)
        self.criterion = nn.CrossEntropyLoss()

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return self.criterion(self.forward(x), y)


ENTRIES = [
    Entry("logs over the epoch", Classifier),
    Entry("logs each step", LogsEachStep),
    Entry("logs step and epoch", LogsStepAndEpoch),
    Entry("log_dict and a shared step", LogsDict),
    Entry("shared step, returns a dict", SharedStep),
    Entry("save_hyperparameters", SavesHyperparameters),
    Entry("training_step(batch)", NoBatchIndex),
    Entry("returns None for a batch index", SkipsBatches),
    Entry("returns None by content", SkipsByContent),
    Entry("logs .item()", LogsItem),
    Entry("logs min, max, sum", LogsReductions),
    Entry("logs every other batch", LogsSometimes),
    Entry("logs from the second epoch on", LogsOptionalPart),
    Entry("logs a weight's norm", LogsWeights),
    Entry("keeps losses in a list", LogsAtTheEnd),
    Entry("logger.experiment.add_scalar", CallsExperiment),
    Entry("logger.log_metrics", CallsLogMetrics),
    Entry("logs gradient norms in a hook", LogsInHook),
    Entry("raises for NaN", ChecksForNan),
    Entry("example_input_array, nn loss", WithExample),
]
