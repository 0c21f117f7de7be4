"""The sums, gathered objects and local work of a federation without other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning.arguments import got


def sum_alone(tensor: Tensor) -> Tensor:
    """Return the sum of a single tensor, which is a copy of it, of the same shape.

    Raises:
        TypeError: If it is no tensor.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"`federation.sum_over_ranks` needs a tensor, got {got(tensor)}. Give a tensor, such as "
            "`torch.tensor(number, device=federation.model.device)`, or take `federation.gather`, which returns any "
            "object of each process in a list."
        )
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def gather_alone(mine: Any) -> list[Any]:
    """Return a list of a single object."""
    return [mine]


def no_local_work(kind: str) -> Sequence[int]:
    """Return the work of no client."""
    return []
