"""Mutation testing: ``python -m tests.mutation`` puts the faults of ``baseline.json`` into the code, one at a time.

It runs the tests that reach each one, and tells which faults are no longer noticed. Started again, it goes on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from tests.mutation.faults import Fault, draw, read, write
from tests.mutation.forks import Chosen, Work, in_forks
from tests.mutation.reach import Reach, by_file, code_and_tests, digest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "mutants"
BASELINE = Path(__file__).with_name("baseline.json")
FAULTS = 600
SECONDS = 20.0  # of tests for one fault
ALLOWED = 0.01  # of the faults that were noticed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--short", action="store_true", help="every tenth fault; of the tests' reach only what changed")
    parser.add_argument("--baseline", action="store_true", help="write baseline.json: draw if missing, try the untried")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if options.baseline:
        faults = read(BASELINE) or draw(ROOT, FAULTS, seed=0)
        write(BASELINE, faults)
        try_all(faults, faults, BASELINE, short=False)
        return 0
    before = read(BASELINE)[:: 10 if options.short else 1]
    results = FOLDER / f"{'short' if options.short else 'full'}-{digest(code_and_tests(ROOT))}.json"
    faults = read(results) or [fault.untried() for fault in before]
    try_all(faults, before, results, options.short)
    return report(before, faults)


def try_all(faults: list[Fault], before: list[Fault], to: Path, short: bool) -> None:
    """Try the faults without a verdict that the code can have; write down each verdict when it is there."""
    places = {at: fault.put_into(ROOT) for at, fault in enumerate(faults) if fault.noticed is None}
    changes = {at: place for at, place in places.items() if place}
    reach = Reach(ROOT, FOLDER, short)
    reach.load({f"{file}::{faults[at].function}" for at, (file, _) in changes.items()})
    works = []
    for at, (file, text) in changes.items():
        tests = reach.choose(f"{file}::{faults[at].function}", before[at].by, SECONDS)
        works.append(Work([*by_file(tests)], Chosen(tests), (file, text), at))
    for done, (work, code, last) in enumerate(in_forks(ROOT, FOLDER, works), 1):
        fault = faults[work.number]
        fault.noticed = code not in (0, 5)  # all tests passed, or there was none; whatever else happens is noticed
        fault.by = (last or "import") if fault.noticed else None
        write(to, faults)
        print(f"{done} of {len(works)}: {fault.file} {fault.function} by {fault.by}", flush=True)


def report(before: list[Fault], after: list[Fault]) -> int:
    """Print what is noticed by room, and the faults that no longer are; return 1 if they are too many."""
    rooms: dict[str, Counter[str]] = {}
    for old, new in zip(before, after, strict=True):
        for room in (new.room, "all"):
            counts = rooms.setdefault(room, Counter())
            counts["faults"] += 1
            counts["gone"] += new.noticed is None
            counts["before"] += bool(old.noticed and new.noticed is not None)
            counts["now"] += bool(new.noticed)
        if old.noticed and new.noticed is False:
            print(f"\n{old.file} {old.function} is no longer noticed; it was by {old.by}")
            print(*(f"- {line}" for line in old.before), *(f"+ {line}" for line in old.after), sep="\n")
    print(f"\n{'':32}{'faults':>10}{'gone':>10}{'before':>10}{'now':>10}")
    for room, counts in sorted(rooms.items()):
        print(f"{room:32}" + "".join(f"{counts[name]:10}" for name in ("faults", "gone", "before", "now")))
    return int(rooms["all"]["now"] < (1 - ALLOWED) * rooms["all"]["before"])


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.mutation", *sys.argv[1:]], environment)
    sys.exit(main())
