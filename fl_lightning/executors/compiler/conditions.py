"""Conditions under which a step gives up, which are outputs of its graph and looked at when the stack has been trained.

Dynamo captures ``assert condition`` as a node of the graph. While a step is captured, it does the same with this, and
goes on after it::

    if torch.isnan(loss):
        raise ValueError("the loss is NaN")      # _assert_async(logical_not(isnan(loss)))

and, in the place of ``raise``, ``return`` without a value. If a condition does not hold for a client, the stack is
thrown away, and its clients train one after the other, where the step itself raises.
"""

from __future__ import annotations

import dis
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._dynamo.bytecode_transformation import Instruction
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, has_static_value

from fl_lightning.executors.compiler.dependence import is_captured_for_stack

Translate: TypeAlias = Callable[[InstructionTranslatorBase, Instruction], None]

#: What Python calls jumps that are made if a value is false, and if it is true.
_IF_FALSE = ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE")
_IF_TRUE = ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE")
_RETURNS = {"RETURN_VALUE", "RETURN_CONST"}

#: Of `math`, the questions that a step asks about a number.
_QUESTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
}


@contextmanager
def conditions_as_outputs() -> Iterator[None]:
    """Let a step that is captured go on where Python would raise an error, or return nothing, by a tensor's value."""
    tables = [kind.__dict__["dispatch_table"] for kind in _translators(InstructionTranslatorBase)]
    before = [list(table) for table in tables]
    usual_questions = {name: getattr(math, name) for name in _QUESTIONS}
    for table in tables:
        for name in (*_IF_FALSE, *_IF_TRUE):
            if name in dis.opmap:
                place = dis.opmap[name]
                table[place] = _jump(table[place], if_true=name in _IF_TRUE)
    for name, question in _QUESTIONS.items():
        setattr(math, name, _question(usual_questions[name], question))
    try:
        yield
    finally:
        for table, usual in zip(tables, before, strict=True):
            table[:] = usual
        for name, usual_question in usual_questions.items():
            setattr(math, name, usual_question)


def _translators(kind: type) -> list[type]:
    """Return Dynamo's classes that translate Python, each of which has a table of its own."""
    found = [kind]
    children: list[type] = kind.__subclasses__()
    for child in children:
        found += _translators(child)
    return found


def _jump(usual: Translate, *, if_true: bool) -> Translate:
    """Return what translates a jump.

    Args:
        usual: What usually does.
        if_true: Whether it jumps if the value is true, and otherwise if it is false.
    """

    def translate(translator: InstructionTranslatorBase, instruction: Instruction) -> None:
        value = translator.stack[-1]
        passes = _passes_end(translator, instruction)
        if not _is_of_tensors(value) or not (passes or _leads_to_end(translator, instruction)):
            usual(translator, instruction)
            return
        translator.pop()
        create = translator.output.create_proxy
        holds = value.as_proxy()
        if isinstance(value, SymNodeVariable):
            holds = create("call_function", torch.scalar_tensor, (holds,), {})
        if passes != if_true:
            holds = create("call_method", "logical_not", (holds,), {})
        create("call_function", torch._assert_async, (holds, ""), {})
        if passes:
            translator.jump(instruction)

    return translate


def _is_of_tensors(value: Any) -> bool:
    """Whether a value is a tensor, or a number that ``item()`` took out of one."""
    if isinstance(value, SymNodeVariable):
        return bool(free_unbacked_symbols(value.sym_num))
    return isinstance(value, TensorVariable)


def _passes_end(translator: InstructionTranslatorBase, jump: Instruction) -> bool:
    """Whether the lines that a jump passes over end by raising an error, or by returning nothing."""
    return _gives_up(translator.instructions[translator.instruction_pointer : _place_of_target(translator, jump)])


def _leads_to_end(translator: InstructionTranslatorBase, jump: Instruction) -> bool:
    """Whether a jump leads to such lines, as that of ``if one or other: raise ...`` after ``one`` does."""
    begin = _place_of_target(translator, jump)
    before = translator.instructions[begin - 1]
    if before.opname not in (*_IF_FALSE, *_IF_TRUE) or before.target is None:
        return False
    return _gives_up(translator.instructions[begin : _place_of_target(translator, before)])


def _place_of_target(translator: InstructionTranslatorBase, jump: Instruction) -> int:
    """Return the place of the instruction to which a jump leads."""
    assert jump.target is not None
    return translator.indexof[jump.target]


def _gives_up(lines: Sequence[Instruction]) -> bool:
    """Whether instructions end by raising an error, or by returning nothing."""
    if not lines:
        return False
    last = lines[-1]
    if last.opname == "RAISE_VARARGS":
        return True
    if last.opname not in _RETURNS:
        return False
    value = lines[-2] if last.opname == "RETURN_VALUE" and len(lines) > 1 else last
    return value.opname in ("LOAD_CONST", "RETURN_CONST") and value.argval is None


def _question(usual: Callable[[Any], bool], of_tensor: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    """Return a question about a number, which is a tensor for the numbers of tensors."""

    def ask(number: Any) -> Any:
        # PyTorch asks, too, while it captures.
        if not is_captured_for_stack() or has_static_value(number):
            return usual(number)
        return of_tensor(torch.scalar_tensor(number, dtype=torch.float64))

    return ask
