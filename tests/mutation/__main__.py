"""Mutation testing: ``python -m tests.mutation`` puts the faults of ``baseline.json`` into the code, one at a time.

It runs the tests that reach each one, and tells which faults are no longer noticed. Started again, it goes on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from tests.mutation.faults import HARMLESS, KINDS, Fault, draw, read, write
from tests.mutation.forks import Chosen, Work, in_forks
from tests.mutation.reach import Reach, by_file, code_and_tests, digest, file_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "mutants"
BASELINE = Path(__file__).with_name("baseline.json")
SEED = 1
SECONDS = 20.0  # of tests for one fault
LONGER = 120.0  # of tests for a fault that those did not notice
LONGEST = 60  # of a clock, for the one test that noticed a fault: one that is noticed by a deadlock ends then
ALLOWED = 0.01  # of the faults that were noticed
COLUMNS = ("faults", "harmless", "gone", "before", "now")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--short", action="store_true", help="every tenth fault; of the tests' reach only what changed")
    parser.add_argument("--known", type=int, metavar="N", help="every Nth noticed fault, by the test that noticed it")
    parser.add_argument("--baseline", action="store_true", help="write baseline.json: draw if missing, try the untried")
    parser.add_argument("--longer", action="store_true", help=f"try those that are not noticed for {LONGER:g} seconds")
    parser.add_argument("--processes", type=int, default=2, help="how many faults are tried at once (default: 2)")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if options.known:
        return try_known(options.known, options.processes)
    if options.baseline:
        faults = read(BASELINE) or draw(ROOT, KINDS, SEED)
        write(BASELINE, faults)
        try_all(faults, faults, BASELINE, options)
        return 0
    before = read(BASELINE)[:: 10 if options.short else 1]
    results = FOLDER / f"{'short' if options.short else 'full'}-{digest(code_and_tests(ROOT))}.json"
    faults = read(results) or [fault.untried() for fault in before]
    try_all(faults, before, results, options)
    return report(before, faults)


def try_all(faults: list[Fault], before: list[Fault], to: Path, options: argparse.Namespace) -> None:
    """Try the open faults that the code can have; write down each verdict when it is there."""
    seconds = LONGER if options.longer else SECONDS
    changes: dict[int, tuple[str, str]] = {}
    for at, fault in enumerate(faults):
        place = fault.put_into(ROOT) if fault.is_open(seconds) else None
        if place:
            changes[at] = place
    reach = Reach(ROOT, FOLDER, options.short, options.processes)
    reach.load({f"{file}::{faults[at].function}" for at, (file, _) in changes.items()})
    waiting: dict[int, dict[str, float]] = {}
    for at, (file, _) in changes.items():
        waiting[at] = reach.choose(f"{file}::{faults[at].function}", before[at].by, seconds, options.longer)
    others: dict[int, dict[str, float]] = {}
    done = 0
    while waiting:
        works = [Work([*by_file(tests)], Chosen(tests), changes[at], at) for at, tests in waiting.items()]
        following: dict[int, dict[str, float]] = {}
        for work, code, last in in_forks(ROOT, FOLDER, works, options.processes):
            tests = waiting[work.number]
            # All tests passed, or there was none; whatever else happens is noticed.
            noticed = code not in (0, 5)
            if noticed and last in tests and last != next(iter(tests)):
                # A test that forks may fail because of tests that ran before it: alone it tells of the fault.
                following[work.number] = {last: tests[last]}
                others[work.number] = {test: cost for test, cost in tests.items() if test != last}
                continue
            if not noticed and others.get(work.number):
                following[work.number] = others.pop(work.number)
                continue
            fault = faults[work.number]
            fault.noticed = noticed
            fault.by = (last or "import") if noticed else None
            fault.seconds = None if noticed else seconds
            write(to, faults)
            done += 1
            print(f"{done} of {len(changes)}: {fault.file} {fault.function} by {fault.by}", flush=True)
        waiting = following


def try_known(step: int, processes: int) -> int:
    """Try a part of the noticed faults, each by the test that noticed it; return 1 if one passes.

    Which part depends on the code, so that all have their turn.
    """
    known = [fault for fault in read(BASELINE) if fault.noticed and fault.by and "::" in fault.by]
    works = []
    for at in range(int(digest(code_and_tests(ROOT)), 16) % step, len(known), step):
        place = known[at].put_into(ROOT)
        if place:
            works.append(Work([file_of(known[at].by)], Chosen({known[at].by: 1.0}), place, at, LONGEST))
    counts: Counter[str] = Counter()
    for work, code, _ in in_forks(ROOT, FOLDER, works, processes):
        outcome = {0: "no longer noticed", 5: "without their test"}.get(code, "noticed")
        counts[outcome] += 1
        if code == 0:
            tell(known[work.number])
    print(*(f"{number} {outcome}" for outcome, number in counts.items()), sep=", ")
    return int(counts["no longer noticed"] > 0)


def tell(old: Fault) -> None:
    print(f"\n{old.file} {old.function} is no longer noticed; it was by {old.by}")
    print(*(f"- {line}" for line in old.before), *(f"+ {line}" for line in old.after), sep="\n")


def report(before: list[Fault], after: list[Fault]) -> int:
    """Print what is noticed by room, and the faults that no longer are; return 1 if they are too many."""
    rooms: dict[str, Counter[str]] = {}
    for old, new in zip(before, after, strict=True):
        for room in (new.room, "all"):
            counts = rooms.setdefault(room, Counter())
            counts["faults"] += 1
            counts["harmless"] += new.verdict in HARMLESS
            counts["gone"] += new.noticed is None and new.verdict not in HARMLESS
            counts["before"] += bool(old.noticed and new.noticed is not None)
            counts["now"] += bool(new.noticed)
        if old.noticed and new.noticed is False:
            tell(old)
    print(f"\n{'':32}" + "".join(f"{name:>10}" for name in COLUMNS) + f"{'share':>10}")
    for room, counts in sorted(rooms.items()):
        visible = counts["faults"] - counts["harmless"] - counts["gone"]
        share = f"{counts['now'] / visible:10.1%}" if visible else f"{'':10}"
        print(f"{room:32}" + "".join(f"{counts[name]:10}" for name in COLUMNS) + share)
    return int(rooms["all"]["now"] < (1 - ALLOWED) * rooms["all"]["before"])


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.mutation", *sys.argv[1:]], environment)
    sys.exit(main())
