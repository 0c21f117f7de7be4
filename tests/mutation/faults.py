"""Small faults in the code: drawn, written down by their text, and found again in later code."""

from __future__ import annotations

import ast
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import libcst as cst
import libcst.matchers as m

from tests.mutation.operators import CHECKS, Collector, Facts

CODE = "fl_lightning"
# Left out: types, sentences, and calls of which nothing but types and sizes come.
CALLS = m.OneOf(*(m.Name(name) for name in ("cast", "isinstance", "len", "getLogger")))
LEFT_OUT = (
    m.Annotation()
    | m.Decorator()
    | m.SimpleStatementLine(body=[m.Expr(value=m.SimpleString())])
    | m.Arg(keyword=m.OneOf(*(m.Name(name) for name in CHECKS)))
    | m.SimpleString(value=m.MatchIfTrue(lambda text: " " in text))
    | m.Call(func=CALLS | m.Attribute(attr=CALLS))
)
# What tells something to users: of its sentences, the values alone are changed.
TELLING = "warn debug info warning error rank_zero_warn rank_zero_info rank_zero_debug"
TELLS = m.OneOf(*(m.Name(name) for name in TELLING.split()))
WORDING = m.Raise() | m.Call(func=TELLS | m.Attribute(attr=TELLS))
# Faults of each kind; see the operators.
KINDS = {"operator": 390, "value": 70, "owner": 15, "neighbour": 35, "once": 40, "state": 20, "argument": 30}
# Verdicts on faults that no test can notice.
HARMLESS = ("same program", "only speed")


@dataclass
class Fault:
    """One fault: lines of a function that are replaced, and whether the tests noticed it.

    ``before`` and ``after`` are without the indentation of their first line; ``nth`` counts equal lines of the
    function. ``noticed`` is ``None`` before the fault was tried; ``by`` is the test that failed. ``seconds`` is how
    long the tests took that did not notice it. Somebody who has read it gives a ``verdict``: ``"gap"``, ``"same
    program"`` or ``"only speed"``, with a ``reason`` that can be checked.
    """

    file: str
    function: str
    before: list[str]
    after: list[str]
    nth: int = 0
    noticed: bool | None = None
    by: str | None = None
    kind: str = "operator"
    seconds: float | None = None
    verdict: str | None = None
    reason: str | None = None

    @property
    def room(self) -> str:
        return room_of(Path(self.file))

    def untried(self) -> Fault:
        return replace(self, noticed=None, by=None, seconds=None)

    @property
    def change(self) -> tuple[object, ...]:
        return (self.file, self.function, self.before, self.after, self.nth)

    def is_open(self, seconds: float) -> bool:
        """Whether the fault is still to be tried by tests that take as long."""
        if self.noticed or self.verdict in HARMLESS:
            return False
        return self.noticed is None or (self.seconds is not None and self.seconds < seconds)

    def put_into(self, root: Path) -> tuple[str, str] | None:
        """Return a file and its text with the fault; ``None`` where no function of this name has the lines any more.

        A function that moved to another file is found there.
        """
        for path in [root / self.file, *code_files(root)]:
            text = path.read_text() if path.exists() else ""
            for start, end in functions(text).get(self.function, []):
                lines = text.splitlines()
                found = places(self.before, lines[start:end])
                if len(found) > self.nth:
                    at = start + found[self.nth]
                    lines[at : at + len(self.before)] = indented(self.after, lines[at])
                    return path.relative_to(root).as_posix(), "\n".join(lines) + "\n"
        return None


def read(path: Path) -> list[Fault]:
    return [Fault(**fault) for fault in json.loads(path.read_text())] if path.exists() else []


def write(path: Path, faults: list[Fault]) -> None:
    """Write one fault a line, in one step: a kill leaves the file as it was before or after."""
    new = path.with_suffix(".new")
    new.write_text("[\n" + ",\n".join(json.dumps(asdict(fault), ensure_ascii=False) for fault in faults) + "\n]\n")
    os.replace(new, path)


