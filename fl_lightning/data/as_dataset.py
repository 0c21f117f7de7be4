"""Data sets that users give, and hints to those who give a stream, an array or a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fl_lightning.checks import short, to_array
from fl_lightning.partitioners.labels import way_to_classes


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
    hint = next((hint for kind, hint in _HINTS.items() if isinstance(given, kind)), "")
    if hasattr(given, "iloc") or (hasattr(given, "columns") and hasattr(given, "to_numpy")):
        hint = "A table's items are columns. Give TensorDataset(torch.tensor(frame[[...]].to_numpy()), ...)."
    has_positions = hasattr(given, "__len__") and hasattr(given, "__getitem__") and getattr(given, "shape", None) != ()
    if hint or not has_positions:
        raise TypeError(
            f"`{name}` must be a data set with __len__ and __getitem__, as TensorDataset(x, y) has, got "
            f"{short(given)}. "
            f"{hint}".rstrip()
        )
    if len(given) == 0:
        raise ValueError(f"`{name}` has no samples, got {short(given)}. Look at how it was read or filtered.")
    return cast("Dataset[Any]", given)


_HINTS: dict[type, str] = {
    IterableDataset: "A client's samples are counted and shuffled; list(dataset) keeps those of a stream.",
    DataLoader: "Give the DataLoader's `dataset`; `batch_size` is an argument of the data module.",
    tuple: "Give TensorDataset(torch.as_tensor(x), torch.as_tensor(y)), or a list of samples.",
    Mapping: "Give a list.",
    str: "Give the data set itself.",
    bytes: "Give the data set itself.",
    type: "Make one of the class.",
}


def why_no_classes(values: Any, number: int) -> str | None:
    """Return in a sentence why values are no classes of samples, with a hint; ``None`` if they may be no classes.

    Args:
        values: Targets of samples, an array, a tensor or a list.
        number: How many samples there are.
    """
    try:
        array = to_array("targets", values)
    except TypeError:
        return None
    hint = way_to_classes("y", array, values) if array.ndim and len(array) == number else None
    if hint is None:
        return None
    kind = "text" if array.dtype.kind in "USO" else array.dtype
    return (
        f"The targets have shape {array.shape}, type {kind}; classes are whole numbers of shape ({number},). "
        f"Use `{hint}`."
    )
