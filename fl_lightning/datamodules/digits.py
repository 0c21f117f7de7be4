"""Small handwritten digits as colour images: real data that need no download."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fl_lightning.data import ImageDataModule, Source


class DigitsDataModule(ImageDataModule):
    """1,797 handwritten digits of 8x8 pixels, enlarged to 3x32x32, distributed among clients.

    For quick runs of image models and for examples without files: the images have the shape of CIFAR-10's, but they
    are an easier task. Arguments are those of :class:`~fl_lightning.data.ImageDataModule`.

    They are the test set of the UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak 1998, CC BY 4.0),
    the same as scikit-learn's digits.

    Example:
        >>> from fl_lightning.partitioners import DirichletPartitioner
        >>> data = DigitsDataModule(DirichletPartitioner(20, alpha=0.3, seed=0), batch_size=16)
        >>> data.setup()
        >>> data.describe_clients()
        '12 of 20 clients train (1,068 samples), 4 validate and 4 test'
    """

    mean = (0.3052, 0.3052, 0.3052)
    std = (0.3236, 0.3236, 0.3236)

    def load(self) -> Source:
        """Read the digits and enlarge them bilinearly to bytes, shape (1797, 3, 32, 32)."""
        content = files(__package__).joinpath("digits.npz")
        with content.open("rb") as file, np.load(file) as digits:
            images = digits["images"]
            labels = digits["labels"].astype(np.int64)
        # The digits have 17 levels, 0 to 16.
        gray = torch.from_numpy(images).float().unsqueeze(1) * (255 / 16)
        gray = F.interpolate(gray, size=(32, 32), mode="bilinear")
        colour = gray.round().to(torch.uint8).repeat(1, 3, 1, 1)
        dataset = TensorDataset(colour, torch.from_numpy(labels))
        return Source(dataset, labels, class_names=[str(digit) for digit in range(10)])
