"""Arithmetic on vectors as large as models, piece by piece.

Intermediate results are then as large as a piece. Without pieces they are as large as two models, since sums are kept
in float64. Some of them cannot be seen: ``total.add_(vector)`` makes a copy of a float32 vector in the total's type.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

#: Values of a piece: half a MiB in float64, which a core's cache holds.
_LENGTH = 2**16


def pieces(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of the same places of all vectors, one piece after the other.

    Args:
        vectors: All of one shape, ``(length,)``.
    """
    if len(vectors[0]) <= _LENGTH:
        yield vectors
        return
    yield from zip(*(vector.split(_LENGTH) for vector in vectors), strict=True)
