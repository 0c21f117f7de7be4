"""Mutation testing: ``python -m tests.mutation --faults 1500 --seed 0 "fl_lightning/parts/*"``.

It draws small faults (mutants), puts them into a copy of the code one at a time, and prints how many of each file the
tests noticed, and the names of those that they did not; ``mutmut show NAME`` shows one.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name

COPY = Path("mutants")
NOT_NOTICED = (0, 5, 33, None)  # exit codes: all tests passed, or none reached it; all others are failures or crashes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("files", nargs="*", default=["*"], help="patterns of files; default: all of [tool.mutmut]")
    parser.add_argument("--faults", type=int, default=1000, help="how many are drawn; default: 1000")
    parser.add_argument("--seed", type=int, default=0, help="draws them; default: 0")
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests for one fault; default: 20")
    options = parser.parse_args()
    drawn = draw(options.files, options.faults, random.Random(options.seed))
    COPY.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(COPY.absolute()),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MUTATION_SECONDS": str(options.seconds),
    }
    program = shutil.which("mutmut", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        parser.error("mutmut is not installed: pip install mutmut")
    names = [name for found in drawn.values() for name in found]
    status = subprocess.run([program, "run", "--max-children", "1", *names], env=environment, check=False).returncode
    return status or report(drawn)


def draw(patterns: list[str], number: int, rng: random.Random) -> dict[Path, list[str]]:
    """Return the names of faults by file, drawn from all that can be put into the files."""
    found = [
        (path, get_mutant_name(path, name))
        for path in sorted(walk_mutatable_files())
        if any(fnmatch.fnmatch(str(path), pattern) for pattern in patterns)
        for name in mutate_file_contents(str(path), path.read_text()).mutant_names
    ]
    drawn: dict[Path, list[str]] = {}
    for path, name in sorted(rng.sample(found, min(number, len(found)))):
        drawn.setdefault(path, []).append(name)
    return drawn


def report(drawn: dict[Path, list[str]]) -> int:
    """Print what was noticed and what was not."""
    survivors: list[str] = []
    print(f"{'':62}{'tried':>8}{'noticed':>10}")
    for path, names in drawn.items():
        codes = json.loads((COPY / f"{path}.meta").read_text())["exit_code_by_key"]
        survived = [name for name in names if codes[name] in NOT_NOTICED]
        print(f"{path!s:62}{len(names):8}{len(names) - len(survived):10}")
        survivors += survived
    total = sum(map(len, drawn.values()))
    print(f"{'all':62}{total:8}{total - len(survivors):10}  ({1 - len(survivors) / total:.1%})")
    print(*survivors, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
