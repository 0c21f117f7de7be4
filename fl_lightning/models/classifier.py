"""An ordinary Lightning classifier: a network's loss, metrics and optimizer."""

from __future__ import annotations

import lightning as L
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torchmetrics.classification import MulticlassAccuracy


class Classifier(L.LightningModule):
    """Base of the classifiers: cross-entropy, accuracy and plain SGD. A subclass builds its layers and ``forward``.

    Logged once an epoch: ``train_loss``, ``train_acc``, ``val_loss``, ``val_acc``, ``test_loss``, ``test_acc``; an
    accuracy is the share of correctly classified samples. A subclass's own arguments become hyperparameters, too.

    Args:
        num_classes: Number of classes; ``forward`` gives logits of shape (batch, num_classes).
        lr: Learning rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay (L2 penalty) of SGD.
    """

    def __init__(self, num_classes: int, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.val_acc = MulticlassAccuracy(num_classes, average="micro")
        self.test_acc = MulticlassAccuracy(num_classes, average="micro")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Returns the mean cross-entropy of a batch ``(x, y)``, y of shape (batch,) with integer labels."""
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        # A plain mean, which Lightning averages by batch size: the same figure as a metric object's, but stateless, so
        # that the step can be vectorised over models.
        accuracy = (logits.argmax(dim=1) == y).float().mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=len(y))
        self.log("train_acc", accuracy, on_step=False, on_epoch=True, batch_size=len(y))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Returns ``{"loss": ..., "preds": logits, "target": y}`` for a batch ``(x, y)``."""
        return self._evaluate(batch, "val", self.val_acc)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Returns ``{"loss": ..., "preds": logits, "target": y}`` for a batch ``(x, y)``."""
        return self._evaluate(batch, "test", self.test_acc)

    def configure_optimizers(self) -> Optimizer:
        """Returns SGD over the parameters that are not frozen."""
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return SGD(trainable, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def _evaluate(self, batch: tuple[Tensor, Tensor], stage: str, accuracy: MulticlassAccuracy) -> dict[str, Tensor]:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        accuracy.update(logits, y)
        self.log(f"{stage}_loss", loss, batch_size=len(y))
        self.log(f"{stage}_acc", accuracy, batch_size=len(y))
        return {"loss": loss, "preds": logits, "target": y}
