"""Numbers of Python among the inputs of a captured graph, and sizes that values decide.

Where a number has changed from one step to the next, the graph takes it as an input. As a tensor of shape ``()`` it is
one operand of a flat list of operations, which then serves all its values::

    def forward(self, epoch, x, weight):          # epoch: a `SymInt`, given as 3
        beta = epoch / 10                         # given as tensor(3): a tensor as well

Dynamo finds out by the second capture that a number changes. Of some it is told before the first: the batch's index,
the round, the optimizer steps so far, and the rates of schedules that step with a client.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo import pgo
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.watching import STEPS_SO_FAR
from fl_lightning.executors.compiler.causes import SELECTS
from fl_lightning.executors.compiler.nodes import example_number, example_of, inputs_of, nodes_of

#: What Dynamo calls whole numbers that change, as patterns.
CHANGING = rf"L\['batch_idx'\],.*\.epoch_progress\.current\.completed,.*{STEPS_SO_FAR}"
#: What it calls learning rates, and other settings that schedules change.
_RATES = re.compile(r"\bparam_groups\b|\b_last_lr\b")


class _States(defaultdict[str, pgo.FrameStateSizeEntry]):
    """What Dynamo remembers of numbers, by their names: rates have changed before."""

    def __missing__(self, name: str) -> pgo.FrameStateSizeEntry:
        entry = pgo.FrameStateSizeEntry()
        if _RATES.search(name):
            entry.scalar = pgo.auto_dynamic
        self[name] = entry
        return entry


def expect_rates(code: CodeType) -> None:
    """Let rates be inputs of the first graph that Dynamo captures of some code.

    Args:
        code: The code of the function that is compiled.
    """
    pgo.get_code_state()[pgo.CodeId.make(code)].automatic_dynamic = _States()


def numbers_as_tensors(graph: fx.Graph, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs of a graph with tensors in the place of whole numbers, but for those that are sizes.

    Args:
        graph: The graph, as Dynamo captured it.
        inputs: Its inputs.
    """
    nodes = inputs_of(graph)
    if not any(_is_whole_number(node) for node in nodes):
        return list(inputs)
    in_sizes = _symbols_in_sizes(graph)
    found: list[Any] = []
    for node, value in zip(nodes, inputs, strict=True):
        is_number = _is_whole_number(node) and type(value) is int
        if is_number and not _symbols_of(example_number(node)) & in_sizes:
            found.append(torch.tensor(value))
        else:
            found.append(value)
    return found


def input_of_steps(graph: fx.Graph) -> int | None:
    """Return the place of the input that is the optimizer steps so far; ``None`` if Python alone needs them.

    Raises:
        CannotVectorize: If it is the size of a tensor.
    """
    for place, node in enumerate(inputs_of(graph)):
        if STEPS_SO_FAR in str(node.target) and _is_whole_number(node):
            if _symbols_of(example_number(node)) & _symbols_in_sizes(graph):
                raise CannotVectorize("a tensor has `global_step` as its size, of which each client has its own")
            return place
    return None


def is_decided_by(graph: fx.Graph, place: int) -> bool:
    """Whether Python has decided something by an input of a captured graph, so that another graph serves others."""
    node: Any = example_number(inputs_of(graph)[place]).node
    # The symbol from before what was decided: torch replaces one that can have one value alone.
    return any(node._expr in guard.expr.free_symbols for guard in node.shape_env.guards)


def check_sizes(graph: fx.Graph) -> None:
    """Raise ``CannotVectorize`` if a tensor's size depends on values, as that of ``torch.nonzero(y)`` does."""
    for node in nodes_of(graph):
        for tensor in _tensors_of(node):
            for size in tensor.shape:
                # Whatever compares it with the number of samples would be an error of torch's.
                if isinstance(size, torch.SymInt) and not _is_known(size):
                    raise CannotVectorize(SELECTS)


def _is_known(size: torch.SymInt) -> bool:
    return size.node.has_hint() or size.node.maybe_as_int() is not None


def _symbols_of(size: torch.SymInt) -> set[Any]:
    """Return the symbols on which a size depends."""
    symbols: set[Any] = size.node.expr.free_symbols
    return symbols


def _is_whole_number(node: fx.Node) -> bool:
    return isinstance(example_of(node), torch.SymInt)


def _symbols_in_sizes(graph: fx.Graph) -> set[Any]:
    """Return the symbols on which sizes of the graph's tensors depend."""
    found: set[Any] = set()
    for node in nodes_of(graph):
        for tensor in _tensors_of(node):
            for size in tensor.shape:
                if isinstance(size, torch.SymInt):
                    found |= _symbols_of(size)
    return found


def _tensors_of(node: fx.Node) -> list[Tensor]:
    """Return the tensors that a node stands for."""
    leaves = pytree.tree_leaves(example_of(node))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
