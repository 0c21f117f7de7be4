"""What leaves a client besides the updates that exchanges protect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_lightning.parts.part import Part

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm

#: What that may be, for errors.
MORE = "vectors, losses or other numbers of single clients"
#: What the author of a part can do, for errors.
HINT = "A class of your own that sends updates alone says so by `sends_updates_alone = True`."


def parts_that_send_more(algorithm: Algorithm) -> list[Part]:
    """Return the parts of an algorithm by which clients send more than updates, or may do so as far as is known."""
    sampler = algorithm.sampler
    schedule = algorithm.schedule
    objective = algorithm.objective
    found: list[Part] = []
    if sampler.sends_scores:
        found.append(sampler)
    if schedule.sends_choice or not schedule.is_known_to_send_updates_alone:
        found.append(schedule)
    sends = objective.sends_loss or objective.sends_numbers or objective.vectors_sent > 1
    # Where the objective wants all to start from the server's model, the server keeps something of each client.
    if sends or objective.starts_from_server or not objective.is_known_to_send_updates_alone:
        found.append(objective)
    return found
