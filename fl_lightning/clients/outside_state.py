"""What a module saves beside its federated state, as it is when a round begins."""

from __future__ import annotations

from typing import Any

import torch
from torchmetrics import Metric

from fl_lightning.clients.state_vector import StateVector
from fl_lightning.plain_copies import plain_copy

#: Frozen parameters that together take more bytes are regarded as constant.
_FROZEN_BYTES = 2**26


class OutsideState:
    """Keeps what training may change in a module beside its federated state, so that a round leaves no trace.

    That is buffers that stay out of the federated state, such as those of layers in eval mode, frozen parameters, such
    as a teacher's, and states of metric objects that are saved (``metric.persistent(True)``).

    Args:
        vector: The federated state of the module.
    """

    def __init__(self, vector: StateVector) -> None:
        module, own = vector.module, set(map(id, vector.tensors()))
        frozen = {name: p for name, p in module.named_parameters() if id(p) not in own}
        held = {name: buffer for name, buffer in module.named_buffers() if id(buffer) not in own}
        if sum(parameter.nbytes for parameter in frozen.values()) <= _FROZEN_BYTES:
            held |= frozen
        dense = {name: tensor for name, tensor in held.items() if tensor.layout is torch.strided}
        self._tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in dense.items()}
        self._metrics: dict[str, tuple[Metric, dict[str, Any]]] = {}
        for path, part in module.named_modules():
            if isinstance(part, Metric) and any(part._persistent.values()):
                states = {state: plain_copy(getattr(part, state)) for state in part._defaults}
                self._metrics[path] = part, {**states, "_update_count": part._update_count}

    def put_back(self) -> None:
        """Put the module back to the round's beginning."""
        with torch.no_grad():
            for tensor, before in self._tensors.values():
                if tensor.shape == before.shape:
                    tensor.copy_(before)
        for metric, states in self._metrics.values():
            for name, value in states.items():
                setattr(metric, name, plain_copy(value))
            metric._computed = None

    def patched(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the module's ``state_dict`` with the values of the round's beginning."""
        before: dict[str, Any] = {name: copy for name, (_, copy) in self._tensors.items()}
        for path, (metric, states) in self._metrics.items():
            before |= {f"{path}.{name}": plain_copy(states[name]) for name in metric._defaults}
        return {name: before.get(name, value) for name, value in state_dict.items()}
