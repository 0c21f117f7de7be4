"""Whether a fit has the rounds that the server needs: to aggregate at all, and to end with an aggregation."""

from __future__ import annotations

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.checks import counted
from fl_lightning.parts.asynchronous.schedule import Asynchronous
from fl_lightning.parts.sampling import Arrivals, ClientSampler
from fl_lightning.parts.schedules import Redistribution


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


def warn_of_no_aggregation(
    name: str, schedule: object, sampler: ClientSampler, max_epochs: int | None, num_clients: int | None
) -> None:
    """Warn when fewer results arrive in a fit than the server's buffer holds.

    Args:
        name: The callback's name.
        schedule: The algorithm's schedule; only an :class:`Asynchronous` one has a buffer.
        sampler: Says how many results arrive in a round.
        max_epochs: Rounds of the fit; ``None`` or -1 for no end.
        num_clients: Number of training clients; ``None`` if it is not known yet.
    """
    if not isinstance(schedule, Asynchronous) or schedule.flush_rounds or max_epochs is None or max_epochs < 1:
        return
    if num_clients is None and not (isinstance(sampler, Arrivals) and isinstance(sampler.clients_per_round, int)):
        return
    arrivals = sampler.cohort_size(num_clients or 0)
    results = max_epochs * arrivals
    if results >= schedule.buffer_size:
        return
    rank_zero_warn(
        f"{name} never aggregates in this fit: `buffer_size` is {schedule.buffer_size}, but only "
        f"{counted(results, 'result')} {'arrives' if results == 1 else 'arrive'} "
        f"({counted(max_epochs, 'round')} x {arrivals}). Give a `buffer_size` of at most {results}, more "
        "`clients_per_round` or more rounds."
    )
