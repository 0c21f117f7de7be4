"""The argument ``clients_per_round``: a fraction of the clients, or their number."""

from __future__ import annotations

import numbers

import numpy as np

from fl_lightning.arguments import got_number, is_number, plain


def fraction_or_number(clients_per_round: int | float) -> int | float:
    """Return clients per round as a plain number: a float in (0, 1] is a fraction, an int of at least 1 their number.

    Raises:
        ValueError: If it is neither.
    """
    if is_number(clients_per_round):
        if isinstance(clients_per_round, numbers.Integral) and clients_per_round >= 1:
            return int(clients_per_round)
        if isinstance(clients_per_round, (float, np.floating)) and 0.0 < clients_per_round <= 1.0:
            return float(plain(clients_per_round))
    raise ValueError(
        "`clients_per_round` must be a float in (0, 1], the fraction of the clients, or an int of at least 1, "
        f"their number; got {got_number(clients_per_round)}. For all clients give 1.0."
    )
