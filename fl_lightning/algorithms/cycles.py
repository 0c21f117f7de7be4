"""Whether a fit ends with an aggregation where models circulate."""

from __future__ import annotations

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.parts.redistribution import Redistribution


def warn_of_open_cycle(schedule: object, max_epochs: int | None) -> None:
    """Warn when a fit would end in the middle of a cycle.

    Args:
        schedule: The algorithm's schedule; only models of a :class:`Redistribution` circulate.
        max_epochs: Rounds of the fit; ``None`` or -1 for no end.
    """
    if not isinstance(schedule, Redistribution) or max_epochs is None or max_epochs < 0:
        return
    over, cycle = max_epochs % schedule.redistributions, schedule.redistributions
    if over == 0:
        return
    choices = [str(n) for n in (max_epochs - over, max_epochs - over + cycle) if n]
    late = "the last round comes" if over == 1 else f"the last {over} rounds come"
    ending = "the mean of the circulating models" if schedule.evaluate == "virtual" else "the last aggregate"
    rank_zero_warn(
        f"`max_epochs={max_epochs}` is not a multiple of `redistributions={cycle}`: {late} after "
        f"the last aggregation, and the final model is {ending}. An epoch is one inner round; the paper has T x S of "
        f"them. Give max_epochs={' or '.join(choices)} for whole cycles."
    )
