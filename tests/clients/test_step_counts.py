"""The arithmetic of a step, counted by hand: two operations for each row and each value of a weight matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fl_lightning.clients.step_counts import StepCounts

X = torch.rand(16, 8)
CONVOLVES = ", and convolutions or recurrent layers"
#: What is done, the operations that are told, and whether it is products of matrices alone, and draws.
STEPS: dict[str, tuple[Callable[[], Any], str, bool, bool]] = {
    "product": (partial(nn.Linear(8, 4), X), "1.0 thousand operations", True, False),
    "one feature": (partial(nn.LSTM(1, 5), torch.zeros(7, 4, 1)), f"6.7 thousand operations{CONVOLVES}", False, False),
    "dropout": (partial(F.dropout, X), "0 operations", True, True),
    "own generator": (partial(torch.rand, 3, generator=torch.Generator()), "0 operations", True, False),
    "normalised": (partial(nn.LayerNorm(8), X), "0 operations", False, False),
    "thousand": (partial(torch.mm, torch.ones(1, 500), torch.ones(500, 1)), "1.0 thousand operations", True, False),
    "ten thousand": (partial(torch.mm, X[:1, :1], torch.ones(1, 5000)), "10 thousand operations", True, False),
    "batched": (lambda: X[None] @ X[None].mT, "4.1 thousand operations", False, False),
    "pooled": (partial(F.adaptive_avg_pool2d, X[None], 2), "0 operations", False, False),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_counted(name: str) -> None:
    step, told, only_matrices, draws = STEPS[name]
    with StepCounts() as counts:
        step()
    assert str(counts) == f"a client's step has {told}"
    assert (counts.only_matrices, counts.draws) == (only_matrices, draws)
