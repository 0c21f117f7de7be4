"""MobileNetV2, pre-trained on ImageNet and fine-tuned from its last bottleneck on."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import MobileNet_V2_Weights, mobilenet_v2

from fl_lightning.files import ENVIRONMENT_VARIABLE, data_folder
from fl_lightning.models.classifier import Classes, Classifier, MetricName
from fl_lightning.models.frozen import FrozenPrefix
from fl_lightning.settings import Count, NotNegative

#: How many of torchvision's 19 feature layers are frozen.
_FROZEN_LAYERS = {"last_bottleneck": 17, "last_conv": 18, "classifier": 19}
_WEIGHTS = MobileNet_V2_Weights.IMAGENET1K_V1
_URL: str = _WEIGHTS.url
_WEIGHTS_FILE = _URL.rpartition("/")[2]


class MobileNetV2Classifier(Classifier):
    """torchvision's MobileNetV2 (width 1.0) with a frozen first part, retrained from there on (as in Xue et al. 2021).

    Trained by default are the last inverted residual (``features[17]``, 473,920 parameters), the last convolution
    (``features[18]``, 412,160) and the classification layer (12,810 for ten classes): 898,890 parameters, BatchNorm's
    scales and shifts included. The other 1,337,792 are a :class:`FrozenPrefix`, always in evaluation mode;
    with :class:`~fl_lightning.callbacks.FrozenPrefixCache` their output is computed once.

    Images may have any size. Where the trained part sees a map of one pixel (images of 32x32 or less, see
    ``image_size``), its BatchNorm cannot train on a batch of one image.

    Args:
        num_classes: Number of classes.
        lr: Learning rate of SGD.
        image_size: Height and width, in pixels, to which inputs are resized (bilinear); None leaves them as they come.
        weights: ``"imagenet"`` takes torchvision's ``IMAGENET1K_V1`` weights. It looks for
            ``weights/mobilenet_v2-b0353104.pth``, then ``mobilenet_v2-b0353104.pth``, in the folder that the
            environment variable ``FL_LIGHTNING_DATA`` names, else in ``data``; then in torch.hub's cache, into which
            it downloads them otherwise. A path reads them from a file, None draws them at random. To rebuild the
            module from a checkpoint, pass ``weights=None``: the checkpoint holds all weights.
        trainable_from: The first trained layer: ``"last_bottleneck"``, ``"last_conv"`` or ``"classifier"``.
        reinitialize_tail: Draw the trained convolutions again, as in the experiments; False keeps pre-trained ones.
            The classification layer is new either way.
        dropout: Probability with which an input of the classification layer is dropped.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        metrics: What validation and test log besides the loss, as in :class:`Classifier`.

    Raises:
        ValueError: If ``trainable_from`` is unknown, ``image_size`` is not positive, or the file in ``weights`` does
            not hold this network's weights.
        FileNotFoundError: If the file in ``weights`` does not exist.
        RuntimeError: If the download fails.

    Example:
        >>> import torch
        >>> module = MobileNetV2Classifier(num_classes=10, weights=None)
        >>> module(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: Classes = 10,
        lr: NotNegative = 0.2,
        *,
        image_size: Count | None = None,
        weights: str | os.PathLike[str] | None = "imagenet",
        trainable_from: Literal["last_bottleneck", "last_conv", "classifier"] = "last_bottleneck",
        reinitialize_tail: bool = True,
        dropout: Annotated[float, "[0, 1]"] = 0.2,
        momentum: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
        metrics: Sequence[MetricName] = ("acc",),
    ) -> None:
        # A checkpoint must not hold a path.
        if isinstance(weights, os.PathLike):
            weights = str(weights)
        super().__init__(num_classes, lr, momentum, weight_decay, metrics)
        network = mobilenet_v2(weights=None)
        layers: nn.Sequential = network.features
        frozen = _FROZEN_LAYERS[trainable_from]
        new_tail = copy.deepcopy(layers[frozen:])
        if weights is not None:
            _load_weights(network, weights)
        resize: nn.Module = nn.Identity()
        if image_size is not None:
            resize = nn.Upsample(size=(image_size, image_size), mode="bilinear")
        self.prefix = FrozenPrefix(nn.Sequential(resize, *layers[:frozen]))
        self.tail = new_tail if reinitialize_tail else layers[frozen:]
        logits = nn.Linear(network.last_channel, num_classes)
        # torchvision initialises the last layer like this.
        nn.init.normal_(logits.weight, std=0.01)
        nn.init.zeros_(logits.bias)
        self.classifier = nn.Sequential(nn.Dropout(dropout), logits)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes) for images of shape (batch, 3, height, width)."""
        maps = self.tail(self.prefix(x))
        features = F.adaptive_avg_pool2d(maps, 1).flatten(1)
        logits: Tensor = self.classifier(features)
        return logits


def _load_weights(network: nn.Module, weights: str) -> None:
    file = _in_data_folder() if weights == "imagenet" else Path(weights)
    if file is None:
        network.load_state_dict(_download())
        return
    try:
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except (RuntimeError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"`weights` must be a file with the weights of torchvision's mobilenet_v2, such as {_WEIGHTS_FILE} from "
            f"{_URL}, got {file}. PyTorch says: {str(error)[:300]}"
        ) from error


def _in_data_folder() -> Path | None:
    """Return the file of the ImageNet weights, if it is in the folder of the data."""
    for folder in (data_folder() / "weights", data_folder()):
        file: Path = folder / _WEIGHTS_FILE
        if file.is_file():
            return file
    return None


def _download() -> Mapping[str, Any]:
    try:
        state: Mapping[str, Any] = _WEIGHTS.get_state_dict(progress=True, check_hash=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise RuntimeError(
            f"`weights='imagenet'`: {_WEIGHTS_FILE} could not be downloaded or read ({error}). Put the file from "
            f"{_URL} at {data_folder() / 'weights' / _WEIGHTS_FILE} ({ENVIRONMENT_VARIABLE} in the environment "
            "names another folder of data), or give its path, or `weights=None` for random weights."
        ) from None
    return state
