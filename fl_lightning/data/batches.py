"""Batches without a fixed cost per sample: one gather an epoch for a client, one a batch for a pooled set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, Subset, TensorDataset, default_collate

from fl_lightning.vectors import to_indices

Collate = Callable[[list[Any]], Any]
Transform = Callable[[Any], Any]

_EVALUATED_BYTES = 1 << 20
_FEWEST_EVALUATED = 256
_MOST_EVALUATED = 4096


def client_batches(
    dataset: Dataset[Any],
    batch_size: int | None,
    generator: torch.Generator | None,
    shuffle: bool,
    collate_fn: Collate | None = None,
    *,
    order: Tensor | None = None,
    drop_last: bool = False,
) -> Iterator[Any]:
    """Yield one epoch of a client's batches; the last one may be smaller.

    The batches are those of a ``DataLoader`` that samples in the same order, bit for bit; the order of the first epoch
    is that of ``RandomSampler(dataset, generator=generator)``. A ``TensorDataset``, or a ``Subset`` of one, is gathered
    once for the whole epoch and sliced: batches are views of a copy.

    Args:
        dataset: The client's data set, with ``__len__`` and ``__getitem__``.
        batch_size: Samples of a batch, B; ``None`` puts all in one (B = infinity).
        generator: CPU generator of the order.
        shuffle: Whether to draw a new order.
        collate_fn: Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``.
        order: Positions of the samples, int64, shape (n,), instead of a drawn order.
        drop_last: Whether a last batch of fewer than B samples is left out; a client with fewer samples keeps its one
            batch.
    """
    size = length(dataset)
    if order is None and shuffle:
        order = torch.randperm(size, generator=generator)
    number = number_of_batches(size, batch_size, drop_last)
    step = batch_size or max(size, 1)
    rows = tensor_rows(dataset) if collate_fn is None else None
    if rows is not None:
        tensors, indices = rows
        # `split` makes all slices in one call, which costs half as much as indexing.
        slices_of_tensors = [tensor.split(step) for tensor in _gather(tensors, indices, order)]
        for batch in islice(zip(*slices_of_tensors, strict=True), number):
            yield list(batch)
        return
    positions = range(size) if order is None else order.tolist()
    for start in range(0, number * step, step):
        samples = fetch(dataset, list(positions[start : start + step]))
        yield batch_of(samples, collate_fn)


def length(dataset: Dataset[Any]) -> int:
    """Return the number of samples of a data set, which PyTorch's own type does not promise."""
    return len(dataset)  # type: ignore[arg-type]


def batch_of(samples: list[Any], collate_fn: Collate | None) -> Any:
    """Return samples as one batch."""
    if collate_fn is not None:
        return collate_fn(samples)
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError, KeyError) as error:
        error.add_note("PyTorch's default_collate makes no batch of these samples. Give a `collate_fn` that does.")
        raise


def number_of_batches(size: int, batch_size: int | None, drop_last: bool) -> int:
    """Return the number of batches of an epoch: ceil(n / B); with ``drop_last`` floor(n / B), but at least one."""
    if size == 0 or batch_size is None:
        return min(size, 1)
    if drop_last:
        return max(1, size // batch_size)
    return math.ceil(size / batch_size)


def make_loader(
    dataset: Dataset[Any],
    batch_size: int | None,
    *,
    shuffle: bool,
    num_workers: int = 0,
    collate_fn: Collate | None = None,
    sampler: Sampler[int] | None = None,
    drop_last: bool = False,
) -> DataLoader[Any]:
    """Return a ``DataLoader`` that takes a ``TensorDataset``, or a ``Subset`` of one, batch by batch.

    The batches are those of a plain ``DataLoader``; the arguments are those of :func:`client_batches`, with a
    ``sampler`` instead of ``shuffle``.
    """
    size = length(dataset)
    rows = tensor_rows(dataset) if collate_fn is None else None
    if rows is not None:
        tensors, indices = rows
        dataset = _Rows(tensors, indices)
        collate_fn = as_is
    elif collate_fn is None and _are_joined_rows(dataset):
        dataset = _JoinedRows(dataset)
        collate_fn = as_is
    if batch_size is None:
        batch_size = max(size, 1)
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=collate_fn,
        # One batch is left, as for a client of few samples.
        drop_last=drop_last and size >= batch_size,
    )


def _are_joined_rows(dataset: Dataset[Any]) -> TypeGuard[ConcatDataset[Any]]:
    """Return whether a data set puts plain ``TensorDataset`` one after the other."""
    if type(dataset) is not ConcatDataset:
        return False
    return all(type(part) is TensorDataset for part in dataset.datasets)


def evaluation_batch_size(dataset: Dataset[Any]) -> int:
    """Return the number of samples of a batch of an evaluation: as many as a MiB holds, from 256 to 4,096.

    It is 256 if samples are not rows of tensors.
    """
    first = dataset.datasets[0] if isinstance(dataset, ConcatDataset) else dataset
    rows = tensor_rows(first)
    if rows is None:
        return _FEWEST_EVALUATED
    tensors, _ = rows
    bytes_of_sample = sum(tensor[:1].nbytes for tensor in tensors)
    samples = _EVALUATED_BYTES // max(1, bytes_of_sample)
    samples = min(max(samples, _FEWEST_EVALUATED), _MOST_EVALUATED)
    # The largest power of two that is not above it.
    return 1 << (samples.bit_length() - 1)


