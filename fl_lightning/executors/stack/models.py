"""The models of several clients as stacked tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fl_lightning.clients.state_vector import StateVector


class ModelStack:
    """K models: for every tensor of the federated state one of shape ``(K, *shape)``.

    Rows are in the order of the clients' lengths, longest first, so that the clients still at work are the first rows.

    Args:
        vector: The federated state of the module.
        starts: The model from which each client starts, shape ``(size,)`` each.
    """

    def __init__(self, vector: StateVector, starts: Sequence[Tensor]) -> None:
        self._dtype = vector.dtype
        like = vector.tensors()
        if all(start is starts[0] for start in starts):
            rows = [view.expand(len(starts), *view.shape) for view in vector.views(starts[0])]
        else:
            rows = [torch.stack(views) for views in zip(*map(vector.views, starts), strict=True)]
        stacked = [_copy(row, tensor) for row, tensor in zip(rows, like, strict=True)]
        number = len(vector.parameters)
        self._whole = stacked
        #: Clients still at work.
        self.active = len(starts)
        #: The parameters of the clients at work, leaves of the graph, shape ``(active, *shape)`` each.
        self.parameters = [tensor.requires_grad_() for tensor in stacked[:number]]
        #: Their buffers.
        self.buffers = stacked[number:]

    def keep(self, active: int) -> bool:
        """Go on with the first ``active`` rows alone; return whether that changes anything."""
        if active == self.active:
            return False
        number, self.active = len(self.parameters), active
        self.parameters = [tensor.detach()[:active].requires_grad_() for tensor in self._whole[:number]]
        self.buffers = [tensor[:active] for tensor in self._whole[number:]]
        return True

    def renew_buffers(self, rows: Sequence[int], values: Sequence[Tensor]) -> None:
        """Put new values, shape ``(len(rows), *shape)`` each, in the place of the buffers' rows."""
        for buffer, value in zip(self.buffers, values, strict=True):
            if value.data_ptr() != buffer.data_ptr():
                buffer[list(rows)] = value.to(buffer.dtype)

    def vectors(self) -> Callable[[int], Tensor]:
        """Return a function that gives a row's model, shape ``(size,)``."""
        rows = [tensor.detach().to(self._dtype).reshape(len(tensor), -1).unbind() for tensor in self._whole]

        def vector_of(row: int) -> Tensor:
            return torch.cat([own[row] for own in rows])

        return vector_of


def _copy(rows: Tensor, like: Tensor) -> Tensor:
    if not like.is_floating_point():
        rows = rows.round()
    return rows.to(like.dtype, copy=True, memory_format=torch.contiguous_format)
