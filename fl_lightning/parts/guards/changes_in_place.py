"""Calls methods of parts that must leave the tensors they are given as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fl_lightning.parts.federation import ClientResult, same_values
from fl_lightning.representation import short

#: The first calls of each method are also compared by value: tensors do not count writes through NumPy or ``.data``.
_COMPARED_CALLS = 3


def call(
    part: Any, method: str, *arguments: Any, watch: Sequence[Tensor] = (), results: Sequence[ClientResult] = ()
) -> Any:
    """Call a part's method and return what it returns.

    Args:
        part: The part.
        method: The method's name.
        *arguments: What it is given.
        watch: Tensors that it sees and must leave as they are.
        results: Clients' results whose tensors it sees and must leave as they are, with the updates that it reads.

    Raises:
        RuntimeError: If it changes one of these in place.
        TypeError: If it is a hook that looks at a result, and returns something.
    """
    if part.is_of_library:  # its parts change nothing in place
        return getattr(part, method)(*arguments)
    tensors = [*watch, *(tensor for result in results for tensor in (result.start, result.vector))]
    with unchanged(f"{type(part).__name__}.{method}", tensors, results, compares=_compares(part, method)):
        returned = getattr(part, method)(*arguments)
    if method == "on_client_end" and returned is not None:
        raise TypeError(
            f"`{type(part).__name__}.on_client_end` returned {short(returned)}, which would be ignored: it only looks "
            "at a result. Write an `Exchange` whose `upload` returns the changed one."
        )
    return returned


@contextmanager
def unchanged(
    method: str, tensors: Sequence[Tensor], results: Sequence[ClientResult], *, compares: bool = True
) -> Iterator[None]:
    """Raise ``RuntimeError`` if tensors are changed in place.

    Args:
        method: What sees them, for the error.
        tensors: The tensors.
        results: Clients' results whose updates are read.
        compares: Whether to compare values, too.
    """
    versions, copies = [version_of(tensor) for tensor in tensors], [tensor.clone() for tensor in tensors if compares]
    deltas = _Deltas(compares)
    for result in results:
        result.read_delta_by(deltas.read)
    try:
        yield
    finally:
        for result in results:
            result.read_delta_by(None)
    deltas.look()
    is_changed = deltas.are_changed or versions != [version_of(tensor) for tensor in tensors]
    if is_changed or not all(map(same_values, copies, tensors)):
        raise RuntimeError(
            f"`{method}` changed a tensor in place that it was given. The server and other "
            "clients use it, too, so that results would change in silence, or the change would be lost. Work on a "
            "copy, such as `model.clone()`, or write `model * 0.5` instead of `model.mul_(0.5)`. Go on from a "
            "checkpoint that was written before this round, or anew."
        )


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor, or a view of it, was changed in place; tensors of inference mode do not count it."""
    return -1 if tensor.is_inference() else tensor._version


def _compares(part: object, method: str) -> bool:
    """Return whether a call is one of the first ones, and count it."""
    calls: dict[str, int] = vars(part).setdefault("_guarded_calls", {})
    calls[method] = calls.get(method, 0) + 1
    return calls[method] <= _COMPARED_CALLS


class _Deltas:
    """The updates that a part reads: one tensor for each result until another's is read, so that changes are seen.

    Args:
        compares: Whether to compare values, too.
    """

    def __init__(self, compares: bool) -> None:
        self._compares = compares
        self._last: tuple[ClientResult, Tensor] | None = None
        self.are_changed = False

    def read(self, result: ClientResult) -> Tensor:
        """Return the result's update."""
        if self._last is not None and self._last[0] is result:
            return self._last[1]
        self.look()
        self._last = result, result.computed_delta()
        return self._last[1]

    def look(self) -> None:
        """Note whether the update that was read last has been changed."""
        if self._last is None:
            return
        (result, delta), self._last = self._last, None
        changed = bool(delta._version) or (self._compares and not same_values(delta, result.computed_delta()))
        self.are_changed = self.are_changed or changed
