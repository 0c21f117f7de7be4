"""Keeps the part of a module's saved state that is not federated, as it is when a round begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.metric_replay import metric_states, restore_metric_states
from fl_lightning.clients.state_vector import StateVector

#: Tensors of more bytes are kept only if all of them together take no more than the second number.
_SMALL, _TOGETHER = 2**20, 2**26


class OutsideState:
    """Keeps what training may change in a module beside its federated state, so that a round leaves no trace.

    That is buffers that stay out of the federated state, such as those of layers in eval mode, frozen parameters, such
    as a teacher's, and states of metric objects that are saved (``metric.persistent(True)``). Where there are more than
    64 MiB of tensors of more than 1 MiB each, these are regarded as constant: a large frozen network is not copied.

    Args:
        vector: The federated state of the module.
    """

    def __init__(self, vector: StateVector) -> None:
        own = set(map(id, vector.tensors()))
        self._places: list[tuple[str, dict[str, Any], str, Tensor]] = []  # name, holder, its key, tensor
        self._module, self._saved = vector.module, dict[str, Any]()  # by metric objects
        for path, part in vector.module.named_modules(remove_duplicate=False):
            for held in (part._parameters, part._buffers):
                for key, tensor in held.items():
                    if tensor is not None and id(tensor) not in own and tensor.layout is torch.strided:
                        self._places.append((f"{path}.{key}".lstrip("."), held, key, tensor))
            if isinstance(part, Metric):
                self._saved |= part.state_dict(prefix=f"{path}.")  # of copies
        self._metrics = metric_states(vector.module) if self._saved else {}
        tensors = {id(tensor): tensor for *_, tensor in self._places}
        large = sum(tensor.nbytes for tensor in tensors.values() if tensor.nbytes > _SMALL)
        limit = float("inf") if large <= _TOGETHER else _SMALL
        self._before = {key: t.detach().clone() for key, t in tensors.items() if t.nbytes <= limit}

    def put_back(self) -> None:
        """Put the module back to the round's beginning."""
        for _, held, key, tensor in self._places:
            before = self._before.get(id(tensor))
            if before is None:
                continue
            if tensor.is_inference() or tensor.shape != before.shape:
                held[key] = before.clone()
                continue
            held[key] = tensor  # training may have put another in its place
            with torch.no_grad():
                tensor.copy_(before)
        restore_metric_states(self._module, self._metrics)

    def patched(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the module's ``state_dict`` with the values of the round's beginning."""
        tensors = {name: self._before[id(t)] for name, _, _, t in self._places if id(t) in self._before}
        before = {**tensors, **self._saved}
        return {name: before.get(name, value) for name, value in state_dict.items()}
