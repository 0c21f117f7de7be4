"""Rounds without a trainer."""

from fl_lightning.parts import Algorithm
from fl_lightning.parts.round import Round


def begin_round(algorithm: Algorithm, round_index: int, full_work: int = 1) -> Round:
    """Begin a round of an algorithm's fit, draw its clients, and return it."""
    begun = algorithm.run.begin_round(round_index, full_work)
    begun.draw()
    return begun
