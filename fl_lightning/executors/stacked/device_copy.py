"""Tensors on their way to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class DeviceCopy:
    """Host tensors that are filled and brought to a device again and again.

    On CUDA they are pinned, so that the host goes on while they are copied. On a CPU they are used where they are.

    Args:
        shapes: Shapes of the tensors.
        dtypes: Types of the tensors.
        device: Device to which they are copied.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype], device: torch.device) -> None:
        self._device = device
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        pinned = self._copied is not None
        self._host = [torch.empty(tuple(s), dtype=d, pin_memory=pinned) for s, d in zip(shapes, dtypes, strict=True)]
        #: Shapes of the tensors.
        self.shapes = list(shapes)

    def host(self) -> list[Tensor]:
        """Return the host tensors, to be filled; it waits until the last copy of them has been made."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host

    def send(self) -> list[Tensor]:
        """Return the tensors on the device."""
        sent = [tensor.to(self._device, non_blocking=self._copied is not None) for tensor in self._host]
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._device))
        return sent
