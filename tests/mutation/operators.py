"""Faults that mutmut's operators do not make: each of these takes a node of the syntax tree, and yields changed ones.

They are of kinds that users and readers of this library have found:

* ``value``: a message, a page or a log shows another value, or a log has another key;
* ``owner``: a fact comes from the wrong owner, such as the server's model for what a client received;
* ``neighbour``: an attribute or an argument is taken for another one of the same type;
* ``once``: a loop runs once instead of once for each;
* ``state``: a state is left out of checkpoints, or is not put back;
* ``argument``: an argument is dropped on the way, and its default counts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from mutmut.mutation.mutators import mutation_operators

# What is asked of the right owner, and of a wrong one that has something of the same kind.
OWNERS = {
    "algorithm.received(task)": "algorithm.server.model",
    "algorithm.run.shown": "algorithm.run.server.model",
    "algorithm.run.round.published": "algorithm.run.server.model",
    "algorithm.schedule.model_of(task.client, self._run.server.model)": "self._run.server.model",
    "client.received": "client.start",
    "client.start": "client.received",
    "earlier.shown": "earlier.server.model",
    "federation.client_sizes": "federation.sizes",
    "layout.num_parameters": "layout.size",
    "member.received": "algorithm.server.model",
    "report.receivers": "report.reported",
    "report.reported": "report.receivers",
    "report.num_sent": "len(report.reported)",
    "report.uploads": "report.receivers",
    "result.received": "result.vector",
    "result.vector": "result.received",
    "run.federation.model": "run.server.model",
    "run.shown": "run.server.model",
    "schedule.sent(task, server)": "server.model",
    "self.federation.model": "self.server.model",
    "self.model_of(task.client, server.model)": "server.model",
    "self.sent(task)": "self._run.server.model",
    "server.model": "self.federation.model",
    "task.client": "task.slot",
    "task.slot": "task.client",
}
# Methods that write a state down, and those that read it.
WRITERS = {"state_dict", "on_save_checkpoint", "state_down", "state_up"}
READERS = {"load_state_dict", "on_load_checkpoint", "put_back", "resume", "take_state_down", "take_state_up"}
# Arguments that check, or say where a warning comes from.
CHECKS = ("strict", "stacklevel")
NOTHING = cst.SimpleStatementLine(body=[cst.Pass()])

Change = tuple[str, cst.CSTNode, cst.CSTNode]


class Facts:
    """What the whole code says about names: which have the same type, and which arguments have a default.

    Attributes:
        alike: By attribute, the others that have its type in each class that has it.
        parameters: By function or class, its parameters.
        defaults: By function or class, its parameters with a default.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.alike: dict[str, set[str]] = {}
        self.parameters: dict[str, set[str]] = {}
        self.defaults: dict[str, set[str]] = {}
        for path in paths:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    self._note_class(node)
                if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                    self._note_function(node.name, node)

    def _note_class(self, node: ast.ClassDef) -> None:
        types: dict[str, str] = {}
        for each in ast.walk(node):
            if isinstance(each, ast.AnnAssign):
                types[ast.unparse(each.target).removeprefix("self.")] = ast.unparse(each.annotation)
            is_typed = isinstance(each, ast.FunctionDef) and each.returns is not None
            if is_typed and "property" in map(ast.unparse, each.decorator_list):  # type: ignore[attr-defined]
                types[each.name] = ast.unparse(each.returns)  # type: ignore[attr-defined]
        for name, kind in types.items():
            others = {other for other, other_kind in types.items() if other_kind == kind and other != name}
            self.alike[name] = self.alike[name] & others if name in self.alike else others
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                self._note_function(node.name, each)
            if isinstance(each, ast.AnnAssign):
                name = ast.unparse(each.target)
                self.parameters.setdefault(node.name, set()).add(name)
                if each.value is not None:
                    self.defaults.setdefault(node.name, set()).add(name)

    def _note_function(self, name: str, node: ast.FunctionDef) -> None:
        given = node.args
        names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        # As many as the last parameters, `None` for those without.
        defaults = [*given.defaults, *given.kw_defaults]
        self.parameters.setdefault(name, set()).update(names)
        pairs = zip(reversed(names), reversed(defaults), strict=False)
        self.defaults.setdefault(name, set()).update(each for each, default in pairs if default is not None)


