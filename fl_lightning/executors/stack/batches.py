"""Batches of several clients, stacked.

In the worked example each client's batch is a list ``[x, y]``; that of a stack holds ``x`` of shape ``(K, B, in)`` and
``y`` of shape ``(K, B, out)``. Batches may also be tensors in any containers that Lightning moves to a device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection, is_dataclass_instance
from torch import Tensor

from fl_lightning._lightning.contents import same_content
from fl_lightning._lightning.errors import CannotVectorize

_BUILT_IN = (dict, list, tuple)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class StackedBatch:
    """One batch of each of several clients, equal in structure and shapes.

    Args:
        tensors: The batches' tensors, stacked, shape ``(K, ...)``.
        first: The first client's batch; ``None`` for a list of tensors.
    """

    def __init__(self, tensors: list[Tensor], first: Any = None) -> None:
        self.tensors = tensors
        self.first = [tensor[0] for tensor in tensors] if first is None else first
        self._is_plain = _is_plain(self.first)

    def rebuild(self, tensors: Sequence[Tensor]) -> Any:
        """Return the first client's batch with the given tensors in the place of its own."""
        if self._is_plain:
            return type(self.first)(tensors)
        rest = iter(tensors)
        return _with_each(self.first, lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf)

    def of(self, places: Sequence[int]) -> StackedBatch:
        """Return the batches at some places, which ascend."""
        return StackedBatch([select(tensor, places) for tensor in self.tensors], self.first)

    def size(self) -> int:
        """Return the number of samples, if tensors have samples first."""
        shape = self.tensors[0].shape if self.tensors else ()
        return shape[1] if len(shape) > 1 else 1

    def form(self) -> Any:
        """Return what is equal for batches that differ in values, and in the number of clients, alone."""
        kind = _structure(self.first, lambda leaf: Tensor if isinstance(leaf, Tensor) else _identity(leaf))
        return kind, *((tensor.shape[1:], tensor.stride()[1:], tensor.dtype) for tensor in self.tensors)


def stack_batches(batches: Sequence[Any]) -> StackedBatch:
    """Stack batches of one shape: tensors in any container that Lightning moves to a device.

    Raises:
        CannotVectorize: If a batch holds tensors or containers with something of their own.
    """
    first = batches[0]
    if _is_plain(first):
        columns = zip(*batches, strict=True)
    else:
        for batch in batches:
            _check_containers(batch)
        columns = zip(*map(leaves_of, batches), strict=True)
    return StackedBatch([_stacked(column) for column in columns if isinstance(column[0], Tensor)], first)


def by_shape(batches: Iterable[tuple[int, Any]]) -> list[tuple[list[int], list[Any]]]:
    """Group (row, batch) pairs by structure and shapes, in the order of first appearance; return (rows, batches)."""
    groups: dict[Any, tuple[list[int], list[Any]]] = {}
    for row, batch in batches:
        rows, members = groups.setdefault(_shape(batch), ([], []))
        rows.append(row)
        members.append(batch)
    return list(groups.values())


