"""The weights that a checkpoint has put into a module."""

from __future__ import annotations

from torch import nn

from fl_lightning.parts.federation import same_values


class LoadedWeights:
    """Remembers a module's trained parameters, to see what hooks write into it before the fit begins.

    Args:
        module: The module, with the checkpoint's weights.
    """

    def __init__(self, module: nn.Module) -> None:
        trained = ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)
        self._before = {name: parameter.detach().clone() for name, parameter in trained}

    def are_changed(self, module: nn.Module) -> bool:
        """Whether the module holds others now."""
        now = dict(module.named_parameters())
        both = [(tensor.to(now[name]), now[name]) for name, tensor in self._before.items() if name in now]
        return not all(same_values(before, after) for before, after in both)
