"""Plain SGD on stacks of linear layers: batched matrix products, each layer stepped in its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.stacked_loop import Logged, StackedLoop
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.base import CannotVectorize
from fl_lightning.executors.stacked.batching import StackedBatch
from fl_lightning.executors.stacked.stack import substituted
from fl_lightning.executors.stacked.stacked_tensor import StackedTensor, StackedWeight


class FusedStep:
    """Runs ``training_step`` once for all models of a stack and steps them.

    It works for networks of linear layers, pointwise functions and cross-entropy, each parameter used once, in one
    linear layer: then ``w -= lr * gradient`` can be taken as the gradient comes, by one product that no gradient tensor
    leaves. Everything else raises ``CannotVectorize`` before anything is changed.

    Args:
        stacked: Runs the module's ``training_step`` and records what it logs.
        vector: The federated state of the module.
    """

    def __init__(self, stacked: StackedLoop, vector: StateVector) -> None:
        self._stacked = stacked
        self._places = vector.places()
        #: Whether the module may be trained this way.
        self.works = len(vector.tensors()) == len(vector.parameters)

    def __call__(
        self, weights: Sequence[StackedWeight], batch: StackedBatch, batch_idx: int
    ) -> tuple[Tensor, Logged, list[Tensor]]:
        """Take a step; return the losses, shape ``(K,)``, and what was logged, with values of shape ``(K,)``.

        Args:
            weights: The parameters; changed in place.
            batch: One batch a client.
            batch_idx: Its position in the clients' local training.
        """
        stand_ins = [StackedTensor(tensor) for tensor in batch.tensors]
        with self._stacked.recording() as logged, substituted(self._places, weights):
            try:
                loss: Any = self._stacked.training_step(batch.rebuild(stand_ins), batch_idx)
            except Exception as error:  # whatever a training step raises when it is given no real tensors
                raise CannotVectorize(f"{type(error).__name__}: {error}") from error
        if type(loss) is not StackedTensor or loss.held.dim() != 1:
            raise CannotVectorize("the loss does not come from a linear layer")
        losses = loss.held
        losses.backward(torch.ones_like(losses))
        number = len(losses)
        values = [value.held if isinstance(value, StackedTensor) else value.expand(number) for value in logged.values]
        return losses.detach(), logged, values