def draw(root: Path, numbers: dict[str, int], seed: int) -> list[Fault]:
    """Draw faults, of each kind as many as wanted, in each room in proportion to its lines of code."""
    rng = random.Random(seed)
    found: dict[str, dict[str, list[tuple[Path, cst.Module, cst.CSTNode, cst.CSTNode]]]] = {}
    lines: Counter[str] = Counter()
    facts = Facts(code_files(root))
    for path in code_files(root):
        room = room_of(path.relative_to(root))
        text = path.read_text()
        lines[room] += len(code_lines(text))
        collector = Collector(facts, LEFT_OUT, WORDING)
        module = cst.parse_module(text)
        module.visit(collector)
        for kind, old, new in collector.changes:
            found.setdefault(kind, {}).setdefault(room, []).append((path, module, old, new))
    faults: list[Fault] = []
    for kind, number in numbers.items():
        rooms = found[kind]
        for changes in rooms.values():
            rng.shuffle(changes)
        wanted = len(faults) + number
        while len(faults) < wanted and rooms:
            room = rng.choices([*rooms], [lines[room] for room in rooms])[0]
            fault = described(root, *rooms[room].pop())
            if not rooms[room]:
                del rooms[room]
            if fault and fault.change not in [other.change for other in faults]:
                faults.append(replace(fault, kind=kind))
    rng.shuffle(faults)
    return faults


def described(root: Path, path: Path, module: cst.Module, old: cst.CSTNode, new: cst.CSTNode) -> Fault | None:
    """Write a change of the syntax tree down as a change of lines; ``None`` where the lines do not give it back."""
    text, changed = module.code, module.deep_replace(old, new).code  # type: ignore[union-attr]
    before, after = text.splitlines(), changed.splitlines()
    edits = [edit for edit in SequenceMatcher(None, before, after, False).get_opcodes() if edit[0] != "equal"]
    if not edits:
        return None
    (_, start, _, first, _), (_, _, end, _, last) = edits[0], edits[-1]
    spans = [(b - a, a, b, name) for name, spans in functions(text).items() for a, b in spans if a <= start < end <= b]
    if not spans:
        return None
    _, begin, stop, name = min(spans)
    indent = len(before[start]) - len(before[start].lstrip())
    olds, news = ([line[indent:] for line in part] for part in (before[start:end], after[first:last]))
    found = places(olds, before[begin:stop])
    if start - begin not in found:
        return None
    fault = Fault(path.relative_to(root).as_posix(), name, olds, news, found.index(start - begin))
    again = fault.put_into(root)
    return fault if again and ast.dump(ast.parse(again[1])) == ast.dump(ast.parse(changed)) else None


def places(wanted: list[str], lines: list[str]) -> list[int]:
    """Return where the wanted lines begin among others, however far they are indented."""
    size = len(wanted)
    return [at for at, line in enumerate(lines) if indented(wanted, line) == lines[at : at + size]]


def indented(lines: list[str], like: str) -> list[str]:
    indent = like[: len(like) - len(like.lstrip())]
    return [indent + line if line else line for line in lines]


@cache
def functions(text: str) -> dict[str, list[tuple[int, int]]]:
    """Return the first and the end line, from 0, of all functions by qualified name (overloads have one name)."""
    found: dict[str, list[tuple[int, int]]] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.ClassDef | ast.FunctionDef)
            if isinstance(child, ast.FunctionDef):
                found.setdefault(prefix + child.name, []).append((child.lineno - 1, child.end_lineno or 0))
            walk(child, f"{prefix}{child.name}." if named else prefix)  # type: ignore[attr-defined]

    walk(ast.parse(text), "")
    return found


def code_lines(text: str) -> set[int]:
    """Return the lines on which a statement or an expression begins, docstrings left out."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_docstring = isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value
        if isinstance(node, ast.stmt | ast.expr) and not is_docstring:
            found.add(node.lineno)
    return found


def code_files(root: Path) -> Iterator[Path]:
    recipes = root / CODE / "recipes"
    return (path for path in sorted((root / CODE).rglob("*.py")) if not path.is_relative_to(recipes))


def room_of(path: Path) -> str:
    return "/".join(path.parts[: 2 if path.parts[0] == "fl_lightning" and len(path.parts) > 2 else 1])
