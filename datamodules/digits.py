"""scikit-learn's digits as small colour images: real data that need no download."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fl_lightning.data import ImageDataModule, Source


class DigitsDataModule(ImageDataModule):
    """1,797 handwritten digits of 8x8 pixels, enlarged to 3x32x32, distributed among clients.

    For quick runs of image models and for examples without files: the images have the shape of CIFAR-10's, but they
    are an easier task. Arguments are those of :class:`~fl_lightning.data.ImageDataModule`.
    """

    mean = (0.3052, 0.3052, 0.3052)
    std = (0.3236, 0.3236, 0.3236)

    def load(self) -> Source:
        """Read the digits from scikit-learn and enlarge them bilinearly to bytes, shape (1797, 3, 32, 32)."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        gray = torch.from_numpy(digits.images).float().unsqueeze(1) * (255 / 16)  # 17 levels, 0 to 16
        gray = F.interpolate(gray, size=(32, 32), mode="bilinear").round().to(torch.uint8)
        labels = digits.target.astype(np.int64)
        return Source(
            TensorDataset(gray.repeat(1, 3, 1, 1), torch.from_numpy(labels)),
            labels,
            class_names=[str(name) for name in digits.target_names],
        )
