"""The federated state of a module as a checkpoint has left it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from fl_lightning.clients.state_vector import StateVector
from fl_lightning.parts.federation import same_values


class LoadedWeights:
    """Remembers the trained parameters and the buffers, to see what hooks write into them before the fit begins.

    Args:
        module: The module, with the checkpoint's weights.
    """

    def __init__(self, module: nn.Module) -> None:
        self._before = {name: tensor.detach().clone() for name, tensor in _named(module).items()}

    def are_changed(self, module: nn.Module) -> bool:
        """Whether the module holds others now."""
        now = _named(module)
        both = [(tensor.to(now[name]), now[name]) for name, tensor in self._before.items() if name in now]
        return not all(same_values(before, after) for before, after in both)


def unsaved_buffers(module: nn.Module, values: Tensor | None) -> dict[str, Tensor]:
    """Return the buffers of a module's federated state that its ``state_dict`` leaves out, by name.

    Args:
        module: The module.
        values: The state, shape ``(size,)``; the module's present one if ``None``.
    """
    vector, saved = StateVector(module), module.state_dict(keep_vars=True)
    tensors = vector.tensors() if values is None else vector.views(values)
    named = zip(vector.tensor_names, tensors, strict=True)
    return {name: tensor.detach().cpu().clone() for name, tensor in named if name not in saved}


def load_unsaved_buffers(module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Put what :func:`unsaved_buffers` returned into a module."""
    held = dict(module.named_buffers())
    for name, buffer in buffers.items():
        if name in held and held[name].shape == buffer.shape:
            held[name].copy_(buffer)


def _named(module: nn.Module) -> dict[str, Tensor]:
    vector = StateVector(module)
    return dict(zip(vector.tensor_names, vector.tensors(), strict=True))
