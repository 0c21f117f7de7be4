"""The numbers in a result that a user's part returns: finite, and Python's, so that checkpoints can hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from fl_lightning.arguments import got, is_finite, plain
from fl_lightning.parts.federation import ClientResult, Task

_MOST = 1e100  # of weights: sums of larger ones leave the range of double precision, and a mean becomes 0
_HINT = "Give another number by `replace` of dataclasses, or leave it as it is"

#: The fields of a result that :func:`with_checked_numbers` looks at.
NUMBERS = ("task", "num_steps", "summed_lr", "score", "loss")


def with_checked_numbers(who: str, result: ClientResult) -> ClientResult:
    """Return a result whose numbers of samples and steps, learning rates, score and loss are plain numbers.

    Args:
        who: Begins the error: "`Part.method` returned".
        result: The result.

    Raises:
        TypeError: If the task is none.
        ValueError: If a number is none, or not finite; if samples or steps are fewer than 0.
    """
    task = result.task
    if not isinstance(task, Task):
        raise TypeError(
            f"{who} a result whose task is {got(task)}. Leave `result.task` as it "
            "is, or change it by `replace(result.task, num_samples=...)` of dataclasses."
        )
    samples = checked_number(who, "a result whose `task.num_samples`", task.num_samples, _HINT)
    steps = checked_number(who, "a result whose `num_steps`", result.num_steps, _HINT)
    score = _checked_or_none(who, "score", result.score)
    loss = _checked_or_none(who, "loss", result.loss)
    rates = _checked_rates(who, result.summed_lr)
    task = replace(task, num_samples=samples)
    return replace(result, task=task, num_steps=steps, summed_lr=rates, score=score, loss=loss)


def _checked_or_none(who: str, name: str, value: Any) -> float | None:
    """Return a field of a result that may be ``None`` as a plain number; see :func:`checked_number`."""
    what = f"a result whose `{name}`"
    return None if value is None else float(checked_number(who, what, value, _HINT, -math.inf))


def _checked_rates(who: str, rates: Any) -> list[float]:
    """Return ``summed_lr`` as a list of plain numbers; raise ``ValueError`` if it is none."""
    is_list = isinstance(rates, Iterable) and not isinstance(rates, str) and getattr(rates, "ndim", 1) == 1
    if not is_list:
        raise ValueError(
            f"{who} a result whose `summed_lr` is {got(rates)}; it must be one "
            "number for each parameter tensor, or (). Leave it as it is."
        )
    return [checked_number(who, "a result whose `summed_lr` has a value that", rate, _HINT) for rate in rates]


def checked_number(who: str, what: str, value: Any, hint: str, least: float = 0.0) -> Any:
    """Return a number of a user's part as Python's.

    Args:
        who: Begins the error: "`Part.method` returned".
        what: What the number is of, for the error.
        value: The number.
        hint: The way out.
        least: The smallest that is allowed.

    Raises:
        ValueError: If it is no number, not finite or too small.
    """
    number = plain(value.item() if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0 else value)
    if is_finite(number) and number >= least and (number <= _MOST or least < 0):
        return number
    allowed = "a finite number of at least 0 and at most 1e100" if least == 0 else "a finite number"
    raise ValueError(f"{who} {what} is {got(value)}; it must be {allowed}. {hint}.")
