"""The convolutional network of NVFlare's simulations with CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from fl_lightning.models.classifier import Classes, Classifier, MetricName
from fl_lightning.settings import Count, NotNegative

_BLOCKS = ((3, 32, 64), (64, 128, 128), (128, 256, 256))


class VGG9Classifier(Classifier):
    """Three blocks of two 3x3 convolutions and 2x2 max-pooling, then three dense layers, for images of 3x32x32.

    The "moderate CNN" of FedMA and NVFlare: 3,491,530 parameters for ten classes, dropout of 0.05 on channels after the
    second block and of 0.1 before the first and the last dense layer.

    Args:
        num_classes: Number of classes.
        lr: Learning rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        metrics: What validation and test log besides the loss, as in :class:`Classifier`.
        cosine_rounds: Rounds over which the learning rate falls along a cosine to a hundredth, once a round; ``None``
            for a constant one.

    Raises:
        ValueError: If ``num_classes`` is below 2, or ``cosine_rounds`` below 1.

    Example:
        >>> import torch
        >>> VGG9Classifier()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: Classes = 10,
        lr: NotNegative = 0.01,
        momentum: NotNegative = 0.9,
        weight_decay: NotNegative = 0.0,
        metrics: Sequence[MetricName] = ("acc",),
        cosine_rounds: Count | None = None,
    ) -> None:
        super().__init__(num_classes, lr, momentum, weight_decay, metrics)
        self.cosine_rounds = cosine_rounds
        layers: list[nn.Module] = []
        for number, block in enumerate(_BLOCKS):
            for before, after in pairwise(block):
                layers.append(nn.Conv2d(before, after, 3, padding=1))
                layers.append(nn.ReLU())
            layers.append(nn.MaxPool2d(2))
            if number == 1:
                layers.append(nn.Dropout2d(0.05))
        layers += [
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(256 * 4 * 4, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(512, num_classes),
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes) for images (batch, 3, 32, 32)."""
        logits: Tensor = self.layers(x)
        return logits

    def configure_optimizers(self) -> OptimizerLRScheduler:  # type: ignore[override]
        """Return SGD, with the schedule of ``cosine_rounds``."""
        optimizer = super().configure_optimizers()
        if self.cosine_rounds is None:
            return optimizer
        scheduler = CosineAnnealingLR(optimizer, self.cosine_rounds, eta_min=0.01 * self.lr)
        return [optimizer], [scheduler]