def select(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the given rows, which ascend; a view where they are neighbours."""
    first = rows[0]
    last = rows[-1]
    if last - first + 1 == len(rows):
        return tensor if len(rows) == len(tensor) else tensor[first : last + 1]
    return tensor.index_select(0, torch.tensor(rows, device=tensor.device))


# ---- tensors ----


def copied(batch: Any) -> Any:
    """Return a batch whose plain tensors are copies; others stay, and cannot be stacked.

    Raises:
        CannotVectorize: If a container has something of its own, which a copy would lose.
    """
    if not _is_plain(batch):
        _check_containers(batch)
    return _with_each(batch, _copied_leaf)


def _copied_leaf(leaf: Any) -> Any:
    if type(leaf) is not Tensor or leaf.__dict__ or leaf.requires_grad:
        return leaf
    clone = leaf.clone()
    if leaf.layout is not torch.strided or clone.stride() == leaf.stride():
        return clone
    # A clone closes gaps and repeats; a step may look at strides, so the memory between the values is copied too.
    return _memory_of(leaf).clone().as_strided(leaf.shape, leaf.stride())


def _memory_of(tensor: Tensor) -> Tensor:
    """Return the memory from a tensor's first value to its last, with all gaps."""
    extent = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        extent += (size - 1) * stride
    return tensor.as_strided((extent,), (1,))


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors that are nothing beside their values; each keeps its strides, which are equal."""
    for tensor in tensors:
        if tensor.requires_grad:
            raise CannotVectorize(
                "tensors of a batch require gradients, by `requires_grad_` in `training_step` or before it; a stack "
                "takes gradients after the step (`torch.func.grad` computes the same, in a stack too)"
            )
        if type(tensor) is not Tensor or tensor.__dict__ or tensor.layout is not torch.strided:
            raise CannotVectorize(
                "batches hold tensors that are sparse, of a subclass or with attributes of their own; a stack holds "
                "plain ones"
            )
    first = tensors[0]
    if first.is_contiguous():
        return torch.stack(list(tensors))
    memory = torch.stack([_memory_of(tensor) for tensor in tensors])
    return memory.as_strided((len(tensors), *first.shape), (memory.shape[1], *first.stride()))


def _shape(batch: Any) -> Any:
    if _is_plain(batch):
        return type(batch), *map(_shape_of_leaf, batch)
    return _structure(batch, _shape_of_leaf)


def _shape_of_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return _identity(leaf)
    # Sparse tensors have no strides.
    has_own = leaf.layout is torch.strided and not leaf.is_contiguous()
    return leaf.shape, leaf.dtype, leaf.stride() if has_own else None


def _identity(leaf: Any) -> Any:
    """Return what tells something that is no tensor from others."""
    return type(leaf), leaf if type(leaf) in _PLAIN else id(leaf)


# ---- containers ----


def leaves_of(batch: Any) -> list[Any]:
    """Return what a batch holds, without the containers."""
    found: list[Any] = []
    _with_each(batch, found.append)
    return found


class _NoCollectionKind(type):
    def __instancecheck__(cls, value: Any) -> bool:
        # Tensors first: whether they are sequences takes Python 0.2 ms.
        return isinstance(value, Tensor | str | bytes) or not isinstance(value, Mapping | Sequence)


class _NoCollection(metaclass=_NoCollectionKind):
    """Anything that is neither a mapping nor a sequence."""


def _is_plain(batch: Any) -> bool:
    """Whether a batch is a list or tuple of tensors."""
    return type(batch) in (list, tuple) and all(isinstance(part, Tensor) for part in batch)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, _NoCollection) and not is_dataclass_instance(value)


def _structure(batch: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """Return a batch's containers and keys, with what stands for each leaf."""
    if _is_leaf(batch):
        return of_leaf(batch)
    if is_dataclass_instance(batch):
        parts: Iterable[Any] = _attributes(batch).items()
    elif isinstance(batch, Mapping):
        parts = batch.items()
    else:
        parts = enumerate(batch)
    return type(batch), *((key, _structure(part, of_leaf)) for key, part in parts)


def _with_each(batch: Any, put: Callable[[Any], Any]) -> Any:
    """Return a batch with what a function makes of each leaf in its place."""

    def make(part: Any) -> Any:
        if not is_dataclass_instance(part):
            return put(part)
        made = copy.copy(part)
        # What `__post_init__` has set, too, and in a frozen one.
        for name, value in _attributes(part).items():
            object.__setattr__(made, name, _with_each(value, put))
        return made

    return apply_to_collection(batch, _NoCollection, make)


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of a dataclass or a container."""
    attributes: dict[str, Any] = {}
    if is_dataclass_instance(value):
        attributes = {field.name: getattr(value, field.name) for field in fields(value)}
    attributes.update(getattr(value, "__dict__", {}))
    return attributes


def _check_containers(batch: Any) -> None:
    """Raise ``CannotVectorize`` if a container has attributes that another one of the same contents has not."""
    if _is_leaf(batch):
        return
    kind = type(batch).__name__
    parts: Iterable[Any]
    if is_dataclass_instance(batch):
        if not isinstance(batch, _NoCollection):
            raise CannotVectorize(f"batches hold {kind}, a dataclass that is also a dictionary or a list")
        parts = _attributes(batch).values()
    else:
        parts = batch.values() if isinstance(batch, Mapping) else batch
        attributes = {} if type(batch) in _BUILT_IN else _attributes(batch)
        if attributes and not same_content(attributes, _attributes(_with_each(batch, lambda leaf: leaf))):
            names = ", ".join(attributes)
            raise CannotVectorize(f"batches hold {kind} with attributes ({names}), which a stack would lose")
    for part in parts:
        _check_containers(part)
