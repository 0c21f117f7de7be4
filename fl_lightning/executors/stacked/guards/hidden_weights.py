"""The module's weights and the trainer's counters are hidden while a stack's batches are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.client_loop import ClientLoop
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.stacked.program.trace import QUESTIONS
from fl_lightning.executors.stacked.tensor_slots import TensorSlots


class _Hidden(Tensor):
    """A tensor of which only the form is known; any other use raises ``CannotVectorize``."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function not in QUESTIONS:
            raise CannotVectorize(
                "the data, or a hook of the batches' transfer, use the module's weights, which are each client's own"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


class HiddenWeights:
    """Hides the module's weights, and the trainer's counters, from what reads and transfers batches.

    Args:
        loop: Has the counters.
        vector: The federated state of the module.
    """

    def __init__(self, loop: ClientLoop, vector: StateVector) -> None:
        self._loop, self._places = loop, TensorSlots(vector.module, vector.tensors())
        self._hidden = [tensor.detach().as_subclass(_Hidden) for tensor in vector.tensors()]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hide them."""
        with self._places.substituted(self._hidden), self._loop.hidden_counters():
            yield
