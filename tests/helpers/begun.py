"""Parts in a fit that has begun, with clients of 1, 2 and 3 samples, and their states in plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fl_lightning import parts
from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.messages import OptimizerState

#: A weight and a bias, and a buffer.
LAYOUT = parts.Layout(
    ("head.weight", "head.bias", "count"), (torch.Size([1, 2]), torch.Size([1]), torch.Size([1])), 2, (32, 32, 32)
)
MODEL = [1.0, 2.0, 3.0, 4.0]
UNIFORM = {"aggregation": parts.WeightedMean("uniform")}


def begun(**options: Any) -> parts.Algorithm:
    """Return an algorithm whose fit with clients of 1, 2 and 3 samples has begun."""
    algorithm = parts.Algorithm(**{"sampler": parts.UniformSampler(2), **options})
    held = OptimizerState(torch.tensor([5.0]), torch.tensor([6.0, 7.0], dtype=torch.float64))
    model = torch.tensor(MODEL, dtype=torch.float64)
    federation = parts.Federation(np.array([1, 2, 3]), model, LAYOUT, optimizer_state=lambda: held)
    algorithm.run = parts.Run.begin(algorithm, federation)
    return algorithm


def federation_of(sizes: Sequence[int], length: int = 1, **options: Any) -> parts.Federation:
    """Return clients of these sizes, whose model is one tensor of zeros."""
    model = torch.zeros(length, dtype=torch.float64)
    return parts.Federation(np.array(sizes), model, parts.Layout.of_parameters(length), **options)


def shown(value: Any) -> Any:
    """Return a state in plain numbers; of vectors of clients the first one, and client 2's weight in the mean."""
    if isinstance(value, ClientVectors):
        first = value[2]
        before = value.mean
        value[2] = first + 1.0
        value.commit()
        weights = (value.mean - before).round(decimals=6).tolist()
        assert weights == weights[:1] * len(weights)
        return first.tolist(), weights[0] if weights else None
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return value.round(decimals=6).tolist() if isinstance(value, torch.Tensor | np.ndarray) else value
