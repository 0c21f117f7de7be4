"""Labels as users have them, arrays, lists or tensors, as the integers that partitioners work on."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from fl_lightning.arguments import shape_of, to_array
from fl_lightning.representation import counted


def check_labels(labels: Any, name: str = "labels") -> np.ndarray:
    """Return labels as an array of integers.

    Args:
        labels: The class of each sample: an array, a list, a tuple or a tensor of whole numbers or booleans, shape
            (num_samples,).
        name: The name of the argument, for errors.

    Raises:
        TypeError: If they are no integers.
        ValueError: If they are not 1-D.
    """
    array = to_array(name, labels)
    if array.ndim != 1:
        way_out = way_to_classes(name, array, labels) if array.ndim else None
        hint = f" Use `{way_out}`." if way_out else ""
        raise ValueError(f"`{name}` must be 1-D, one for each sample, got {shape_of(array, labels)}.{hint}")
    if array.dtype == object and all(isinstance(label, numbers.Integral) for label in array):
        array = array.astype(np.int64)  # such as a pandas column of nullable integers
    if array.dtype == bool:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        hint = (
            " Of numbers to predict, `numpy.digitize(y, numpy.quantile(y, [0.25, 0.5, 0.75]))` makes classes; "
            "IIDPartitioner needs none."
        )
        raise TypeError(
            f"`{name}` must be integers, got {array.dtype}. Number the classes, for example with "
            f"`numpy.unique(labels, return_inverse=True)[1]`.{hint if array.dtype.kind == 'f' else ''}"
        )
    return array


def way_to_classes(name: str, array: np.ndarray, given: object) -> str | None:
    """Return what makes classes of targets; ``None`` if these are numbers to predict, or of another kind.

    Args:
        name: How the targets are called.
        array: The targets.
        given: The same as they were given: an array, a tensor or a list.
    """
    kind, size, is_tensor = array.dtype.kind, array.size // max(len(array), 1), hasattr(given, "detach")
    if kind in "US" or (kind == "O" and all(isinstance(value, str) for value in array.flat)):
        return f"np.unique({name}, return_inverse=True)[1]"
    if kind not in "iubf" or (kind == "f" and not np.array_equal(array, np.round(array))):
        return None
    whole = "" if kind != "f" else ".long()" if is_tensor else ".astype(int)"
    if array.ndim == 1:
        return f"{name}{whole}" if whole else None
    if size == 1:
        return (
            f"{name}.squeeze(1){whole}" if array.ndim == 2 else f"{name}.{'flatten' if is_tensor else 'ravel'}(){whole}"
        )
    is_one_hot = array.ndim == 2 and ((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all()
    return f"{name}.argmax(1)" if is_one_hot else None


def check_any(num_samples: int) -> None:
    """Raise ``ValueError`` if there are no samples."""
    if num_samples == 0:
        raise ValueError(
            "`labels` is empty: there are no samples to share out among clients. Look at the data set, and at a split "
            "that sets samples aside beforehand."
        )


def check_enough(num_clients: int, num_samples: int) -> None:
    """Raise ``ValueError`` unless there is a sample for each client."""
    check_any(num_samples)
    if num_samples < num_clients:
        raise ValueError(
            f"`num_clients` is {num_clients:,}, but there are only {counted(num_samples, 'sample')}, and each client "
            f"needs one. Give at most {counted(num_samples, 'client')}, or more data."
        )


def check_minimum(num_clients: int, min_partition_size: int, num_samples: int) -> None:
    """Raise ``ValueError`` unless all clients together can have their least number of samples."""
    if num_clients * min_partition_size > num_samples:
        raise ValueError(
            f"`min_partition_size` is {min_partition_size:,}, but {num_samples:,} samples are too few for "
            f"{num_clients:,} clients with so many. Lower `min_partition_size` or `num_clients`."
        )
