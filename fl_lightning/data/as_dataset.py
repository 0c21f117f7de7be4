"""Data sets that users give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fl_lightning.checks import short

_NO_DATASETS = (IterableDataset, DataLoader, tuple, Mapping, str, bytes, type)  # their items are no samples


def as_dataset(name: str, given: Any) -> Dataset[Any]:
    """Return samples by position; a tuple of tensors becomes a ``TensorDataset``.

    Args:
        name: The argument.
        given: A data set with ``__len__`` and ``__getitem__``, or a tuple of tensors.

    Raises:
        TypeError: If it has no samples by position.
        ValueError: If it has no samples, or tensors of unequal lengths.
    """
    if isinstance(given, tuple) and given and all(isinstance(tensor, Tensor) for tensor in given):
        lengths = [len(tensor) if tensor.dim() else 0 for tensor in given]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"The tensors of `{name}` must have the same first dimension, one entry per sample, got {lengths}."
            )
        given = TensorDataset(*given)
    has_positions = hasattr(given, "__len__") and hasattr(given, "__getitem__") and getattr(given, "shape", None) != ()
    if not has_positions or isinstance(given, _NO_DATASETS) or hasattr(given, "iloc"):
        raise TypeError(
            f"`{name}` must be a data set with __len__ and __getitem__, as TensorDataset(x, y) has, got "
            f"{short(given)}. Give the `dataset` of a DataLoader, list(stream) for a stream, or tensors of a table."
        )
    if len(given) == 0:
        raise ValueError(f"`{name}` has no samples, got {short(given)}. Look at how it was read or filtered.")
    return cast("Dataset[Any]", given)
