"""Everything that is measured on one GPU, in parts, each measurement written as soon as it is made.

    python benchmarks/gpu.py [--output gpu_results] [--seconds 480] [PART ...]

`card` measures the card's rates, `rounds` times W1 to W7, H1 to H3, P1 and B1 (the benchmarks of pfl-research and of
BlazeFL on CIFAR-10) with the cohort of the workload and with 100 clients a round: the plain loop, the plain loop with
CUDA graphs, bare products, and each executor. `clients` stacks 1 to 512 clients, `pfl` trains P1 with a central
evaluation in every tenth round, and `report` prints tables of all that. The tests that need a GPU:
pytest -m gpu tests/test_gpu.py

After `--seconds` no further measurement begins; the same command goes on from there. A measurement that fails is kept
with its error; give `--again` to repeat those. `--device cpu` tries the script itself. The workloads are those of
`workloads.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from federations import WORKLOADS as ALL
from gpu_report import print_report
from gpu_rounds import by_fit, by_hand, loops_of, needs, peaks

Measurement = tuple[str, Callable[[], dict[str, Any]]]

WORKLOADS = ("W1", "W2", "W3", "H3", "B1", "P1", "W7", "H1", "H2", "W4", "W5", "W6")
WAYS = ("sequential", "vectorized", "auto")


def card(options: argparse.Namespace) -> Iterator[Measurement]:
    """The machine, its rates, and what workloads need."""
    yield "machine", partial(machine, options.device)
    yield "peaks", partial(peaks, options.device)
    for name in options.workloads:
        yield f"needs {name}", partial(needs, name)


def rounds(options: argparse.Namespace) -> Iterator[Measurement]:
    """Rounds of each workload, by hand and by each executor."""
    for name in options.workloads:
        # The workload's cohort may be 100, too.
        usual = dict.fromkeys((ALL[name].per_round, 100))
        for per_round in options.cohorts or usual:
            for kind in loops_of(name, options.device):
                measure = partial(by_hand, name, kind, per_round, options.device, options.each)
                yield f"{name} {per_round} {kind}", measure
            for way in WAYS:
                measure = partial(by_fit, name, way, per_round, options.device, options.each)
                yield f"{name} {per_round} {way}", measure


def clients(options: argparse.Namespace) -> Iterator[Measurement]:
    """Rounds of as many clients as a stack has."""
    for name in options.workloads:
        for number in options.cohorts or [2**k for k in range(10)]:
            measure = partial(by_fit, name, "vectorized", number, options.device, options.each, at_once=number)
            yield f"{name} {number}", measure


def pfl(options: argparse.Namespace) -> Iterator[Measurement]:
    """The benchmark of pfl-research on CIFAR-10, with its central evaluations."""
    per_round = ALL["P1"].per_round
    for way in WAYS:
        yield way, partial(by_fit, "P1", way, per_round, options.device, 6 * options.each, every=10)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Measurement]]] = {
    "card": card,
    "rounds": rounds,
    "clients": clients,
    "pfl": pfl,
}


def machine(device: str) -> dict[str, Any]:
    """Return the names and versions of what measures."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "torch": version("torch"),
        "lightning": version("lightning"),
        "numpy": version("numpy"),
    }


def run_part(part: str, options: argparse.Namespace, until: float) -> int:
    """Make the measurements of a part that are missing, while there is time; return how many are still missing."""
    path = options.output / f"{part}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    if options.again:
        found = {key: value for key, value in found.items() if "error" not in value}
    missing = 0
    for key, measure in PARTS[part](options):
        if key in found:
            continue
        if time.perf_counter() > until:
            missing += 1
            continue
        begun = time.perf_counter()
        try:
            figures = measure()
        except Exception as error:
            figures = {
                "error": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc()[-3000:],
            }
        figures["took"] = time.perf_counter() - begun
        found[key] = figures
        path.with_suffix(".new").write_text(json.dumps(found, indent=1))
        os.replace(path.with_suffix(".new"), path)
        message = figures.get("error", "")
        seconds = figures.get("seconds", figures["took"])
        print(f"{part}: {key}: {message or f'{seconds:.4f} s'}", flush=True)
        # After an error of CUDA nothing works in this process.
        if "CUDA error" in message:
            sys.exit("The device has failed; run the same command again for the other measurements.")
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "report", "all"], default="all", metavar="PART")
    parser.add_argument("--output", type=Path, default=Path("gpu_results"))
    parser.add_argument("--seconds", type=float, default=480.0, help="after which no measurement begins")
    parser.add_argument("--each", type=float, default=4.0, help="seconds of rounds in each measurement")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--cohorts", nargs="+", type=int, help="clients of a round, instead of the usual ones")
    parser.add_argument("--again", action="store_true", help="repeat measurements that failed")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to try the script")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu tries the script")
    options.output.mkdir(parents=True, exist_ok=True)
    until = time.perf_counter() + options.seconds
    parts = PARTS if "all" in options.parts else options.parts
    left = []
    for part in parts:
        if part == "report":
            continue
        missing = run_part(part, options, until)
        if missing:
            left.append(f"{missing} of {part}")
    print_report(options.output)
    if left:
        print(f"Measurements left: {', '.join(left)}. The same command makes them.")


if __name__ == "__main__":
    main()
