"""The places in a module that hold the tensors of its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class TensorSlots:
    """Where a module holds the tensors of its state, so that other tensors can take their places for a while.

    Args:
        module: The module.
        tensors: The tensors of its state.
    """

    def __init__(self, module: nn.Module, tensors: Sequence[Tensor]) -> None:
        index = {id(tensor): place for place, tensor in enumerate(tensors)}
        self._spots: list[list[tuple[dict[str, Any], str]]] = [[] for _ in index]
        # torch's recurrent layers keep lists of their weights, and make new ones when they find other weights
        self._lists: list[tuple[dict[str, Any], str]] = []
        for submodule in module.modules():
            for held in (submodule._parameters, submodule._buffers):
                for name, tensor in held.items():
                    if id(tensor) in index:
                        self._spots[index[id(tensor)]].append((held, name))
            if isinstance(submodule, nn.RNNBase):
                own = vars(submodule)
                self._lists += [(own, name) for name in ("_flat_weights", "_flat_weight_refs") if name in own]

    @contextmanager
    def substituted(self, values: Sequence[Any]) -> Iterator[None]:
        """Let ``values`` stand where the module holds the tensors."""
        every = [spot for spots in self._spots for spot in spots] + self._lists
        before = [held[name] for held, name in every]
        for spots, value in zip(self._spots, values, strict=True):
            for held, name in spots:
                held[name] = value
        try:
            yield
        finally:
            for (held, name), value in zip(every, before, strict=True):
                held[name] = value

    def present(self, start: int) -> list[Any]:
        """Return what stands in the places from the given one on."""
        return [held[name] for (held, name), *_ in self._spots[start:]]