class _Rows(Dataset[tuple[Tensor, ...]]):
    """Rows of tensors, of which ``DataLoader`` fetches a whole batch at once."""

    def __init__(self, tensors: tuple[Tensor, ...], indices: Tensor | None) -> None:
        self.tensors = tensors
        self.indices = indices

    def __len__(self) -> int:
        return len(self.tensors[0] if self.indices is None else self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        row = index if self.indices is None else int(self.indices[index])
        return tuple(tensor[row] for tensor in self.tensors)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return _gather(self.tensors, self.indices, torch.tensor(indices))


class _JoinedRows(Dataset[tuple[Tensor, ...]]):
    """Rows of many clients' tensors, which are not copied: each stretch of a batch in one client's rows is a slice."""

    def __init__(self, dataset: ConcatDataset[Any]) -> None:
        self.dataset = dataset
        ends = np.array(dataset.cumulative_sizes)
        self.starts = np.concatenate([[0], ends[:-1]])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        rows = np.array(indices)
        clients = np.searchsorted(self.starts, rows, side="right") - 1
        # A stretch begins where a row does not follow the one before it, or is another client's.
        is_jump = np.diff(rows, prepend=-2) != 1
        is_other_client = np.diff(clients, prepend=-1) != 0
        begins = np.flatnonzero(is_jump | is_other_client)
        clients = clients[begins]
        first = rows[begins] - self.starts[clients]
        end = first + np.diff(begins, append=len(rows))
        slices = []
        for client, start, stop in zip(clients.tolist(), first.tolist(), end.tolist(), strict=True):
            tensors = self.dataset.datasets[client].tensors
            slices.append([tensor[start:stop] for tensor in tensors])
        return [torch.cat(of_tensor) for of_tensor in zip(*slices, strict=True)]


def as_is(batch: Any) -> Any:
    """Return a batch that is one already."""
    return batch


def tensor_rows(dataset: Dataset[Any]) -> tuple[tuple[Tensor, ...], Tensor | None] | None:
    """Return a data set's tensors and which of their rows (``None``: all), or ``None`` if it is of another kind."""
    # The types must be exact: a subclass may compute its samples differently.
    if type(dataset) is TensorDataset:
        return dataset.tensors, None
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        return dataset.dataset.tensors, torch.from_numpy(subset_indices(dataset))
    return None


def tensors_of(dataset: Dataset[Any]) -> tuple[Tensor, ...] | None:
    """Return the tensors of a data set whose samples are rows of tensors, or ``None`` if it is of another kind.

    It is a ``TensorDataset``, whose own tensors these are, or is made of such by ``Subset`` and ``ConcatDataset``,
    which copy them. The rows of a ``ConcatDataset`` must have the same shapes and types.
    """
    # The types must be exact: a subclass may compute its samples differently.
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset:
        within = tensors_of(dataset.dataset)
        if within is None:
            return None
        indices = torch.from_numpy(subset_indices(dataset))
        return tuple(_gather(within, indices, None))
    if type(dataset) is ConcatDataset:
        parts = [tensors_of(part) or () for part in dataset.datasets]
        first = parts[0]
        if first and all(_kinds(part) == _kinds(first) for part in parts):
            return tuple(torch.cat(of_parts) for of_parts in zip(*parts, strict=True))
    return None


def _kinds(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    """Return the shape of a row and the type of each tensor."""
    return [(tensor.shape[1:], tensor.dtype) for tensor in tensors]


def subset_indices(dataset: Subset[Any]) -> np.ndarray:
    """Return the indices of a ``Subset``, counted from 0, int64, shape (n,).

    Raises:
        TypeError: If they are not integers (a boolean mask is not).
    """
    indices = to_indices("indices` of the `Subset", dataset.indices)
    is_from_end = indices < 0
    if is_from_end.any():
        indices[is_from_end] += length(dataset.dataset)
    return indices


def _gather(tensors: Sequence[Tensor], indices: Tensor | None, order: Tensor | None) -> list[Tensor]:
    """Return copies of the rows ``indices`` of each tensor in the given order, which a step may change in place."""
    if indices is None:
        rows = order
    elif order is None:
        rows = indices
    else:
        rows = indices.index_select(0, order)
    if rows is None:
        return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
    return [tensor.index_select(0, rows.to(tensor.device)) for tensor in tensors]


def fetch(dataset: Any, positions: list[int]) -> list[Any]:
    """Return the samples at some positions, fetched as ``DataLoader`` does."""
    if callable(getattr(dataset, "__getitems__", None)):
        return list(dataset.__getitems__(positions))
    return [dataset[position] for position in positions]


class TransformedDataset(Dataset[Any]):
    """A data set whose samples' inputs go through a function when they are fetched.

    Args:
        dataset: The samples.
        transform: Gets the first element of a sample that is a tuple or a list, and the whole of any other, such as a
            dict; its result replaces that.
    """

    def __init__(self, dataset: Dataset[Any], transform: Transform) -> None:
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        """Return the number of samples."""
        return length(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """Return a transformed sample."""
        return self._changed(self.dataset[index])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return transformed samples."""
        return [self._changed(sample) for sample in fetch(self.dataset, indices)]

    def _changed(self, sample: Any) -> Any:
        if not isinstance(sample, (tuple, list)):
            return self.transform(sample)
        values = [self.transform(sample[0]), *sample[1:]]
        kind = type(sample)
        is_namedtuple = hasattr(sample, "_fields")
        return kind(*values) if is_namedtuple else kind(values)
