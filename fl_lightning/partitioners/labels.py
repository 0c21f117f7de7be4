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
    raise kind(
        f"`{name}` must be whole numbers, 1-D, one for each sample, got {array.dtype} of shape {array.shape}. Make "
        "classes for instance by `numpy.unique(y, return_inverse=True)[1]` or `numpy.digitize(y, bins)`."
    )
