"""The models of several clients as stacked tensors: in the worked example, weights of shape ``(K, out, in)``."""

from __future__ import annotations

from collections.abc import Sequence

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
        self._num_parameters = len(vector.parameters)
        starts_alike = all(start is starts[0] for start in starts)
        views = [vector.layout.views(start) for start in (starts[:1] if starts_alike else starts)]
        self._whole: list[Tensor] = []
        tensor: Tensor
        rows: list[Tensor]
        for tensor, *rows in zip(vector.tensors(), *views, strict=True):
            stacked = rows[0].expand(len(starts), *tensor.shape) if starts_alike else torch.stack(rows)
            self._whole.append(_copy(stacked, tensor))
        self._take(len(starts))

    def keep(self, active: int) -> bool:
        """Go on with the first ``active`` rows alone; return whether that changes anything."""
        if active == len(self.parameters[0]):
            return False
        self._take(active)
        return True

    def _take(self, active: int) -> None:
        rows = [tensor[:active] for tensor in self._whole]
        #: The parameters of the clients at work, leaves of the graph, shape ``(active, *shape)`` each.
        self.parameters = [tensor.requires_grad_() for tensor in rows[: self._num_parameters]]
        #: Their buffers.
        self.buffers = rows[self._num_parameters :]

    def renew_buffers(self, rows: Sequence[int], values: Sequence[Tensor]) -> None:
        """Put new values, shape ``(len(rows), *shape)`` each, in the place of the buffers' rows."""
        for buffer, value in zip(self.buffers, values, strict=True):
            buffer[list(rows)] = value

    def vectors(self) -> list[Tensor]:
        """Return the models, shape ``(size,)`` each."""
        flat = [tensor.to(self._dtype).reshape(len(tensor), -1).unbind() for tensor in self._whole]
        return [torch.cat(parts) for parts in zip(*flat, strict=True)]


def _copy(rows: Tensor, like: Tensor) -> Tensor:
    if not like.is_floating_point():
        rows = rows.round()
    return rows.to(like.dtype, copy=True, memory_format=torch.contiguous_format)
