"""Differences between an experiment and the table of a paper that it reproduces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from fl_lightning.experiment.plan import rounds_of
from fl_lightning.experiment.table_file import read_table
from fl_lightning.report.experiment import Experiment
from fl_lightning.report.pages import Grid

#: Settings of the machine or of the report, and those that are compared otherwise.
_APART = {"accelerator", "cache_dir", "clients_at_once", "data_dir", "devices", "executor", "max_epochs", "weights"}
_OF_DATA = ("datamodule", "model", "metric", "monitor", "mode", "score", "validate_on_test", "targets")
_LONGEST = 60  # characters of a value
_MOST_NAMED = 4  # data sets in a sentence


@dataclass(frozen=True)
class Difference:
    """A setting that is not that of the reference.

    Attributes:
        place: Data sets or methods, or the empty string for the whole table.
        setting: Name of the setting.
        here: Its value in the experiment.
        there: Its value in the reference.
    """

    place: tuple[str, ...]
    setting: str
    here: str
    there: str


def differences(experiment: Experiment) -> list[Difference]:
    """Return what differs from the reference; nothing if the experiment has none."""
    there = _reference(json.dumps(experiment.table.get("reference") or {}))
    if there is None:
        return []
    here = experiment.table
    found = list(_of_table(here, there))
    found += _by_place(here, there, "data", _of_data)
    found += _by_place(here, there, "methods", _of_method)
    merged: dict[tuple[str, str, str], list[str]] = {}
    for place, setting, own, other in found:
        merged.setdefault((setting, own, other), []).extend([place] if place else [])
    return [Difference(tuple(places), *key) for key, places in merged.items()]


def reference_sentence(experiment: Experiment) -> str | None:
    """Return a sentence that says that the settings are not the paper's; ``None`` if they are, or there is no paper."""
    found = differences(experiment)
    if not found:
        return None
    parts = []
    for entry in found:
        if entry.setting == "rounds":
            parts.append(f"{entry.here} rounds of {entry.there}{_names(entry.place, experiment)}")
        elif entry.setting in ("folds", "seeds", "data sets", "methods"):
            parts.append(f"{entry.here} {_counted(entry.setting, entry.here)} of {entry.there}")
    others = len(found) - len(parts)
    if others:
        parts.append(f"{others} other setting{'' if others == 1 else 's'}")
    return (
        f"The settings are not those of {experiment.table['reproduces']}: {'; '.join(parts)}. No number here is a "
        "reproduction of one there. All differences are listed below."
    )


def reference_grid(experiment: Experiment) -> Grid | None:
    """Return the table of all differences; ``None`` if there are none."""
    rows = [
        [_places(entry.place, experiment), entry.setting, entry.here, entry.there] for entry in differences(experiment)
    ]
    if not rows:
        return None
    caption = f"Settings that are not those of {experiment.table['reproduces']}."
    header = ["data or method", "setting", "here", "there"]
    return Grid("differences", caption, header, rows, text_columns=(0, 1, 2, 3))


@lru_cache(maxsize=4)
def _reference(content: str) -> dict[str, Any] | None:
    given = json.loads(content)
    try:
        return asdict(read_table(given)) if given else None
    except ValueError:  # of another version
        return None


_Found = tuple[str, str, str, str]


def _of_table(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[_Found]:
    for name, title in (("data", "data sets"), ("methods", "methods"), ("folds", "folds"), ("seeds", "seeds")):
        if len(here[name]) != len(there[name]):
            yield "", title, str(len(here[name])), str(len(there[name]))
        elif name in ("folds", "seeds") and here[name] != there[name]:
            yield "", f"{title}, which", _text(here[name]), _text(there[name])
    for name in ("select", "baseline"):
        if here[name] != there[name]:
            yield "", name, _text(here[name]), _text(there[name])
    yield from (("", *found) for found in _leaves(here["tuning"], there["tuning"], "tuning"))


def _by_place(here: Mapping[str, Any], there: Mapping[str, Any], kind: str, compare: Any) -> Iterator[_Found]:
    for name, own in here[kind].items():
        if name in there[kind]:
            yield from ((name, *found) for found in compare((here, own), (there, there[kind][name])))


_Entry = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A table and one of its data sets or methods."""


def _of_data(here: _Entry, there: _Entry) -> Iterator[tuple[str, str, str]]:
    own, other = (_with_table(*entry, "trainer") for entry in (here, there))
    rounds = [rounds_of(own), rounds_of(other)]
    if rounds[0] != rounds[1]:
        mine, theirs = ("no limit" if number is None else f"{number:,}" for number in rounds)
        yield "rounds", mine, theirs
    yield from _leaves(own, other, "trainer")
    own, other = (_with_table(*entry, "values") for entry in (here, there))
    yield from _leaves(own, other, "values")
    for name in _OF_DATA:
        yield from _leaves(here[1][name], there[1][name], name)


def _with_table(table: Mapping[str, Any], entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of a data set on top of those of the table."""
    return {**table[name], **entry[name]}


def _of_method(here: _Entry, there: _Entry) -> Iterator[tuple[str, str, str]]:
    for name in ("callback", "values", "tune", "take"):
        yield from _leaves(here[1][name], there[1][name], name)


def _leaves(own: Any, other: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that differ below a path."""
    if own == other or path.rpartition(".")[2] in _APART:
        return
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        for name in [*own, *(name for name in other if name not in own)]:
            below = path if name == "init_args" else f"{path}.{name}"
            yield from _leaves(own.get(name), other.get(name), below)
    else:
        yield path, _text(own), _text(other)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _counted(noun: str, number: str) -> str:
    return noun.removesuffix("s") if number == "1" else noun


def _places(places: tuple[str, ...], experiment: Experiment) -> str:
    if not places:
        return "the table"
    for kind in ("data", "methods"):
        if len(places) > 1 and set(places) == set(experiment.table[kind]):
            return "all data sets" if kind == "data" else "all methods"
    return ", ".join(places)


def _names(places: tuple[str, ...], experiment: Experiment) -> str:
    """Return the data sets of a part of a sentence in brackets; nothing if they are all of the experiment."""
    if set(places) == set(experiment.table["data"]):
        return ""
    more = len(places) - _MOST_NAMED
    return f" ({', '.join(places[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''})"
