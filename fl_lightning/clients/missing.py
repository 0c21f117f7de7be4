"""Says which clients of a round are missing in the server's model."""

from __future__ import annotations

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning.parts.traffic import RoundReport


def tell_of_missing_clients(report: RoundReport, number: int) -> None:
    """Warn of the clients that a round left out; say in one line if it was empty.

    Args:
        report: What became of the round's clients.
        number: The round, from 1.
    """
    if report.left_out:
        rank_zero_warn(
            f"Round {number}: left out client(s) {report.left_out}, whose models have NaN or infinite values. Lower "
            "the learning rate or clip gradients. The values that these clients logged still count in the round's "
            "training metrics, which may be NaN, too: monitor a validation metric instead."
        )
    elif not report.reported:
        rank_zero_info(f"Round {number} is empty: no client reported.")
