"""Reads out of a step's graph which values it logs and gives to metric objects.

The notes leave the graph, and the tensors that they name become outputs of it. The worked example::

    logged("loss", loss, {})        # before: a note in the captured graph
    return (loss,)

    return loss, kept(loss)         # after: the log names the first tensor that is kept
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import (
    BatchValue,
    LogCall,
    Logged,
    MetricCall,
    TensorPlace,
    Text,
    logged_type,
)
from fl_lightning.executors.compiler.nodes import example_of, inputs_of, nodes_of
from fl_lightning.executors.compiler.notes import NOTES, REDUCTIONS, MetricObject, logged, part_of_value


class KeptValue(NamedTuple):
    """The place of a tensor that a step keeps for its log or for metric objects.

    Attributes:
        is_number: Whether it is one number, such as everything that is logged.
        of_samples: Whether it has a row for each sample, as is known of weighted steps.
    """

    is_number: bool
    of_samples: bool


class Reader:
    """Takes what a step logs and gives to metric objects out of its graph, and makes their tensors outputs.

    Args:
        source: The graph, which stays as it is.
        metrics: The metric objects, in the order of their numbers.
        loss: The loss's place among the outputs.
        assigned: For outputs that become buffers, the buffers' places among the inputs.
        hook: ``"training_step"``, or the hook that it is.

    Attributes:
        graph: The graph that is left.
        logged: The calls of ``self.log`` and of metric objects.
        kept: What each output after the loss is.
    """

    def __init__(
        self, source: fx.Graph, metrics: Sequence[MetricObject], loss: int, assigned: dict[int, int], hook: str
    ) -> None:
        self.graph = fx.Graph()
        self.logged = Logged()
        self.kept: list[KeptValue] = []
        self._hook = hook
        self._metrics = metrics
        self._values_of_metrics: dict[Any, BatchValue] = {}
        self._kept_nodes: list[fx.Node] = []
        outputs: Any = self.graph.graph_copy(source, {})
        notes = [node for node in nodes_of(self.graph) if node.target in (*NOTES, Text, torch._assert_async)]
        for node in notes:
            with self.graph.inserting_before(node):
                given: Any = node.args
                if node.target is logged:
                    self._read_log(*given)
                elif node.target is part_of_value:
                    self._read_part(node)
                elif node.target is torch._assert_async:
                    self.logged.conditions.append(self._keep(given[0]))
                elif node.target is not Text:
                    self._read_metric_call(node)
        # Notes use each other's values: the last goes first.
        for node in reversed(notes):
            self.graph.erase_node(node)
        inputs = inputs_of(self.graph)
        for output, buffer in assigned.items():
            self.graph.call_method("copy_", (inputs[buffer], outputs[output]))
        self.graph.output((outputs[loss], *self._kept_nodes))

    def _read_metric_call(self, node: fx.Node) -> None:
        _check_value_is_logged_alone(node)
        metric: Any
        method: Any
        metric, method, *args = node.args
        leaves, spec = pytree.tree_flatten((_as_given(args), _as_given(node.kwargs)))
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, fx.Node):
                leaves[place] = TensorPlace(self._keep(leaf), _kind_of_number(leaf))
        self._values_of_metrics[node] = BatchValue(len(self.logged.metric_calls), None)
        self.logged.metric_calls.append(MetricCall(self._metrics[int(metric)], method, leaves, spec, self._hook))

    def _read_part(self, node: fx.Node) -> None:
        _check_value_is_logged_alone(node)
        collection, key = node.args
        self._values_of_metrics[node] = self._values_of_metrics[collection]._replace(key=str(key))

    def _read_log(self, name: str, value: Any, given_options: Any, of_metric: bool) -> None:
        options = dict(given_options)
        if options.get("reduce_fx", "mean") not in REDUCTIONS or options.get("enable_graph"):
            raise CannotVectorize(f"`self.log({name!r}, ...)` has a user-defined `reduce_fx` or keeps the graph")
        for key, option in options.items():
            if isinstance(option, fx.Node) and key != "batch_size":
                raise CannotVectorize(f"`self.log({name!r}, ...)` has another `{key}` from step to step")
        if of_metric:
            value = self._metrics[int(value)]
        elif value in self._values_of_metrics:
            value = self._values_of_metrics[value]
        else:
            if isinstance(value, fx.Node) and not _is_one_value(value):
                raise CannotVectorize(f"`self.log({name!r}, ...)` is given a tensor of several values")
            value = self._keep(value, is_logged=True)
        weight = None
        if isinstance(options.get("batch_size"), fx.Node):
            weight = self._keep(options.pop("batch_size"), is_logged=True)
        call = LogCall(self._hook, name, options, value, weight, len(self.logged.metric_calls))
        self.logged.calls.append(call)

    def _keep(self, value: Any, *, is_logged: bool = False) -> int:
        """Make a value an output as it is now, and return its place."""
        of_samples = False
        is_number = True
        if isinstance(value, fx.Node):
            of_samples = value.meta.get("of_samples", False)
            is_number = _kind_of_number(value) is not None
        dtype = logged_type() if is_number and is_logged else None
        self._kept_nodes.append(self.graph.call_function(_kept, (value, dtype)))
        self.kept.append(KeptValue(is_logged, of_samples))
        return len(self.kept) - 1


def _check_value_is_logged_alone(node: fx.Node) -> None:
    """Raise ``CannotVectorize`` if a step computes with what a metric object returns."""
    if any(user.target not in (part_of_value, logged) for user in node.users):
        raise CannotVectorize("`training_step` uses what a metric object returns, which has one state for all clients")


def _is_one_value(node: fx.Node) -> bool:
    """Whether a node stands for a number, or for a tensor that has one value for sure."""
    value = example_of(node)
    return not isinstance(value, Tensor) or statically_known_true(value.numel() == 1)


def _as_given(value: Any) -> Any:
    """Return arguments with texts, and the lists and dictionaries of Python, in the place of what the graph has."""
    if isinstance(value, fx.Node) and value.target is Text:
        return Text(*map(_as_given, value.args))
    if isinstance(value, dict):
        return {key: _as_given(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_given(each) for each in value]
    if type(value) is tuple:
        return tuple(map(_as_given, value))
    return value


def _kept(value: Any, dtype: torch.dtype | None) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.scalar_tensor(value, dtype=dtype)
    found = value.detach()
    if dtype is not None:
        found = found.to(dtype)
    # Weights and batches change before the log is read.
    return found.clone()


def _kind_of_number(node: fx.Node) -> type | None:
    """Return the type of the number that a node stands for; ``None`` for a tensor."""
    found = example_of(node)
    if found is None or isinstance(found, Tensor):
        return None
    return float if isinstance(found, (float, torch.SymFloat)) else int
