"""Tables of what ``gpu.py`` has measured."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

_NUMBER = "{:,.4g}".format
_COLUMNS = {
    "seconds": "s a round",
    "samples_a_second": "samples a second",
    "launches_a_step": "launches a step",
    "busy": "device busy",
    "peak_gb": "GB",
}


def print_report(folder: Path) -> None:
    """Print what a folder's files hold."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        found[path.stem] = json.loads(path.read_text())
    card = found.get("card", {})
    for facts in ("machine", "peaks"):
        if facts in card:
            shown = pd.Series(card[facts]).to_string(float_format=_NUMBER)
            print(f"\n{shown}")
    for part, title in (
        ("rounds", "workload, clients of a round, way"),
        ("clients", "workload, clients at once"),
        ("pfl", "P1 with a central evaluation in every tenth round"),
    ):
        rows = {key: row for key, row in found.get(part, {}).items() if "seconds" in row}
        if rows:
            shown = _table(rows, card).to_string(float_format=_NUMBER, na_rep="")
            print(f"\n{title}\n{shown}")
    for part, measurements in found.items():
        for key, value in measurements.items():
            if "error" in value:
                print(f"failed: {part}: {key}: {value['error'][:300]}")


def _table(rows: dict[str, Any], card: dict[str, Any]) -> pd.DataFrame:
    """Return the measurements, with the least share of the time that the card needs, and the plain loop's time."""
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame = frame.reindex(columns=list(_COLUMNS)).rename(columns=_COLUMNS)
    least = []
    plain = []
    for key, row in rows.items():
        workload = key.split()[0]
        needs = card.get(f"needs {workload}", {})
        least.append(_share(needs, row, card))
        # The last word of a key is the way: the plain loop, an executor and so on.
        round_of_plain = rows.get(f"{key.rpartition(' ')[0]} plain", {})
        plain.append(round_of_plain.get("seconds", math.nan))
    frame["least / taken"] = least
    frame["plain / this"] = plain / frame["s a round"]
    return frame.dropna(axis=1, how="all")


def _share(need: dict[str, float], row: dict[str, Any], card: dict[str, Any]) -> float:
    """Return the share of a round's time that the card needs at least, by its rates of products and of copies."""
    peaks = card.get("peaks", {})
    if "flops_a_sample" not in need or "float32_flops" not in peaks:
        return math.nan
    samples = row["samples_a_second"] * row["seconds"]
    by_products = samples * need["flops_a_sample"] / peaks["float32_flops"]
    moved = samples * need["bytes_a_sample"] + row["client_steps"] * need["bytes_a_step"]
    share: float = max(by_products, moved / peaks["bytes_a_second"]) / row["seconds"]
    return share