class Collector(cst.CSTVisitor):
    """Collects the changes of a file, each with its kind.

    Args:
        facts: What the whole code says about names.
        left_out: What is not changed at all.
        wording: What is not changed but for the values in its sentences.
    """

    def __init__(self, facts: Facts, left_out: m.BaseMatcherNode, wording: m.BaseMatcherNode) -> None:
        self.facts = facts
        self.left_out = left_out
        self.wording = wording
        self.changes: list[Change] = []
        self.functions: list[cst.FunctionDef] = []
        self.sentences = 0
        self.values = 0
        # Names that are no expressions: of keywords, attributes, parameters, and of what is assigned or called.
        self.labels: set[int] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if m.matches(node, self.left_out):
            return False
        self.sentences += m.matches(node, self.wording)
        self.values += isinstance(node, cst.FormattedStringExpression)
        if isinstance(node, cst.FunctionDef):
            self.functions.append(node)
        for field in ("keyword", "attr", "name", "target", "func"):
            self.labels.add(id(getattr(node, field, None)))
        if self.functions and (self.values or not self.sentences):
            for kind, operator in mutation_operators:
                if isinstance(node, kind):
                    self._collect("operator", node, operator(node))
            for name, changes in OPERATORS.items():
                self._collect(name, node, changes(self, node))
        return True

    def _collect(self, kind: str, node: cst.CSTNode, changed: Iterable[cst.CSTNode]) -> None:
        for new in changed:
            if checks_of(new) == checks_of(node):
                self.changes.append((kind, node, new))

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if m.matches(original_node, self.left_out):
            return
        self.sentences -= m.matches(original_node, self.wording)
        self.values -= isinstance(original_node, cst.FormattedStringExpression)
        if isinstance(original_node, cst.FunctionDef):
            self.functions.pop()


def values(collector: Collector, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Show ``None`` for a value; change the key of a log."""
    if isinstance(node, cst.FormattedStringExpression):
        yield node.with_changes(expression=cst.Name("None"), format_spec=None)
    if isinstance(node, cst.FormattedString) and not collector.sentences:
        texts = [part for part in node.parts if isinstance(part, cst.FormattedStringText)]
        if texts and not any(" " in text.value for text in texts):
            yield node.with_deep_changes(texts[0], value="XX" + texts[0].value)


def owners(collector: Collector, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Ask another owner for a fact."""
    if isinstance(node, cst.Attribute | cst.Call):
        wrong = OWNERS.get(code_of(node))
        if wrong is not None:
            yield cst.parse_expression(wrong)


def neighbours(collector: Collector, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Take an attribute or an argument for another one of the same type."""
    if id(node) in collector.labels:
        return
    if isinstance(node, cst.Attribute):
        for other in sorted(collector.facts.alike.get(node.attr.value, ())):
            yield node.with_changes(attr=cst.Name(other))
    if isinstance(node, cst.Name):
        types: dict[str, str] = {}
        parameters = collector.functions[-1].params
        for each in [*parameters.posonly_params, *parameters.params, *parameters.kwonly_params]:
            types[each.name.value] = code_of(each.annotation.annotation) if each.annotation else each.name.value
        for other in types:
            if other != node.value and types[other] == types.get(node.value):
                yield node.with_changes(value=other)


def once(collector: Collector, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Run a loop for the first element alone."""
    if isinstance(node, cst.For | cst.CompFor):
        first = cst.parse_expression(f"list({code_of(node.iter)})[:1]")
        yield node.with_changes(iter=first)


def states(collector: Collector, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Leave a state out of checkpoints, or do not read it."""
    function = collector.functions[-1].name.value
    if isinstance(node, cst.SimpleStatementLine):
        statement = node.body[0]
        declared = m.Call(func=m.Attribute(attr=m.Name("add_state") | m.Name("add_client_vectors")))
        if m.matches(statement, m.Expr(value=declared)):
            name = code_of(statement.value.args[0].value)  # type: ignore[union-attr]
            forgotten = cst.parse_statement(f'vars(self)["_states"].remove({name})')
            yield node.with_changes(body=[*node.body, *forgotten.body])  # type: ignore[misc]
        assigned = m.Assign(targets=[m.AssignTarget(target=m.Attribute())])
        if function in READERS and m.matches(statement, assigned | m.Expr(value=m.Call())):
            yield node.with_changes(body=NOTHING.body)
    if function in WRITERS and isinstance(node, cst.Dict):
        for at in range(len(node.elements)):
            yield node.with_changes(elements=[*node.elements[:at], *node.elements[at + 1 :]])


def arguments(collector: Collector, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Drop an argument that has a default, if the called function is the library's, or may have one."""
    if not isinstance(node, cst.Call):
        return
    called = code_of(node.func).rsplit(".")[-1]
    known = collector.facts.parameters.get(called, set()) - collector.facts.defaults.get(called, set())
    for at, argument in enumerate(node.args):
        if argument.keyword is not None and argument.keyword.value not in known:
            rest = [*node.args[:at], *node.args[at + 1 :]]
            if rest:
                rest[-1] = rest[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            yield node.with_changes(args=rest)


def checks_of(node: cst.CSTNode) -> list[str]:
    """Return the values of a call's arguments that only check."""
    if not isinstance(node, cst.Call):
        return []
    return [code_of(each.value) for each in node.args if each.keyword is not None and each.keyword.value in CHECKS]


OPERATORS: dict[str, Callable[[Collector, cst.CSTNode], Iterator[cst.CSTNode]]] = {
    "value": values,
    "owner": owners,
    "neighbour": neighbours,
    "once": once,
    "state": states,
    "argument": arguments,
}


def code_of(node: cst.CSTNode) -> str:
    return cst.Module(body=[]).code_for_node(node)
