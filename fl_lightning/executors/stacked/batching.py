"""Batches of several clients, stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fl_lightning.executors.base import CannotVectorize


class StackedBatch:
    """One batch of each of several clients, equal in structure and shapes.

    Args:
        tensors: The batches' tensors, stacked, shape ``(K, ...)``.
        rebuild: Returns a batch that holds the given tensors in the place of its own.
    """

    def __init__(self, tensors: list[Tensor], rebuild: Callable[[list[Any]], Any] = list) -> None:
        self.tensors = tensors
        self.rebuild = rebuild

    def first(self) -> Any:
        """Return the first client's batch."""
        return self.rebuild([tensor[0] for tensor in self.tensors])


def stack_batches(batches: Sequence[Any]) -> StackedBatch:
    """Stack batches: tensors, or lists, tuples and dictionaries of tensors and of values that are the same for all.

    Raises:
        CannotVectorize: If a value that is no tensor differs among clients.
    """
    flat = [pytree.tree_flatten(batch) for batch in batches]
    first, spec = flat[0]
    tensors: list[Tensor] = []
    for leaves in zip(*(leaves for leaves, _ in flat), strict=True):
        if isinstance(leaves[0], Tensor):
            tensors.append(torch.stack(leaves))
        elif any(leaf != leaves[0] for leaf in leaves):
            raise CannotVectorize(
                f"batches hold values that are no tensors and differ among clients ({leaves[0]!r}, ...)"
            )

    def rebuild(tensors: list[Tensor]) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in first]
        return pytree.tree_unflatten(leaves, spec)

    return StackedBatch(tensors, rebuild)


def by_shape(batches: Iterable[tuple[int, Any]]) -> list[tuple[list[int], list[Any]]]:
    """Group (row, batch) pairs by structure and shapes, in the order of first appearance; return (rows, batches)."""
    groups: dict[Any, tuple[list[int], list[Any]]] = {}
    for row, batch in batches:
        rows, members = groups.setdefault(_shape(batch), ([], []))
        rows.append(row)
        members.append(batch)
    return list(groups.values())


def _shape(batch: Any) -> Any:
    if isinstance(batch, (list, tuple)):
        return type(batch), *map(_shape, batch)
    if isinstance(batch, dict):
        return dict, *((key, _shape(value)) for key, value in batch.items())
    return (batch.shape, batch.dtype) if isinstance(batch, Tensor) else type(batch)


def select(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the given rows, which ascend; a view where they are neighbours."""
    first, last = rows[0], rows[-1]
    if last - first + 1 == len(rows):
        return tensor if len(rows) == len(tensor) else tensor[first : last + 1]
    return tensor.index_select(0, torch.tensor(rows, device=tensor.device))


def windows(batches: int, one_pass: int, accumulate: int) -> list[int]:
    """Return how many batches each optimizer step of a client takes, as Lightning accumulates gradients.

    Args:
        batches: Batches of the client's local training.
        one_pass: Batches of one pass over its data, at whose end what was accumulated is applied.
        accumulate: Batches of a step.
    """
    sizes = []
    for start in range(0, batches, one_pass):
        length = min(one_pass, batches - start)
        sizes += [accumulate] * (length // accumulate) + ([length % accumulate] if length % accumulate else [])
    return sizes
