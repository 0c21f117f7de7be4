"""Command-line options of all programs that run a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the folder, the workers, their limits and the part of the table that is run."""
    parser.add_argument("--output", type=Path, help="folder of the results; default: runs/<name of the table>")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes, one thread each; 0 runs all in this one; default: 1"
    )
    parser.add_argument("--devices", type=int, nargs="+", help="GPUs that the workers share out among them")
    parser.add_argument("--methods", nargs="+", help="only these methods")
    parser.add_argument("--data", nargs="+", help="only these data sets")
    parser.add_argument("--folds", nargs="+", type=int, help="these folds in place of the table's")
    parser.add_argument("--seeds", nargs="+", type=int, help="these seeds in place of the table's")
    parser.add_argument(
        "--checkpoint-seconds", type=float, default=60.0, help="time between two checkpoints; default: 60"
    )
    parser.add_argument("--cell-timeout", type=float, metavar="SECONDS", help="longest time of an attempt at a cell")
    parser.add_argument("--retries", type=int, default=0, help="further attempts at a cell that failed; default: 0")
    parser.add_argument(
        "--memory-limit", type=float, metavar="GB", help="main memory that a worker may allocate; on Linux"
    )


def run_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of :func:`~fl_lightning.experiment.run_table` that the options give."""
    names = ("workers", "devices", "checkpoint_seconds", "cell_timeout", "retries", "memory_limit")
    return {name: getattr(options, name) for name in names}
