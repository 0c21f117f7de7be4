"""Says which clients of a round are missing in the server's model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning.parts.messages import RoundReport
from fl_lightning.representation import joined


def warn_of_left_out_clients(report: RoundReport, number: int, *, with_loss: bool = False) -> None:
    """Warn of the clients that a round left out; say in one line if it was empty.

    Args:
        report: The round's clients that reported, dropped out or were left out.
        number: The round, from 1.
        with_loss: Whether clients send a loss, which may be the reason too.
    """
    if report.left_out:
        rank_zero_warn(
            f"Round {number}: {_who_was_left_out(report.left_out, bool(report.reported), with_loss)} The values that "
            "these clients logged still count in the round's training metrics, which may be NaN, too: monitor a "
            "validation metric instead."
        )
    elif not report.reported:
        rank_zero_info(f"Round {number} is empty: no client reported.")


def _who_was_left_out(clients: Sequence[int], others_are_left: bool, with_loss: bool) -> str:
    """Return who was left out of a round, why, and what it means for the model."""
    models = sorted(Counter(clients).items())  # of an asynchronous client there may be several
    numbers = [f"{client}" if number == 1 else f"{client} ({number} models)" for client, number in models]
    if len(clients) == 1:
        who = f"client {numbers[0]} was left out: its model has"
    elif len(numbers) == 1:
        who = f"{len(clients)} models of client {clients[0]} were left out: they have"
    else:
        who = f"clients {joined(numbers, most=5)} were left out: their models have"
    rest = "" if others_are_left else "No client is left, so the model stays. "
    loss = (", or its loss is" if len(clients) == 1 else ", or their losses are") + " NaN or infinite"
    return f"{who} NaN or infinite values{loss if with_loss else ''}. {rest}Lower the learning rate or clip gradients."
