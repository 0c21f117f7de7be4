"""Readings: which model of a fit a score is of.

The last model of a fit has a score, and so has the best of all its rounds. The best one is found by a metric of every
round. If that metric is of the test set, then the score is too high: chance was selected too. Papers print all three
kinds, so every score names its own.
"""

from __future__ import annotations

from typing import Literal

Select = Literal["last", "best on validation", "best on test"]
"""The reading of a table: the last model, or the best one by a metric of the validation set or of the test set."""


Among = Literal["aggregated", "virtual"]
"""The models of which the best one is chosen: aggregated ones, or all, also the means between two aggregations."""


def describe_reading(select: Select, among: Among) -> str:
    """Return which model of each run is tested, as words for a reader."""
    if select == "last":
        return "the last model of each run"
    samples = "the test set" if select == "best on test" else "validation"
    if among == "aggregated":
        return f"the aggregated model of each run that is best on {samples}"
    return f"the model of each run that is best on {samples}, means between aggregations included"


def check_reading(select: Select, data: str, validates_on_test: bool) -> None:
    """Raise ``ValueError`` if a reading does not say what the metric of every round is computed on.

    Args:
        select: The reading.
        data: Name of the data set.
        validates_on_test: Whether its fits validate on the test set.
    """
    if select == "best on test" and not validates_on_test:
        raise ValueError(
            f"`select` is 'best on test', but the data set {data} validates on samples of its own. Give "
            "`select: best on validation`, or `validate_on_test: true` for the data set."
        )
    if select == "best on validation" and validates_on_test:
        raise ValueError(
            f"`select` is 'best on validation', but the data set {data} has `validate_on_test: true`, so the model "
            "would be selected on the test set. Give `select: best on test`, which says so, or `select: last`."
        )
