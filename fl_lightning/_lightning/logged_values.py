"""The values that stacked clients logged on one batch each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.rates import GroupOptions
from fl_lightning._lightning.recording import BatchValue, LogCall, Logged, as_logged, logged_type


@dataclass(eq=False)
class Entry:
    """The values that some clients logged on one batch each.

    Attributes:
        logged: Their calls of `self.log` and of metric objects.
        tensors: Its tensors, shape ``(K, ...)`` each.
        slots: The clients' slots, in the order of the tensors' rows.
        steps: Whether an optimizer step ended with each client's batch.
        batch: Returns the first client's batch, for its size, where all batches are of one size.
        sizes: Each client's batch size, where it is known.
        settings: The optimizer's settings at the step, where they change within a client.
    """

    logged: Logged
    tensors: Sequence[Tensor]
    slots: Sequence[int]
    steps: Sequence[bool]
    batch: Callable[[], Any] | None = None
    sizes: Sequence[int] | None = None
    settings: GroupOptions | None = None
    #: The values that metric objects returned, for each client's row and each call.
    returned: dict[tuple[int, int], Any] = field(default_factory=dict)
    #: The values of single steps that metric objects have when they are logged, for each row and place of ``self.log``.
    cached: dict[tuple[int, int], Any] = field(default_factory=dict)

    def batch_sizes(self) -> Sequence[int]:
        """Return each client's batch size."""
        if self.sizes is None:
            assert self.batch is not None
            self.sizes = [extract_batch_size(self.batch())] * len(self.slots)
        return self.sizes

    def values(self, call: LogCall) -> Tensor:
        """Return what each client logged, shape ``(K,)``."""
        if isinstance(call.value, BatchValue):
            return torch.stack([self.value(call, row) for row in range(len(self.slots))])
        assert isinstance(call.value, int)
        return as_logged(self.tensors[call.value])

    def weights(self, call: LogCall) -> Sequence[float]:
        """Return how much each client's number counts in a mean."""
        if call.weight is not None:
            return self.tensors[call.weight].tolist()
        size = call.options.get("batch_size")
        return self.batch_sizes() if size is None else [size] * len(self.slots)

    def value(self, call: LogCall, row: int) -> Any:
        """Return what one client logged."""
        if not isinstance(call.value, BatchValue):
            return self.values(call)[row]
        returned = self.returned[row, call.value.call]
        if call.value.key is not None and call.value.key not in returned:
            raise CannotVectorize("a collection of metric objects returns values under other names than those of each")
        value = returned if call.value.key is None else returned[call.value.key]
        return as_logged(value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=logged_type()))


ClientEntries = list[tuple[Entry, int]]  # one client's batches: entries, and the client's row in them
