"""A small convolutional network, quick on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from fl_lightning.models.classifier import Classifier

_SMALLEST_IMAGE = 16


class ConvNetClassifier(Classifier):
    """Two 5x5 convolutions (32 and 64 channels), each with ReLU and 2x2 max-pooling, and a dense layer.

    For images of 3x32x32 and ten classes it has 69,706 parameters.

    Args:
        num_classes: Number of classes.
        lr: Learning rate of SGD.
        in_channels: Channels of an image.
        image_size: Height and width of an image, in pixels; at least 16.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.

    Raises:
        ValueError: If ``image_size`` is below 16, where nothing would be left for the dense layer.
    """

    def __init__(
        self,
        num_classes: int = 10,
        lr: float = 0.1,
        in_channels: int = 3,
        image_size: int = 32,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        if image_size < _SMALLEST_IMAGE:
            raise ValueError(f"image_size is {image_size}; it must be at least {_SMALLEST_IMAGE}: enlarge the images")
        super().__init__(num_classes, lr, momentum, weight_decay)
        side = ((image_size - 4) // 2 - 4) // 2
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, 32, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * side * side, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits of shape (batch, num_classes) for images (batch, in_channels, image_size, image_size)."""
        logits: Tensor = self.layers(x)
        return logits
