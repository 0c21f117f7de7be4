"""Tensors on their way to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Upload:
    """Host tensors that are filled and brought to a device again and again.

    On CUDA they are pinned and copied on a stream of their own, so that an epoch's samples travel while the device
    still computes the epoch before. On a CPU they are used where they are.

    Args:
        shapes: Of the tensors.
        dtypes: Theirs.
        device: Where they go.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype], device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        pinned = self._stream is not None
        self._host = [torch.empty(tuple(s), dtype=d, pin_memory=pinned) for s, d in zip(shapes, dtypes, strict=True)]

    def host(self) -> list[Tensor]:
        """Return the host tensors, to be filled; they wait until the last copy of them has been made."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host

    def send(self) -> list[Tensor]:
        """Return the tensors on the device, ready for what is computed next."""
        if self._stream is None or self._copied is None:
            return [tensor.to(self._device) for tensor in self._host]
        with torch.cuda.stream(self._stream):
            sent = [tensor.to(self._device, non_blocking=True) for tensor in self._host]
            self._copied.record()
        present = torch.cuda.current_stream(self._device)
        present.wait_event(self._copied)
        for tensor in sent:
            tensor.record_stream(present)  # its memory is not given to the next copy while it is in use
        return sent
