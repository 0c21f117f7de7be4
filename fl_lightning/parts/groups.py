"""Groups of clients: so many clients in a row, or the lists that a user gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl_lightning.settings import Count, Natural
from fl_lightning.words import short_repr

#: A number of groups, or the clients of each group.
Groups = Count | Sequence[Sequence[Natural]]


def members_of(groups: int | Sequence[Sequence[int]], num_clients: int) -> list[list[int]]:
    """Return the clients of each group.

    Args:
        groups: The clients of each group; or the number of groups, which then are clients in a row, as equal in number
            as can be, the first ones with one more.
        num_clients: K.

    Raises:
        ValueError: If a group has no client, or a client is not in one group.
    """
    if isinstance(groups, int):
        if groups > num_clients:
            raise ValueError(f"`groups` must be at most {num_clients}, the clients that train, got {groups}.")
        return [members.tolist() for members in np.array_split(np.arange(num_clients), groups)]
    named = [client for members in groups for client in members]
    if sorted(named) != list(range(num_clients)) or not all(groups):
        raise ValueError(
            f"`groups` must name each client from 0 to {num_clients - 1} once, and no group may be empty, got "
            f"{short_repr(groups)}."
        )
    return [list(members) for members in groups]
