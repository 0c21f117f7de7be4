"""Small convolutional networks, among them those of McMahan et al. and of FedDyn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from fl_lightning.models.classifier import Classes, Classifier, MetricName
from fl_lightning.settings import Count, NotNegative

_KERNEL = 5


class ConvNetClassifier(Classifier):
    """5x5 convolutions, each with ReLU and 2x2 max-pooling, then dense layers with ReLU between them.

    For images of 3x32x32 and ten classes the default has 69,706 parameters. Networks of the papers:

    * McMahan et al. 2017, for images of 1x28x28: ``channels=(32, 64), hidden=(512,), padding="same"``, 1,663,370
      parameters. Gao et al. 2024 do not specify their CNN for Fashion-MNIST; it is taken to be this one.
    * Acar et al. 2021, for CIFAR: ``channels=(64, 64), hidden=(384, 192)``, 797,962 parameters for CIFAR-10 and
      815,332 for CIFAR-100.
    * LeNet-5 for CIFAR-10: ``channels=(6, 16), hidden=(120, 84)``, 62,006 parameters.

    Args:
        num_classes: Number of classes.
        lr: Learning rate of SGD.
        in_channels: Channels of an image.
        image_size: Height and width of an image, in pixels; at least 16 for two convolutions without padding.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        metrics: What validation and test log besides the loss, as in :class:`Classifier`.
        channels: Output channels of each convolution.
        hidden: Width of each dense layer before the one that gives the logits.
        padding: ``"valid"`` for convolutions that take 4 pixels off height and width, ``"same"`` for zero padding that
            keeps them.

    Raises:
        ValueError: If a width is below 1, ``padding`` is neither of the two, or ``image_size`` is so small that nothing
            would be left for the dense layers.

    Example:
        >>> import torch
        >>> ConvNetClassifier()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: Classes = 10,
        lr: NotNegative = 0.1,
        in_channels: Count = 3,
        image_size: Count = 32,
        momentum: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
        metrics: Sequence[MetricName] = ("acc",),
        channels: Sequence[Count] = (32, 64),
        hidden: Sequence[Count] = (),
        padding: Literal["valid", "same"] = "valid",
    ) -> None:
        super().__init__(num_classes, lr, momentum, weight_decay, metrics)
        side = _side_after(image_size, len(channels), _KERNEL - 1 if padding == "valid" else 0)
        layers: list[nn.Module] = []
        depth = in_channels
        for next_depth in channels:
            layers.append(nn.Conv2d(depth, next_depth, _KERNEL, padding=padding))
            layers.append(nn.ReLU())
            layers.append(nn.MaxPool2d(2))
            depth = next_depth
        layers.append(nn.Flatten())
        width = depth * side * side
        for next_width in hidden:
            layers.append(nn.Linear(width, next_width))
            layers.append(nn.ReLU())
            width = next_width
        layers.append(nn.Linear(width, num_classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes) for images (batch, in_channels, image_size, image_size)."""
        logits: Tensor = self.layers(x)
        return logits


def _side_after(image_size: int, convolutions: int, margin: int) -> int:
    """Return height and width after the convolutions, each of which takes ``margin`` pixels off and halves the rest."""
    side = image_size
    smallest = 1
    for _ in range(convolutions):
        side = (side - margin) // 2
        smallest = 2 * smallest + margin
    if image_size < smallest:
        raise ValueError(f"`image_size` must be at least {smallest}, got {image_size}. Enlarge the images.")
    return side
