"""Single, double and mixed precision."""

from __future__ import annotations

import torch
from torch import nn

from zoo.entry import Entry, one_by_one
from zoo.modules.base import Classifier, perceptron

ENTRIES = [
    Entry(
        "bf16-mixed, LayerNorm",
        lambda: Classifier(perceptron(nn.LayerNorm(5))),
        dtype=torch.float32,
        tolerance=0.02,
        trainer={"precision": "bf16-mixed"},
    ),
]
LONG = [
    Entry("single precision", Classifier, dtype=torch.float32, tolerance=0.0001),
    Entry("64-true", Classifier, dtype=torch.float32, trainer={"precision": "64-true"}),
    *one_by_one(Entry("anomalies looked for", Classifier, trainer={"detect_anomaly": True})),
]
