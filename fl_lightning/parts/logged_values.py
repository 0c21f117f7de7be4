"""The values that parts log once a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from fl_lightning.arguments import got, is_number, plain
from fl_lightning.parts.traffic import RoundReport


def joined_values(sources: Iterable[tuple[object, Any]]) -> dict[str, float]:
    """Return the values of several parts, and of the algorithm, by name.

    Args:
        sources: Pairs of a part, or the algorithm, and what its ``values`` returned.

    Raises:
        TypeError: If something else than numbers by name was returned.
        ValueError: If two of them log the same name.
    """
    joined: dict[str, float] = {}
    owners: dict[str, str] = {}
    for owner, values in sources:
        name_of_owner = type(owner).__name__
        for name, value in checked_values(owner, values).items():
            if name in owners:
                raise ValueError(
                    f"`{name_of_owner}.values` returned {name!r}, but {owners[name]} logs a value of this name, too: "
                    f"one would hide the other. Give it another name, such as {f'{name}_{name_of_owner.lower()}'!r}."
                )
            joined[name], owners[name] = value, name_of_owner
    return joined


def checked_values(owner: object, values: Any) -> dict[str, float]:
    """Return what a part's ``values`` returned, as plain numbers; for errors see :func:`joined_values`."""
    method = f"`{type(owner).__name__}.values`"
    if not isinstance(values, Mapping):
        hint = " Is a `return` missing at its end?" if values is None else ""
        raise TypeError(f"{method} returned {got(values)}; it must return a dict of numbers by name.{hint}")
    return {_name(method, name): _number(method, name, value) for name, value in values.items()}


def _name(method: str, name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{method} returned the name {got(name)}. Names of logged values are texts.")
    return name


def _number(method: str, name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not is_number(value) and not isinstance(value, bool):
        raise TypeError(
            f"{method} returned {got(value)} as {name!r}. Values are logged as curves, so each is one number: return "
            "several under names of their own."
        )
    return plain(value)  # type: ignore[no-any-return]


def counts(report: RoundReport, aggregations: int, aggregated: bool, models_sent: int) -> dict[str, float]:
    """Return the counts of a round that has ended.

    ``fed/clients`` reported and were used, ``fed/dropped`` received a model and did not report, ``fed/left_out`` handed
    back invalid values; ``fed/aggregations`` and ``fed/models_sent`` (up and down) count from the start;
    ``fed/aggregated`` is 1 if the module holds a model that the server aggregated, and 0 otherwise.
    """
    return {
        "fed/clients": len(report.reported),
        "fed/dropped": report.dropped,
        "fed/left_out": len(report.left_out),
        "fed/aggregations": aggregations,
        "fed/aggregated": float(aggregated),
        "fed/models_sent": models_sent,
    }
