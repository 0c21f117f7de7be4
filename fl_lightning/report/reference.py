"""Differences between an experiment and the table of a paper that it reproduces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from fl_lightning.checks import counted, joined
from fl_lightning.experiment.table_file import read_table
from fl_lightning.report.page import Table
from fl_lightning.report.results import Results

#: Settings of the machine or of the report, and those that are compared otherwise.
_APART = {"accelerator", "cache_dir", "clients_at_once", "data_dir", "devices", "executor", "max_epochs", "weights"}
_OF_DATA = ("datamodule", "model", "metric", "monitor", "mode", "score", "validate_on_test", "targets")
_OF_METHOD = ("callback", "values", "tune", "take")
_COUNTED = {"data": "data sets", "methods": "methods", "folds": "folds", "seeds": "seeds"}
_LONGEST = 60  # characters of a value
_Found = Iterator[tuple[str, str, str]]
"""Settings that differ, with their values here and there."""


def reference_sentence(results: Results) -> str:
    """Return a sentence that says that the settings are not the paper's; empty if they are, or there is no paper."""
    found = differences(results)
    if not found:
        return ""
    names = {"rounds", *_COUNTED.values()}
    parts = [
        f"{setting}: {here} of {there}{f' ({joined(places, most=4)})' if places else ''}"
        for places, setting, here, there in found
        if setting in names
    ]
    if others := len(found) - len(parts):
        parts.append(counted(others, "other setting"))
    return (
        f"The settings are not those of {results.table['reproduces']}: {'; '.join(parts)}. No number here is a "
        "reproduction of one there. All differences are listed below."
    )


def reference_table(results: Results) -> Table | None:
    """Return the table of all differences; ``None`` if there are none."""
    rows = [[_joined(places, results), *texts] for places, *texts in differences(results)]
    if not rows:
        return None
    columns = ["data or method", "setting", "here", "there"]
    frame = pd.DataFrame(rows, columns=columns).set_index(columns[0])
    caption = f"Settings that are not those of {results.table['reproduces']}."
    return Table("differences", caption, frame, texts=columns)


def differences(results: Results) -> list[tuple[Sequence[str], str, str, str]]:
    """Return what differs from the reference; nothing if the experiment has none, or it is of another version.

    Returns:
        For each difference the data sets or methods (none for the whole table), the setting, its value here and there.
    """
    here = results.table
    try:
        there = asdict(read_table(here["reference"])) if here.get("reference") else None
    except ValueError:
        there = None
    if there is None:
        return []
    places: dict[tuple[str, str, str], list[str]] = {found: [] for found in _of_table(here, there)}
    for kind, compare in (("data", _of_data), ("methods", _of_method)):
        for name in here[kind]:
            if name in there[kind]:
                for found in compare(here, there, name):
                    places.setdefault(found, []).append(name)
    return [(names, *found) for found, names in places.items()]


def _of_table(here: Mapping[str, Any], there: Mapping[str, Any]) -> _Found:
    for name, title in _COUNTED.items():
        if len(here[name]) != len(there[name]):
            yield title, str(len(here[name])), str(len(there[name]))
        elif name in ("folds", "seeds"):
            yield from _leaves(here[name], there[name], f"{title}, which")
    for name in ("select", "baseline", "tuning"):
        yield from _leaves(here[name], there[name], name)


def _of_data(here: Mapping[str, Any], there: Mapping[str, Any], name: str) -> _Found:
    own, other = here["data"][name], there["data"][name]
    trainers = {**here["trainer"], **own["trainer"]}, {**there["trainer"], **other["trainer"]}
    rounds = [f"{trainer['max_epochs']:,}" for trainer in trainers]
    yield from _leaves(rounds[0], rounds[1], "rounds")
    yield from _leaves(trainers[0], trainers[1], "trainer")
    yield from _leaves({**here["values"], **own["values"]}, {**there["values"], **other["values"]}, "values")
    for entry in _OF_DATA:
        yield from _leaves(own[entry], other[entry], entry)


def _of_method(here: Mapping[str, Any], there: Mapping[str, Any], name: str) -> _Found:
    for entry in _OF_METHOD:
        yield from _leaves(here["methods"][name][entry], there["methods"][name][entry], entry)


def _leaves(own: Any, other: Any, path: str) -> _Found:
    """Yield the settings that differ below a path."""
    if own == other or path.rpartition(".")[2] in _APART:
        return
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        for name in {**own, **other}:
            yield from _leaves(own.get(name), other.get(name), path if name == "init_args" else f"{path}.{name}")
    else:
        yield path, _text(own), _text(other)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _joined(places: Sequence[str], results: Results) -> str:
    for kind, title in (("data", "all data sets"), ("methods", "all methods")):
        if len(places) > 1 and set(places) == set(results.table[kind]):
            return title
    return ", ".join(places) or "the table"
