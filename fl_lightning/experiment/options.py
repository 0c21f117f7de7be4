"""Command-line options of all programs that run a table."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the folder, the workers and the part of the table that is run."""
    parser.add_argument("--output", type=Path, help="folder of the results; default: runs/<name of the table>")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes, one thread each; 0 runs all in this one; default: 1"
    )
    parser.add_argument("--devices", type=int, nargs="+", help="GPUs that the workers share out among them")
    parser.add_argument("--methods", nargs="+", help="only these methods")
    parser.add_argument("--data", nargs="+", help="only these data sets")
    parser.add_argument("--folds", nargs="+", type=int, help="these folds in place of the table's")
    parser.add_argument("--seeds", nargs="+", type=int, help="these seeds in place of the table's")
