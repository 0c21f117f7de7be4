"""The federated state of a module as a checkpoint has left it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from fl_lightning.clients.state_vector import StateVector
from fl_lightning.parts.messages import same_values


class LoadedWeights:
    """Remembers a checkpoint's weights and buffers, to see what hooks write into them before the fit begins.

    Buffers that the module's ``state_dict`` leaves out are put into the module first.

    Args:
        module: The module, with the checkpoint's weights.
        unsaved: The result of :func:`unsaved_buffers` when the checkpoint was written.
    """

    def __init__(self, module: nn.Module, unsaved: Mapping[str, Tensor]) -> None:
        self.unsaved = unsaved
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, buffer in unsaved.items():
            if name in held and held[name].shape == buffer.shape:
                held[name].detach().copy_(buffer)
        vector = StateVector(module)
        tensors = zip(vector.tensor_names, vector.tensors(), strict=True)
        self._before = {name: tensor.detach().clone() for name, tensor in tensors}

    def are_changed(self, vector: StateVector) -> bool:
        """Whether the federated state holds other values now."""
        now = dict(zip(vector.tensor_names, vector.tensors(), strict=True))
        both = [(tensor.to(now[name]), now[name]) for name, tensor in self._before.items() if name in now]
        return not all(same_values(before, after) for before, after in both)


def unsaved_buffers(vector: StateVector, values: Tensor | None) -> dict[str, Tensor]:
    """Return the buffers of a federated state that the module's ``state_dict`` leaves out, by name.

    Args:
        vector: The federated state.
        values: The state, shape ``(size,)``; the module's present one if ``None``.
    """
    saved = vector.module.state_dict(keep_vars=True)
    tensors = vector.tensors() if values is None else vector.views(values)
    named = zip(vector.tensor_names, tensors, strict=True)
    return {name: tensor.detach().cpu().clone() for name, tensor in named if name not in saved}
