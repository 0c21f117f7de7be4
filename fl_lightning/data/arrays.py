"""Streams, arrays and tables that a user gives in place of a data set or of classes, and what to give instead."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from fl_lightning.arguments import got, to_array
from fl_lightning.partitioners.labels import way_to_classes

STREAM_HINT = " A client's samples are counted and shuffled, which a stream's cannot be; list(dataset) keeps them."


def refuse_empty(name: str, dataset: Any) -> None:
    """Raise ``ValueError`` for a data set without samples."""
    if len(dataset) == 0:
        raise ValueError(f"`{name}` has no samples, got {got(dataset)}. Look at how it was read or filtered.")


def refuse_arrays(name: str, given: object) -> None:
    """Raise ``TypeError`` for a stream, which has no positions, and a tuple or a table, whose items are no samples.

    Args:
        name: The argument.
        given: Its value.
    """
    if isinstance(given, IterableDataset):
        raise TypeError(
            f"`{name}` must have __len__ and __getitem__, with samples by position, got {got(given)}.{STREAM_HINT}"
        )
    if isinstance(given, tuple):
        way_out = "Give TensorDataset(torch.as_tensor(x), torch.as_tensor(y)), or a list of samples."
        raise TypeError(f"`{name}` is a tuple of {len(given)}, not a data set. {way_out}")
    if is_table(given):
        raise TypeError(
            f"`{name}` is a {type(given).__name__}, whose items are columns, not samples. Give "
            "TensorDataset(torch.tensor(frame[[...]].to_numpy()), torch.tensor(frame[...].to_numpy())), with the names "
            "of your columns."
        )


def is_table(given: object) -> bool:
    """Return whether an object is a table, such as a pandas DataFrame, or a column of one."""
    return hasattr(given, "iloc") or (hasattr(given, "columns") and hasattr(given, "to_numpy"))


def why_no_classes(values: Any, number: int) -> str | None:
    """Return in a sentence why values are no classes of samples, with the way out; ``None`` if they may be no classes.

    Args:
        values: Targets of samples, an array, a tensor or a list.
        number: How many samples there are.
    """
    try:
        array = to_array("targets", values)
    except TypeError:
        return None
    way_out = way_to_classes("y", array, values) if array.ndim and len(array) == number else None
    if way_out is None:
        return None
    kind = "text" if array.dtype.kind in "USO" else array.dtype
    return (
        f"The targets have shape {array.shape}, type {kind}; classes are whole numbers of shape ({number},). "
        f"Use `{way_out}`."
    )
