"""Single, double and mixed precision."""

from __future__ import annotations

import torch
from torch import nn

from zoo.entry import Entry, images
from zoo.modules.base import Classifier, perceptron
from zoo.modules.vision import lenet

ENTRIES = [
    Entry("single precision", Classifier, dtype=torch.float32, tolerance=1e-4),
    Entry(
        "single precision, convolutions",
        lambda: Classifier(lenet()),
        images,
        dtype=torch.float32,
        tolerance=1e-4,
        long=True,
    ),
    Entry("64-true", Classifier, dtype=torch.float32, trainer={"precision": "64-true"}, long=True),
    Entry(
        "bf16-mixed", Classifier, dtype=torch.float32, tolerance=2e-2, trainer={"precision": "bf16-mixed"}, long=True
    ),
    Entry(
        "bf16-mixed, LayerNorm",
        lambda: Classifier(perceptron(nn.LayerNorm(5))),
        dtype=torch.float32,
        tolerance=2e-2,
        trainer={"precision": "bf16-mixed"},
    ),
]
