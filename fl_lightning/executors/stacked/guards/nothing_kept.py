"""Stand-ins for values of several clients must not outlive their training."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.stand_ins import replace_kept_stand_ins


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Raise ``CannotVectorize`` if code of the user's own has kept what stands for values of several clients.

    Whoever has kept it then holds one client's values.
    """
    try:
        yield
    except Exception as error:
        _clear_frames(error)
        replace_kept_stand_ins()
        raise
    if replace_kept_stand_ins():
        raise CannotVectorize(
            "`training_step` keeps what it computes in an object that is not looked at, such as that of an installed "
            "package, of which there is one for all clients"
        )


def _clear_frames(error: BaseException | None) -> None:
    """Forget the variables of functions that an exception has ended."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
