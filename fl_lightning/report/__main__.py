"""``python -m fl_lightning.report results/`` writes the report of an experiment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.command_line import CommandParser, print_error
from fl_lightning.report.experiment_report import experiment_report


def main(argv: Sequence[str] | None = None, prog: str = "python -m fl_lightning.report") -> int:
    """Run the command and return its exit status; 1 if there is nothing to report."""
    options = parser(prog).parse_args(argv)
    try:
        print(experiment_report(options.results, options.output))
    except (ValueError, OSError) as error:
        print_error(error)
        return 1
    return 0


def parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = CommandParser(prog=prog, description="Write the report of an experiment as one HTML page.")
    made.add_argument("results", type=Path, help="folder that an experiment wrote")
    made.add_argument("--output", type=Path, help="folder of the report; default: report in the folder of the results")
    return made


if __name__ == "__main__":
    sys.exit(main())
