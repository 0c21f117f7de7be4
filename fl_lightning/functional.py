"""Calls of modules with other tensors in the place of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def called_with(module: nn.Module, values: Mapping[str, Tensor], args: tuple[Any, ...]) -> Any:
    """Return what a module returns with other values of some parameters and buffers, also where layers share these.

    Of a layer with two names ``torch.func.functional_call`` would put back the other values, where it looks for shared
    tensors itself. So it gets one name for each layer, and does not look.

    Args:
        module: The module, which stays as it is.
        values: By the names of the module's tensors.
        args: What the module is called with.
    """
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = {id(own[name]): value for name, value in values.items()}
    named: dict[str, Tensor] = {}
    for path, layer in module.named_modules():
        for key, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if id(tensor) in given:
                named[f"{path}.{key}".lstrip(".")] = given[id(tensor)]
    return torch.func.functional_call(module, named, args, tie_weights=False)
