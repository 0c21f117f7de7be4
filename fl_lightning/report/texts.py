"""Numbers of reports as texts."""

from __future__ import annotations

import math

from fl_lightning.report.experiment import Experiment

_SMALL, _LARGE = 0.01, 100.0  # numbers of four decimals
_LEAST_SHARE = 0.01  # of scores in per cent with two decimals
_ROUNDING = 1e-12  # a smaller spread is one of rounding alone


def number(experiment: Experiment, data: str, value: float, sign: bool = False, spread: float = math.nan) -> str:
    """Return a score of a data set as a text; in per cent if the scores are shares.

    Args:
        experiment: Has the scores.
        data: The data set.
        value: The score, or a difference of scores.
        sign: Whether a positive number has a sign.
        spread: The number's spread; a small one asks for more decimals.
    """
    if not math.isfinite(value):
        return ""
    scale, largest = 100 if experiment.percent(data) else 1, experiment.largest(data)
    if scale == 100 and (largest >= _LEAST_SHARE or largest == 0):
        text = _with_sign(scale * value, _decimals(2, scale * spread))
    else:
        text = by_size(scale * value, scale * largest, scale * spread)
    return text if sign else text.removeprefix("+")


def by_size(value: float, largest: float, spread: float = math.nan) -> str:
    """Return a number with its sign and four decimals; fewer for large numbers, and powers of ten for small ones.

    Args:
        value: The number.
        largest: Size of the largest number beside which it stands; all of these have the same form.
        spread: The number's spread; a small one asks for more decimals.
    """
    if 0 < largest < _SMALL:
        text = f"{value:+.3e}"
        return text if float(text) else "0"
    digits = 4 if largest < _LARGE else max(0, 5 - math.floor(math.log10(largest)))
    return _with_sign(value, _decimals(digits, spread))


def unit(experiment: Experiment, data: str) -> str:
    """Return the unit of the scores of a data set; empty if they have none."""
    return "%" if experiment.percent(data) else ""


def metric_and_unit(experiment: Experiment, data: str) -> str:
    """Return the metric of a data set with its unit, such as ``"accuracy, %"``."""
    return ", ".join(filter(None, [experiment.metric(data), unit(experiment, data)]))


def signed(value: float) -> str:
    """Return a relative difference in per cent as a text."""
    return _with_sign(value, 2) if math.isfinite(value) else ""


def interval(experiment: Experiment, data: str, low: float, high: float) -> str:
    """Return an interval as a text."""
    if not math.isfinite(low):
        return ""
    ends = [number(experiment, data, end, sign=True, spread=(high - low) / 2) for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"[{', '.join(ends)}]"


def p_text(p: float) -> str:
    """Return a p-value as a text."""
    if math.isnan(p):
        return ""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _decimals(usual: int, spread: float) -> int:
    """Return how many decimals show a spread: the usual number, or two digits of one that is below its last decimal."""
    if not _ROUNDING < spread < 10.0**-usual:
        return usual
    return 1 - math.floor(math.log10(spread))


def _with_sign(value: float, digits: int) -> str:
    """Return a number with its sign; zero has none."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]
