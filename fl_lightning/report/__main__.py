"""``python -m fl_lightning.report results/`` writes the report of an experiment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.report.experiment_report import experiment_report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; 1 if there is nothing to report."""
    parser = argparse.ArgumentParser(prog="python -m fl_lightning.report", description=__doc__)
    parser.add_argument("results", type=Path, help="folder that python -m fl_lightning.experiment wrote")
    parser.add_argument("--out", type=Path, help="folder of the report; default: results/report")
    options = parser.parse_args(argv)
    try:
        print(experiment_report(options.results, options.out))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
