"""Arrays and vectors: those of users as numpy arrays, those that a part returns, sums of those as large as models."""

import math
import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.words import short_repr

#: Values of a piece: half a MiB in float64, which a core's cache holds.
_PIECE = 2**16


def share_of(share: float, number: int) -> float:
    """Return a share of a number, to nine decimals: 0.29 of 100 is 29, not 28.999999999999996."""
    return round(share * number, 9)


def to_indices(name: str, values: Any) -> np.ndarray:
    """Return sample indices, of an array, a list or a tensor, as int64.

    Raises:
        TypeError: If they are not integers; a mask of booleans is not.
        ValueError: If they are not 1-D.
    """
    array = to_array(name, values)
    if array.ndim == 1 and array.dtype.kind in "iu":
        return array.astype(np.int64)
    message = (
        f"`{name}` must be whole numbers, 1-D, one index after the other, got {array.dtype} of shape {array.shape}."
    )
    if array.dtype == bool:
        message += " Give `numpy.flatnonzero(mask)`."
    if array.ndim != 1:
        raise ValueError(message)
    raise TypeError(message)


def to_array(name: str, values: Any) -> np.ndarray:
    """Return an array, a list, a tuple or a tensor as an array; an empty one, or one of whole numbers, holds integers.

    Raises:
        TypeError: If numpy cannot make an array of it, as of rows of unequal lengths.
    """
    try:
        if isinstance(values, Tensor):
            # A tensor may need a gradient or lie on a device.
            values = values.detach().cpu()
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"`{name}` must be an array, a list or a tensor, got {short_repr(values)} ({error})."
        ) from error
    if array.shape == (0,):
        return array.astype(np.int64)
    # A column of a table that held missing values has the type object.
    if array.dtype == object and all(_is_int64(value) for value in array.flat):
        return array.astype(np.int64)
    return array


def _is_int64(value: object) -> bool:
    """Return whether a value is a whole number of 64 bits; a boolean is not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return False
    return abs(int(value)) < 2**63


def checked_vector(
    owner: object, method: str, returned: object, like: Tensor, *, dtype: torch.dtype | None = None, finite: int = 0
) -> Tensor:
    """Return what a part's method returned for a vector, without a graph.

    Args:
        owner: The part.
        method: The method's name.
        returned: What it returned.
        like: A vector of the right shape and device.
        dtype: The type that is returned; that of ``like`` if ``None``.
        finite: How many values, from the first on, must be finite.

    Raises:
        TypeError: If it is not a floating-point tensor of the vector's shape and device.
        FloatingPointError: If it has NaN or infinite values.
    """
    dtype = like.dtype if dtype is None else dtype
    if returned is like:
        return like.to(dtype)
    if not isinstance(returned, Tensor) or not _is_vector_like(returned, like):
        got = repr(returned)
        if isinstance(returned, Tensor):
            got = f"{returned.dtype} of shape {tuple(returned.shape)}"
        raise TypeError(
            f"`{type(owner).__name__}.{method}` must return a floating-point tensor of shape {tuple(like.shape)} on "
            f"{like.device}, got {got}."
        )
    if finite and not is_finite(returned[:finite]):
        raise FloatingPointError(
            f"`{type(owner).__name__}.{method}` returned NaN or infinite values. Check its arithmetic: a division by "
            "0, a root or a logarithm, a number that grows without bounds."
        )
    # A checkpoint must not hold a tensor of a user-defined class.
    plain = returned.detach().as_subclass(Tensor)
    return plain.to(dtype)


def _is_vector_like(tensor: Tensor, like: Tensor) -> bool:
    """Return whether a tensor is a dense floating-point one of a vector's shape and device."""
    is_dense = tensor.is_floating_point() and tensor.layout is torch.strided
    return is_dense and tensor.shape == like.shape and tensor.device == like.device


def is_finite(vector: Tensor) -> bool:
    """Return whether all values are finite."""
    # One sum is cheaper than a test of each value. It may overflow though all values are finite.
    if math.isfinite(vector.sum()):
        return True
    return bool(vector.isfinite().all())


def sum_dtype(like: Tensor) -> torch.dtype:
    """Return the type for running sums: float64, but Apple's GPUs have none."""
    return torch.float32 if like.device.type == "mps" else torch.float64


def pieces(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of the same places of vectors as large as models, one piece after the other.

    Intermediate results are then as large as a piece. Without pieces they are as large as two models, since sums are
    kept in float64. Some of them cannot be seen: ``total.add_(vector)`` makes a copy of a float32 vector in the total's
    type.

    Args:
        vectors: All of one shape, ``(length,)``.
    """
    if len(vectors[0]) <= _PIECE:
        yield vectors
        return
    yield from zip(*(vector.split(_PIECE) for vector in vectors), strict=True)
