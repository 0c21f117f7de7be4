"""Differences between an experiment and the table of a paper that it reproduces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from fl_lightning.experiment.table_file import read_table
from fl_lightning.report.page import Table
from fl_lightning.report.results import Results
from fl_lightning.report.texts import table, text
from fl_lightning.words import enumeration, quantity

#: Settings of the machine or of the report, and those that are compared otherwise, at any depth.
_APART = {"accelerator", "cache_dir", "clients_at_once", "data_dir", "devices", "executor", "max_epochs", "weights"}
_OF_DATA = ("datamodule", "model", "metric", "monitor", "mode", "score", "validate_on_test", "targets")
_OF_METHOD = ("callback", "values", "tune", "take")
_COUNTED = {"data": "data sets", "methods": "methods", "folds": "folds", "seeds": "seeds"}
#: Characters of the longest value that is shown whole.
_LONGEST = 60


def reference_sentence(results: Results) -> str:
    """Return a sentence that says that the settings are not the paper's; empty if they are, or there is no paper."""
    found = differences(results)
    if not found:
        return ""
    # These are named one by one; of the others their number is.
    names = {"rounds", *_COUNTED.values()}
    parts = []
    others = 0
    for places, setting, here, there in found:
        if setting not in names:
            others += 1
            continue
        where = f" ({enumeration(places, most=4)})" if places else ""
        parts.append(f"{setting}: {here} of {there}{where}")
    if others:
        parts.append(quantity(others, "other setting"))
    return text("reference", results, parts)


def reference_table(results: Results) -> Table | None:
    """Return the table of all differences; ``None`` if there are none."""
    rows = []
    for places, setting, here, there in differences(results):
        rows.append([_joined(places, results), setting, here, there])
    if not rows:
        return None
    columns = ["data or method", "setting", "here", "there"]
    frame = pd.DataFrame(rows, columns=columns).set_index(columns[0])
    return table("differences", frame, results, texts=columns)


def differences(results: Results) -> list[tuple[Sequence[str], str, str, str]]:
    """Return what differs from the reference; nothing if the experiment has none, or it is of another version.

    Returns:
        For each difference the data sets or methods (none for the whole table), the setting, its value here and there.
    """
    here = results.table
    if not here.get("reference"):
        return []
    try:
        there = asdict(read_table(here["reference"]))
    except ValueError:
        return []
    of_table = _leaves(_of_table(here, there), _of_table(there, here))
    found: dict[tuple[str, str, str], list[str]] = {each: [] for each in of_table}
    for kind, settings_of in (("data", _of_data), ("methods", _of_method)):
        for name in here[kind]:
            if name not in there[kind]:
                continue
            for each in _leaves(settings_of(here, name), settings_of(there, name)):
                found.setdefault(each, []).append(name)
    return [(names, *each) for each, names in found.items()]


def _of_table(table: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a whole table that are compared with those of another one."""
    settings: dict[str, Any] = {title: len(table[name]) for name, title in _COUNTED.items()}
    for name in ("folds", "seeds"):
        # Of other numbers of folds the numbers alone are compared.
        if len(table[name]) == len(other[name]):
            settings[f"{name}, which"] = table[name]
    for name in ("select", "among", "baseline", "tuning"):
        settings[name] = table[name]
    return settings


def _of_data(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    own = table["data"][name]
    trainer = {**table["trainer"], **own["trainer"]}
    values = {**table["values"], **own["values"]}
    settings = {"rounds": f"{trainer['max_epochs']:,}", "trainer": trainer, "values": values}
    return settings | {entry: own[entry] for entry in _OF_DATA}


def _of_method(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {entry: table["methods"][name][entry] for entry in _OF_METHOD}


def _leaves(own: Any, other: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the settings that differ below a path, with their values here and there."""
    if own == other or path.rpartition(".")[2] in _APART:
        return
    if not (isinstance(own, Mapping) and isinstance(other, Mapping)):
        yield path, _text(own), _text(other)
        return
    for name in {**own, **other}:
        below = path if name == "init_args" else f"{path}.{name}".removeprefix(".")
        yield from _leaves(own.get(name), other.get(name), below)


def _text(value: Any) -> str:
    """Return a value as it is shown: a long one is cut."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > _LONGEST:
        return f"{text[: _LONGEST - 1]}…"
    return text


def _joined(places: Sequence[str], results: Results) -> str:
    """Return the data sets or methods to which a difference belongs."""
    if not places:
        return "the table"
    if len(places) > 1:
        if set(places) == set(results.table["data"]):
            return "all data sets"
        if set(places) == set(results.table["methods"]):
            return "all methods"
    return ", ".join(places)
