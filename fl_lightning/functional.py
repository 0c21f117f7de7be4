"""Tensors of modules by name, and calls of modules with other tensors in the place of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def tensors_by_name(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def tensors_of_layers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield each layer's parameters and buffers by name: of a layer with several names by one, shared ones for each."""
    for path, layer in module.named_modules():
        for key, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None:
                yield f"{path}.{key}".lstrip("."), tensor


def called_with(module: nn.Module, values: Mapping[str, Tensor], args: tuple[Any, ...]) -> Any:
    """Return what a module returns with other values of some parameters and buffers, also where layers share these.

    Of a layer with two names ``torch.func.functional_call`` would put back the other values, where it looks for shared
    tensors itself. So it gets one name for each layer, and does not look.

    Args:
        module: The module, which stays as it is.
        values: By the names of the module's tensors.
        args: What the module is called with.
    """
    own = tensors_by_name(module)
    given = {id(own[name]): value for name, value in values.items()}
    named = {name: given[id(tensor)] for name, tensor in tensors_of_layers(module) if id(tensor) in given}
    return torch.func.functional_call(module, named, args, tie_weights=False)
