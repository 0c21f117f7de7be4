"""User-defined parts in a stack: all clients start before the first of them ends."""

from __future__ import annotations

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning.checks import is_user_defined
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.part import Part, walk

#: Called when a client starts, and when it has been trained.
_AT_START = ("start", "download", "correction")
_AT_END = ("score", "loss_of", "on_client_end", "upload", "play")


def check_parts(algorithm: Algorithm) -> None:
    """Raise ``CannotVectorize`` if a user-defined part could hand something from one client to the next.

    Such a part works when a client starts and when one ends, and does not say ``stacks = True``.
    """
    for part in user_defined_parts(algorithm):
        own = [name for cls in type(part).__mro__ if is_user_defined(cls) for name in vars(cls)]
        both = any(name in own for name in _AT_START) and any(name in own for name in _AT_END)
        if both and not part.stacks:
            raise CannotVectorize(
                f"{type(part).__name__} works when a client starts and when one ends, and may hand something to the "
                "next client; if it does not, set its attribute `stacks = True`"
            )


def user_defined_parts(algorithm: Algorithm) -> list[Part]:
    """Return the parts of an algorithm whose classes do not come with the library."""
    return [part for part in walk(*algorithm.parts.values()) if is_user_defined(type(part))]
