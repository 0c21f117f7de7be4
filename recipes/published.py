"""Results that other groups published with their hyper-parameters, run again and set beside theirs.

    python recipes/published.py                                            # MNIST, 15 of 50 rounds, one seed; an hour
    python recipes/published.py --preset mnist --workers 2                 # MNIST in full: four methods, three seeds
    python recipes/published.py --preset cifar10                           # CIFAR-10, ten clients; wants a GPU
    python recipes/published.py --preset nvflare --data CIFAR10-8-dir.1    # CIFAR-10, eight clients; wants a GPU
    python recipes/published.py --preset nvflare --methods FedAvg

The settings are in tables/published_<preset>.yaml, their numbers with sources in published.yaml. The recipe prints both
and writes them to published.csv beside the results. A number of theirs is met if ours is at most two standard
deviations away, of theirs and ours together; where they print none and ours is of one seed, the difference is all that
can be said. The data are in $FL_LIGHTNING_DATA, else in data/.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from fl_lightning.command import run_presets

HERE = Path(__file__).parent
PRESETS = {name: HERE / "tables" / f"published_{name}.yaml" for name in ("mnist_short", "mnist", "cifar10", "nvflare")}
PUBLISHED = HERE / "published.yaml"
COLUMNS = ("data", "method", "source", "theirs", "their_sd", "ours", "our_sd", "runs", "rounds", "verdict")


def verdict(ours: Sequence[float], theirs: float, their_sd: float | None) -> str:
    """Say whether a published accuracy is met.

    Args:
        ours: Accuracies of our runs, in %.
        theirs: The published accuracy, in %.
        their_sd: Its standard deviation over runs, in points; ``None`` if none was published.
    """
    difference = mean(ours) - theirs
    spreads = [their_sd] if their_sd is not None else []
    spreads += [stdev(ours)] if len(ours) > 1 else []
    if not spreads:
        return f"{difference:+.2f} points, no spread known"
    allowed = 2 * math.hypot(*spreads)
    met = "met" if abs(difference) <= allowed else "not met"
    return f"{met}: {difference:+.2f} points, {allowed:.2f} allowed"


def compare(results: Sequence[Mapping[str, str]], published: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each published number of which there are runs.

    Args:
        results: Rows of a ``results.csv``.
        published: Content of ``published.yaml``.
    """
    for data, sources in published["numbers"].items():
        for source, methods in sources.items():
            for method, number in methods.items():
                runs = [row for row in results if (row["data"], row["method"]) == (data, method) and row["score"]]
                if not runs:
                    continue
                theirs, sd = (number["score"], number["sd"]) if isinstance(number, Mapping) else (number, None)
                ours = [100 * float(row["score"]) for row in runs]
                own_sd = stdev(ours) if len(ours) > 1 else None
                shown = [published["sources"][source], theirs, sd, round(mean(ours), 2), own_sd, len(ours)]
                values = [data, method, *shown, runs[0]["rounds"], verdict(ours, theirs, sd)]
                yield dict(zip(COLUMNS, values, strict=True))


def write_comparison(results: Path) -> Path:
    """Print the numbers beside each other, write them next to ``results.csv`` and return the file."""
    with results.open(newline="") as file:
        rows = list(compare(list(csv.DictReader(file)), yaml.safe_load(PUBLISHED.read_text())))
    for row in rows:
        print(
            f"{row['data']}, {row['method']}: {row['ours']} here, {row['theirs']} in {row['source']}; {row['verdict']}"
        )
    path = results.with_name("published.csv")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


if __name__ == "__main__":
    page = run_presets(__doc__ or "", PRESETS)
    if page is not None:
        print(f"Beside the published numbers: {write_comparison(page.parents[1] / 'results.csv')}")
