"""Robust means of each parameter by itself."""

from __future__ import annotations

import numbers

import torch
from torch import Tensor

from fl_lightning.arguments import got_number, plain
from fl_lightning.parts.robust.base import PreAggregation, RobustAggregation, check_enough
from fl_lightning.parts.robust.updates import Updates


class Median(RobustAggregation):
    """The median of each parameter's updates (Yin et al. 2018); of an even number, the mean of the middle two.

    As long as fewer than half of the updates are arbitrary, each parameter moves within the range of the honest ones.

    Args:
        before: A step before the rule; see :class:`RobustAggregation`.
    """

    def rule(self, updates: Updates) -> Tensor:
        """Return the medians."""
        return _trimmed_means(updates, (len(updates) - 1) // 2)


class TrimmedMean(RobustAggregation):
    """The mean of each parameter's updates without the ``trim`` largest and the ``trim`` smallest (Yin et al. 2018).

    Up to ``trim`` updates may be arbitrary.

    Args:
        trim: How many are left out at each end: a whole number, or a share of the updates in [0, 0.5), rounded down.
        before: A step before the rule; see :class:`RobustAggregation`.

    Raises:
        ValueError: If ``trim`` is out of its range; in a round, if nothing would be left.
    """

    def __init__(self, trim: int | float, before: PreAggregation | None = None) -> None:
        is_count = isinstance(trim, numbers.Integral) and not isinstance(trim, bool) and trim >= 0
        is_share = isinstance(trim, numbers.Real) and not isinstance(trim, numbers.Integral) and 0 <= trim < 0.5
        if not (is_count or is_share):
            raise ValueError(
                "`trim` must be a whole number of at least 0, the updates left out at each end, or a share of them in "
                f"[0, 0.5), got {got_number(trim)}."
            )
        super().__init__(before)
        self.trim = int(trim) if is_count else float(plain(trim))

    def rule(self, updates: Updates) -> Tensor:
        """Return the trimmed means."""
        # nine decimals keep 0.29 * 100 = 28.999999999999996 from becoming 28
        trim = self.trim if isinstance(self.trim, int) else int(round(self.trim * len(updates), 9))
        check_enough(updates, 2 * trim + 1, self)
        return _trimmed_means(updates, trim)


def _trimmed_means(updates: Updates, trim: int) -> Tensor:
    rows = len(updates)
    return torch.cat([block.sort(0).values[trim : rows - trim].mean(0) for block in updates.blocks()])
