"""Run the tests that a change touches: ``make fast``.

A changed file of a room, such as ``fl_lightning/parts/aggregations/robust.py``, runs ``tests/parts`` without its long
cases; where that has tests of the file's name (``test_robust.py``), these and those of the room's messages. A changed
test runs itself. The quick contracts (:data:`ALWAYS`) come after them. ``--since COMMIT`` compares with another commit
than HEAD; more options go to pytest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
#: Rooms whose tests have other names, by the first two names of their paths.
ROOMS = {
    "fl_lightning/_lightning": ["lightning"],
    "fl_lightning/loop.py": ["lightning"],
    "fl_lightning/command": ["command"],
    "benchmarks": ["docs/test_benchmark_scripts.py"],
    "docs": ["docs"],
    "README.md": ["docs"],
    "datamodules/README.md": ["docs"],
    "mkdocs.yml": ["docs"],
}
#: Tests of a few seconds that notice most of what goes wrong elsewhere; those that there are.
ALWAYS = ["contracts/test_algorithms.py", "algorithms/test_oracles.py", "parts/test_parts.py"]


def changed(since: str) -> list[Path]:
    """Return the files that differ from a commit, new ones too."""
    commands = (["git", "diff", "--name-only", since], ["git", "ls-files", "--others", "--exclude-standard"])
    outputs = (subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=True).stdout for each in commands)
    return [Path(line) for output in outputs for line in output.splitlines()]


def tests_of(path: Path) -> list[Path]:
    """Return the test files or folders that a changed file touches."""
    if path.parts[0] == "tests":
        helper = path.name == "conftest.py" or not path.name.startswith("test_")
        return [ROOT / path.parent if helper and len(path.parts) > 2 else ROOT / path]
    names = ROOMS.get(path.parts[0], ROOMS.get("/".join(path.parts[:2])))
    room = path.parts[1] if path.parts[0] == "fl_lightning" and len(path.parts) > 2 else path.parts[0]
    found = [TESTS / name for name in (names or [room, f"test_{path.stem}.py"])]
    folders = [each for each in found if each.is_dir()]
    of_its_name = [each for folder in folders for each in folder.rglob(f"test_{path.stem}*.py")]
    of_messages = [each for folder in folders for each in folder.rglob("test_messages.py")]
    return of_its_name + of_messages if of_its_name and path.suffix == ".py" else found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD", help="the commit to compare with (default: %(default)s)")
    options, further = parser.parse_known_args()
    found = {test for path in changed(options.since) for test in tests_of(path)} | {TESTS / each for each in ALWAYS}
    there = sorted(test for test in found if test.is_dir() or (test.name.startswith("test_") and test.exists()))
    shown = [str(test.relative_to(ROOT)) for test in there]
    print("Tests:", *shown)
    command = ["-m", "pytest", "-q", "-x", "-n", "2", "--dist", "loadfile", "--durations", "3", *shown, *further]
    return subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
