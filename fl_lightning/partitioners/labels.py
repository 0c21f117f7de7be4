"""Labels as users have them, arrays, lists or tensors, as the integers that partitioners work on."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_lightning.checks import to_array


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
    array = array.astype(np.int64) if array.dtype == bool else array
    if array.ndim == 1 and array.dtype.kind in "iu":
        return array
    kind = TypeError if array.ndim == 1 else ValueError
    way_out = (way_to_classes(name, array, labels) if array.ndim else None) or "numpy.digitize(y, bins)"
    raise kind(
        f"`{name}` must be whole numbers, 1-D, one for each sample, got {array.dtype} of shape {array.shape}. Use for "
        f"instance `{way_out}`."
    )


def way_to_classes(name: str, array: np.ndarray, given: object) -> str | None:
    """Return what makes classes of targets; ``None`` if these are numbers to predict, or of another kind.

    Args:
        name: How the targets are called.
        array: The targets.
        given: The same as they were given: an array, a tensor or a list.
    """
    kind, is_tensor = array.dtype.kind, hasattr(given, "detach")
    if kind in "US" or (kind == "O" and all(isinstance(value, str) for value in array.flat)):
        return f"np.unique({name}, return_inverse=True)[1]"
    if kind not in "iubf" or (kind == "f" and not np.array_equal(array, np.round(array))):
        return None
    whole = "" if kind != "f" else ".long()" if is_tensor else ".astype(int)"
    if array.ndim == 1:
        return f"{name}{whole}" if whole else None
    if array.size == len(array):
        return f"{name}.{'flatten' if is_tensor else 'ravel'}(){whole}"
    is_one_hot = array.ndim == 2 and ((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all()
    return f"{name}.argmax(1)" if is_one_hot else None
