"""An ordinary Lightning classifier: a network's loss, metrics and optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, cast

import lightning as L
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from fl_lightning.metrics import OneVsRestAUROC
from fl_lightning.settings import NotNegative, check_arguments, to_number

Classes = Annotated[int, "[2, inf)"]
MetricName = Literal["acc", "f1", "auroc"]


class Classifier(L.LightningModule):
    """Base of the classifiers: cross-entropy, accuracy and plain SGD. A subclass builds its layers and ``forward``.

    Logged once an epoch: ``train_loss``, ``train_acc``, ``val_loss``, ``test_loss``, and each of ``metrics`` as
    ``val_acc``, ``test_acc`` and so on; an accuracy is the share of correctly classified samples. They are taken over
    all samples of the set; for the mean over clients see :class:`~fl_lightning.ClientMetrics`. A subclass's own
    arguments become hyperparameters, too, and are checked against the limits in their types.

    Args:
        num_classes: Number of classes; ``forward`` gives logits of shape (batch, num_classes).
        lr: Learning rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay (L2 penalty) of SGD.
        metrics: What validation and test log besides the loss: ``"acc"`` for accuracy, ``"f1"`` for F1 averaged by the
            classes' numbers of samples (:func:`~fl_lightning.metrics.weighted_f1`), ``"auroc"`` for the area under the
            ROC curve (:func:`~fl_lightning.metrics.auroc`, NaN where only one class occurs).

    Raises:
        ValueError: If a number is out of range, or one of ``metrics`` is unknown.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> class Linear(Classifier):
        ...     def __init__(self, lr=0.1):
        ...         super().__init__(num_classes=3, lr=lr)
        ...         self.layer = nn.Linear(4, 3)
        ...     def forward(self, x):
        ...         return self.layer(x)
        >>> Linear()(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        num_classes: Classes,
        lr: NotNegative,
        momentum: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
        metrics: Sequence[MetricName] = ("acc",),
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_arguments(self, self.hparams)
        self.lr = to_number(lr)
        self.momentum = to_number(momentum)
        self.weight_decay = to_number(weight_decay)
        self.val_metrics = nn.ModuleDict()
        self.test_metrics = nn.ModuleDict()
        for name in metrics:
            self.val_metrics[name] = _metric(name, int(num_classes))
            self.test_metrics[name] = _metric(name, int(num_classes))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the mean cross-entropy of a batch ``(x, y)``, y of shape (batch,) with integer labels."""
        x, y = batch
        logits: Tensor = self(x)
        loss = F.cross_entropy(logits, y)
        # A plain mean, which Lightning averages by batch size: the same figure as a metric object's, but stateless, so
        # that the step can be vectorised over models.
        accuracy = (logits.argmax(dim=1) == y).float().mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=len(y))
        self.log("train_acc", accuracy, on_step=False, on_epoch=True, batch_size=len(y))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Return ``{"loss": ..., "preds": logits, "target": y}`` for a batch ``(x, y)``."""
        return self._evaluate(batch, "val", self.val_metrics)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Return ``{"loss": ..., "preds": logits, "target": y}`` for a batch ``(x, y)``."""
        return self._evaluate(batch, "test", self.test_metrics)

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return logits of shape (batch, num_classes) for inputs ``x``, or for a data module's batch ``(x, y)``.

        The predicted classes are ``logits.argmax(dim=1)``, the probabilities ``logits.softmax(dim=1)``.
        """
        x = batch if isinstance(batch, Tensor) else batch[0]
        return cast(Tensor, self(x))

    def configure_optimizers(self) -> Optimizer:
        """Return SGD over the parameters that are not frozen."""
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return SGD(trainable, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def _evaluate(self, batch: tuple[Tensor, Tensor], stage: str, metrics: nn.ModuleDict) -> dict[str, Tensor]:
        x, y = batch
        logits: Tensor = self(x)
        loss = F.cross_entropy(logits, y)
        self.log(f"{stage}_loss", loss, batch_size=len(y))
        for name, metric in cast(Mapping[str, Metric], metrics).items():
            metric.update(logits, y)
            self.log(f"{stage}_{name}", metric, prog_bar=name == "acc")
        return {"loss": loss, "preds": logits, "target": y}


def _metric(name: MetricName, num_classes: int) -> Metric:
    if name == "acc":
        return MulticlassAccuracy(num_classes, average="micro")
    if name == "f1":
        return MulticlassF1Score(num_classes, average="weighted")
    return OneVsRestAUROC()
