"""Which tests reach which function: one run of the default tests, kept in ``mutants/reach`` by test file."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
import torch

from tests.fast import ROOT, tests_of
from tests.mutation.faults import CODE, functions
from tests.mutation.forks import Plugin, Work, in_forks

TOGETHER = 6  # test files in one fork
LONGEST = 3 * 3600  # seconds of such a fork
ELSEWHERE = 5.0  # times that a test of another room counts as longer


class Traced(Plugin):
    """Writes down the functions that each test reaches, and its seconds of processor time.

    As a finder of modules (``sys.meta_path``) it puts a call at the start of each function of the code. Processes that
    a test forks write what they reach into a file.
    """

    def __init__(self, folder: Path, stamps: dict[str, list[str]]) -> None:
        self.folder = folder
        self.reached: set[str] = set()
        self.files: dict[str, Any] = {
            name: {"stamp": stamp, "tests": {}, "failed": []} for name, stamp in stamps.items()
        }

    def start(self, tree: Path) -> None:
        super().start(tree)
        self.tree = tree
        self.process = os.getpid()
        self.of_children = tree / ".reached"
        self._to_parent = os.open(self.of_children, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        import fl_lightning  # noqa: F401

        signal.setitimer(signal.ITIMER_PROF, 0)

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name.split(".")[0] == CODE else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
            spec.loader.plugin = self
        return spec

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        self.reached.clear()
        start = spent()
        yield
        if collector.nodeid in self.files:
            self.files[collector.nodeid] |= {"seconds": spent() - start, "collected": sorted(self.reached)}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.reached.clear()
        self.failed = False
        start = spent()
        yield
        self.reached.update(self.of_children.read_text().split("\n")[:-1])
        os.truncate(self.of_children, 0)
        entry = self.files[file_of(item.nodeid)]
        if self.failed:
            entry["failed"].append(item.nodeid)
        else:
            entry["tests"][item.nodeid] = [round(spent() - start + 0.002, 3), sorted(self.reached)]

    def add(self, function: str) -> None:
        if function not in self.reached:
            self.reached.add(function)
            if os.getpid() != self.process:
                os.write(self._to_parent, f"{function}\n".encode())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in (0, 1, 5):
            return
        for name, entry in self.files.items():
            index: dict[str, int] = {}
            for reached in entry["tests"].values():
                reached[1] = [index.setdefault(function, len(index)) for function in reached[1]]
            path = path_of(self.folder, name)
            path.with_suffix(".new").write_text(json.dumps({**entry, "functions": [*index]}))
            os.replace(path.with_suffix(".new"), path)


class Loader(SourceFileLoader):
    """Puts the call on the line of the first statement: no line moves."""

    plugin: Traced

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        # of a linked folder, such as the data modules', the file that the link leads to
        tree, file = ast.parse(source), Path(self.path).resolve().relative_to(self.plugin.tree.resolve()).as_posix()
        names = {start: name for name, spans in functions(source.decode()).items() for start, _ in spans}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                call = ast.parse(f"__reached__({f'{file}::{names[node.lineno - 1]}'!r})").body[0]
                for part in ast.walk(call):
                    ast.copy_location(part, node.body[0])
                node.body.insert(ast.get_docstring(node, clean=False) is not None, call)
        # Without the `__future__` imports of this file.
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        plugin = self.plugin

        def note(function: str) -> None:
            plugin.add(function)

        # While PyTorch captures a step, it calls this at once, and leaves it out of what it captures.
        module.__dict__["__reached__"] = torch._dynamo.assume_constant_result(note)
        super().exec_module(module)


class Reach:
    """Knows the tests that reach some functions, and the seconds that they take."""

    def __init__(self, root: Path, folder: Path, short: bool, at_once: int) -> None:
        self.seconds: dict[str, float] = {}  # of each test
        self.collecting: dict[str, float] = {}  # of each test file
        self.tests: dict[str, set[str]] = {}  # by function
        self.of_file: dict[str, set[str]] = {}  # by the function's file
        self.folder = folder / "reach"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._renew(root, short, at_once)

    def _renew(self, root: Path, short: bool, at_once: int) -> None:
        """Run the test files that changed, and, unless it is the short form, all if anything else changed."""
        files = sorted((root / "tests").rglob("test_*.py"))
        rest = digest(path for path in code_and_tests(root) if path not in files and "mutation" not in path.parts)
        stamps = {path.relative_to(root).as_posix(): [digest([path]), rest] for path in files}
        known = {path.stem.replace("+", "/"): path for path in self.folder.glob("*.json")}
        for name in known.keys() - stamps.keys():
            known.pop(name).unlink()
        valid = {name: json.loads(path.read_text())["stamp"] for name, path in known.items()}
        old = [name for name, stamp in stamps.items() if valid.get(name, [None])[: 2 - short] != stamp[: 2 - short]]
        parts = [old[at : at + TOGETHER] for at in range(0, len(old), TOGETHER)]
        works = [Work(part, Traced(self.folder, {n: stamps[n] for n in part}), longest=LONGEST) for part in parts]
        for done, (work, code, last) in enumerate(in_forks(root, self.folder.parent, works, at_once), 1):
            print(f"what tests reach: {done} of {len(works)}", *(work.files, code, last) if code else (), flush=True)

    def load(self, functions: set[str]) -> None:
        """Load the tests that reach these functions, each ``file::name``."""
        self.tests = {function: set() for function in functions}
        self.of_file = {file_of(function): set() for function in functions}
        for path in sorted(self.folder.glob("*.json")):
            entry = json.loads(path.read_text())
            for test in entry["failed"]:
                print(f"left out, as it fails without a fault: {test}")
            if not entry["tests"]:
                continue
            self.seconds |= {test: seconds for test, (seconds, _) in entry["tests"].items()}
            self.collecting[path.stem.replace("+", "/")] = entry["seconds"]
            quickest = min(entry["tests"], key=self.seconds.__getitem__)
            for function in functions.intersection(entry["collected"]):
                self.tests[function].add(quickest)
            wanted = {at: function for at, function in enumerate(entry["functions"]) if function in functions}
            for test, (_, reached) in entry["tests"].items():
                for at in wanted.keys() & set(reached):
                    self.tests[wanted[at]].add(test)
                for file in self.of_file.keys() & {file_of(entry["functions"][at]) for at in reached}:
                    self.of_file[file].add(test)

    def choose(self, function: str, first: str | None, budget: float, whole_file: bool = False) -> dict[str, float]:
        """Return tests that reach a function and their seconds: ``first``, then as many as the budget allows.

        The nearest and quickest come first; those of a file stay together. Tests that reach anything in the function's
        file come last, if they are asked for: of a function whose results are cached, only one test is seen to reach
        it. A function that no test is seen to reach (it runs in other processes) has the quickest of each file.
        """
        reached = self.tests[function] or {
            min(tests, key=self.seconds.__getitem__) for tests in by_file(self.seconds).values()
        }
        near = [path.relative_to(ROOT).as_posix() for path in tests_of(Path(file_of(function)))]
        cases: Counter[str] = Counter()
        cost: dict[str, float] = {}
        for test in sorted(reached, key=lambda test: (self.seconds[test], test)):
            cases[test.split("[")[0]] += 1
            cost[test] = self.seconds[test] * cases[test.split("[")[0]]
            if not file_of(test).startswith(tuple(near)):
                cost[test] *= ELSEWHERE
        further = self.of_file[file_of(function)] - reached if whole_file else set()
        cost |= {test: budget + self.seconds[test] for test in further}
        if first in self.seconds:
            cost[first] = 0.0
        left = budget
        chosen: list[str] = []
        begun: set[str] = set()
        for test in sorted(cost, key=cost.__getitem__):
            left -= self.seconds[test] + (0.0 if file_of(test) in begun else self.collecting[file_of(test)])
            if left < 0 and chosen:
                break
            chosen.append(test)
            begun.add(file_of(test))
        return {test: self.seconds[test] for tests in by_file(chosen).values() for test in tests}


def by_file(tests: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for test in tests:
        found.setdefault(file_of(test), []).append(test)
    return found


def file_of(test: str) -> str:
    return test.split("::")[0]


def path_of(folder: Path, name: str) -> Path:
    return folder / (name.replace("/", "+") + ".json")


def code_and_tests(root: Path) -> Iterator[Path]:
    return (path for room in (CODE, "tests") for path in sorted((root / room).rglob("*.py")))


def digest(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:16]


def spent() -> float:
    """Return the seconds of processor time so far, with ended children: a busy machine hardly changes them."""
    return time.process_time() + sum(os.times()[2:4])
