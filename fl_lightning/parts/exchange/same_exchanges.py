"""Compares the exchanges of a checkpoint with those of the algorithm that resumes from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def check_same_exchanges(saved: Sequence[str], present: Sequence[str]) -> None:
    """Compare the exchanges' classes, in their order from the client to the server.

    Raises:
        ValueError: If they differ.
    """
    if list(saved) == list(present):
        return
    gone, new = (list((Counter(a) - Counter(b)).elements()) for a, b in ((saved, present), (present, saved)))
    differences = []
    if gone:
        differences.append(f"with {_listed(gone)}, which the algorithm no longer has")
    if new:
        differences.append(f"without {_listed(new)}, which the algorithm now has")
    if not differences:
        differences.append(f"with exchanges in the order {', '.join(saved)}, and that is now {', '.join(present)}")
    raise ValueError(
        f"The checkpoint was written {', and '.join(differences)}. Resume with the same `exchange`, in the same order."
    )


def _listed(names: Sequence[str]) -> str:
    return f"the exchange{'s' * (len(names) > 1)} {', '.join(names)}"
