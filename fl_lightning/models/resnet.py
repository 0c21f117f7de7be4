"""ResNet-18 with group normalisation, which unlike batch normalisation keeps no statistics of a client's data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torchvision.models import resnet18

from fl_lightning.models.classifier import Classes, Classifier, MetricName
from fl_lightning.settings import Count, NotNegative


class ResNet18Classifier(Classifier):
    """torchvision's ResNet-18, untrained, with GroupNorm in BatchNorm's place (as the code of Acar et al. 2021 has it).

    It begins as for ImageNet, with a 7x7 convolution of stride 2 and pooling, for images of any size. For ten
    classes it has 11,181,642 parameters.

    Args:
        num_classes: Number of classes.
        lr: Learning rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        metrics: What validation and test log besides the loss, as in :class:`Classifier`.
        groups: Groups of channels of each normalisation; a power of two up to 64.

    Raises:
        ValueError: If ``groups`` does not divide the 64 channels of the first layers.

    Example:
        >>> import torch
        >>> ResNet18Classifier()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: Classes = 10,
        lr: NotNegative = 0.1,
        momentum: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
        metrics: Sequence[MetricName] = ("acc",),
        groups: Count = 2,
    ) -> None:
        super().__init__(num_classes, lr, momentum, weight_decay, metrics)
        if 64 % groups:
            raise ValueError(f"`groups` must divide 64, the channels of the first layers, got {groups}.")
        norm_layer = partial(nn.GroupNorm, groups)
        self.network = resnet18(weights=None, num_classes=num_classes, norm_layer=norm_layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes) for images of shape (batch, 3, height, width)."""
        logits: Tensor = self.network(x)
        return logits
