"""Tables of what ``gpu.py`` has measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_COLUMNS = ("plain", "graphs", "bare", "sequential", "vectorized", "auto")


def print_report(folder: Path) -> None:
    """Print what a folder's files hold, as tables in Markdown."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    card = found.get("card", {})
    machine, peaks = card.get("machine", {}), card.get("peaks", {})
    if machine:
        packages = ", ".join(f"{name} {machine[name]}" for name in ("torch", "lightning") if machine.get(name))
        print(f"\n{machine['device']}, {packages}")
    if "float32_flops" in peaks:
        rates = (f"{key.removesuffix('_flops')} {peaks[key] / 1e12:.1f}" for key in peaks if key.endswith("_flops"))
        print(
            f"products, TFLOP/s: {', '.join(rates)}; copies {peaks['bytes_a_second'] / 1e9:.0f} GB/s; "
            f"a launch {peaks['launch_seconds'] * 1e6:.1f} µs"
        )
    if "tests" in found:
        tests = found["tests"]["tests"]
        print(f"tests: {tests.get('error') or tests['output'].strip().rpartition(chr(10))[2]}")
    if "rounds" in found:
        _print_rounds(found["rounds"], card)
    if "clients" in found:
        _print_clients(found["clients"], card)
    if "pfl" in found:
        rates = {way: f"{row['seconds']:.4f} s a round" for way, row in found["pfl"].items() if "seconds" in row}
        print(f"\nP1 with a central evaluation in every tenth round: {rates}")
    for part, measurements in found.items():
        for key, value in measurements.items():
            if "error" in value:
                print(f"failed: {part}: {key}: {value['error'][:300]}")


def _print_rounds(rows: dict[str, Any], card: dict[str, Any]) -> None:
    """Print seconds a round, and by how much the best executor is faster than the plain loop."""
    print(f"\n| seconds a round | clients | {' | '.join(_COLUMNS)} | plain / best of ours | least / vectorized |")
    print("| --- " * (len(_COLUMNS) + 4) + "|")
    for place in dict.fromkeys(tuple(key.split()[:2]) for key in rows):
        own = {kind: rows.get(" ".join((*place, kind)), {}) for kind in _COLUMNS}
        cells = [f"{own[kind]['seconds']:.4f}" if "seconds" in own[kind] else "" for kind in _COLUMNS]
        ours = [own[way]["seconds"] for way in _COLUMNS[3:] if "seconds" in own[way]]
        gain = f"{own['plain']['seconds'] / min(ours):.1f}" if ours and "seconds" in own["plain"] else ""
        print(
            f"| {place[0]} | {place[1]} | {' | '.join(cells)} | {gain} | {_share(place[0], own['vectorized'], card)} |"
        )


def _print_clients(rows: dict[str, Any], card: dict[str, Any]) -> None:
    """Print what stacks of growing size cost."""
    names = ("s a round", "samples a second", "launches a step", "device busy", "least / taken", "GB")
    print(f"\n| clients at once | {' | '.join(names)} |")
    print("| --- " * (len(names) + 1) + "|")
    for key, row in rows.items():
        if "seconds" not in row:
            continue
        busy, peak = row.get("busy"), row.get("peak_gb")
        cells = [
            f"{row['seconds']:.4f}",
            f"{row['samples_a_second']:,.0f}",
            f"{row['launches_a_step']:.0f}",
            "" if busy is None else f"{busy:.0%}",
            _share(key.split()[0], row, card),
            "" if peak is None else f"{peak:.2f}",
        ]
        print(f"| {key} | {' | '.join(cells)} |")


def _share(name: str, row: dict[str, Any], card: dict[str, Any]) -> str:
    """Return the share of a round's time that the card needs at least, by its rates of products and of copies."""
    need, peaks = card.get(f"needs {name}", {}), card.get("peaks", {})
    if "seconds" not in row or "flops_a_sample" not in need or "float32_flops" not in peaks:
        return ""
    samples = row["samples_a_second"] * row["seconds"]
    by_products = samples * need["flops_a_sample"] / peaks["float32_flops"]
    moved = samples * need["bytes_a_sample"] + row["client_steps"] * need["bytes_a_step"]
    return f"{max(by_products, moved / peaks['bytes_a_second']) / row['seconds']:.0%}"
