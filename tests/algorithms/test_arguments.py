"""Every argument of an algorithm reaches the part that it is of: ``arguments.txt`` has which parts change with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from helpers.written import assert_as_in
from torch import nn
from torch.utils.data import DataLoader

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.words import short_repr

FILE = Path(__file__).with_name("arguments.txt")
#: Arguments without a default; others of these are 0.5.
NEEDED: dict[str, Any] = {
    "pattern": "head", "redistributions": 3, "clusters": 2, "groups": 2, "inner_rounds": 2, "widths": [0.5],
    "module": nn.Linear(1, 1), "loader": DataLoader([1.0]),
}  # fmt: skip
#: Other values of arguments whose default is no number, switch or choice; others of these are 5.
OTHERS: dict[str, Any] = {
    "clients_per_round": 3, "sampler": parts.BernoulliSampler(0.5), "participation": parts.Participation(dropout=0.5),
    "exchange": parts.Clip(1.0), "aggregation": parts.Median(), "server": parts.Momentum(0.5), "staleness": "hinge",
    "local": parts.Proximal(0.5), "pattern": "body", "mixed": "head", "output_layer": "out", "executor": "vectorized",
    "inputs": "a", "outputs": "b", "hidden": {"c": 1}, "whole": "d", "widths": [1.0, 0.5], "ranks": [1, 2],
    "speeds": [1, 2], "clock": parts.VirtualClock(5), "optimizer": torch.optim.SGD, "state_dir": "states",
    "module": nn.Linear(2, 1), "loader": DataLoader([1.0, 2.0]), "schedule": parts.FineTuning(),
    "objective": parts.Proximal(0.5),
}  # fmt: skip
#: Arguments by which an algorithm is made of other parts, and those that these parts take.
TOGETHER = [
    partial(fl.FedAsync, history=5, lookahead=7, max_staleness=3),
    partial(fl.FedAsync, concurrency=3, lookahead=7, max_staleness=3),
    *[partial(fl.FedLoRA, mode, weighting="uniform", ranks=[1, 2]) for mode in ("ffa", "svd", "stack")],
    partial(fl.FedLoRA, "ffa", weighting="uniform"),
    partial(fl.FedLoRA, "ffa", ranks=[1, 2], padding="counts"),
]
#: What all algorithms have is shown for two.
SHOWN_WHOLE = ("FedAvg", "FedBuff")


def other(name: str, kind: Any, default: Any) -> Any:
    """Return another value of an argument than its default."""
    choices = [choice for choice in get_args(kind) if isinstance(choice, str | int) and choice != default]
    if choices and default is not None:
        return choices[-1]
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return default / 2 or 0.5
    return default + 1 if isinstance(default, int) else OTHERS.get(name, 5)


def parts_of(callback: fl.AggregationCallback) -> list[str]:
    algorithm = callback.algorithm
    more = (algorithm.participation, algorithm.invalid_updates, callback._executor, vars(callback.settings))
    return [repr(part) for part in (*algorithm.parts.values(), *more)]


def lines() -> Iterator[str]:
    for name in sorted(fl.__all__):
        kind = getattr(fl, name)
        if not (isinstance(kind, type) and issubclass(kind, fl.AggregationCallback)) or kind is fl.AggregationCallback:
            continue
        hints = get_type_hints(kind)
        defaults = {each.name: each.default for each in fields(kind) if each.init}
        needed = {each: NEEDED.get(each, 0.5) for each, default in defaults.items() if default is MISSING}
        bases = kind.__mro__[: kind.__mro__.index(fl.AggregationCallback)]
        own = {each for base in bases for each in vars(base).get("__annotations__", {})}
        callback = kind(**needed)
        plain = parts_of(callback)
        yield f"{name}: {callback.algorithm!r}"
        for argument, default in defaults.items():
            if name in SHOWN_WHOLE or argument in own:
                value = other(argument, hints[argument], needed.get(argument, default))
                try:
                    changed = parts_of(kind(**{**needed, argument: value}))
                    changes = [after for before, after in zip(plain, changed, strict=True) if before != after]
                except ValueError as error:
                    changes = [str(error)]
                yield f"    {argument}={short_repr(value)}: {', '.join(changes)}"
    yield from (repr(make().algorithm) for make in TOGETHER)


def test_arguments_reach_their_parts(tmp_path: Path) -> None:
    assert_as_in(FILE, lines(), tmp_path)
