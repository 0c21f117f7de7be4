"""Reads out of a step's graph which values it logs and gives to metric objects.

The notes leave the graph, and the tensors that they name become outputs of it::

    logged("loss", loss, {})      # a node of the captured graph
    return loss, kept             # the graph that is left; the log names output 0 of those that are kept
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import BatchValue, LogCall, Logged, MetricCall, TensorPlace, logged_type
from fl_lightning.executors.compiler.notes import NOTES, REDUCTIONS, MetricObject, logged, part_of_value


class Reader:
    """Takes what a step logs and gives to metric objects out of its graph, and makes their tensors outputs.

    Args:
        source: The graph.
        metrics: The metric objects, in the order of their stubs' numbers.
        loss: The loss's place among the outputs.
        assigned: For outputs that become buffers, the buffers' places among the inputs.
    """

    def __init__(self, source: fx.Graph, metrics: Sequence[MetricObject], loss: int, assigned: dict[int, int]) -> None:
        self.graph, self.logged, self.kept = fx.Graph(), Logged(), list[tuple[bool, bool]]()
        self._metrics = metrics
        outputs: Any = self.graph.graph_copy(source, {})
        self._values: dict[Any, BatchValue] = {}
        self._outputs: list[fx.Node] = []
        notes = [node for node in self.graph.nodes if node.target in NOTES]
        for node in notes:
            with self.graph.inserting_before(node):
                self._log(*node.args) if node.target is logged else self._call(node)
        for node in reversed(notes):
            self.graph.erase_node(node)
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        for output, buffer in assigned.items():
            self.graph.call_method("copy_", (inputs[buffer], outputs[output]))
        self.graph.output((outputs[loss], *self._outputs))

    def _call(self, node: fx.Node) -> None:
        if any(user.target not in (part_of_value, logged) for user in node.users):
            raise CannotVectorize(
                "`training_step` uses what a metric object returns, which has one state for all clients"
            )
        if node.target is part_of_value:
            value, key = node.args
            self._values[node] = self._values[value]._replace(key=key)  # type: ignore[index, arg-type]
            return
        metric, method, *args = node.args
        leaves, spec = pytree.tree_flatten((args, dict(node.kwargs)))
        leaves = [TensorPlace(self._keep(a), _kind_of_number(a)) if isinstance(a, fx.Node) else a for a in leaves]
        self._values[node] = BatchValue(len(self.logged.metric_calls), None)
        self.logged.metric_calls.append(MetricCall(self._metrics[metric], method, leaves, spec))  # type: ignore[index, arg-type]

    def _log(self, name: str, value: Any, options: Any, of_metric: bool) -> None:
        options = dict(options)
        if options.get("reduce_fx", "mean") not in REDUCTIONS or options.get("enable_graph"):
            raise CannotVectorize(f"`self.log({name!r}, ...)` has a user-defined `reduce_fx` or keeps the graph")
        changing = [key for key, option in options.items() if isinstance(option, fx.Node) and key != "batch_size"]
        if changing:
            raise CannotVectorize(f"`self.log({name!r}, ...)` has another `{changing[0]}` from step to step")
        if of_metric:
            value = self._metrics[value]
        else:
            value = self._values[value] if value in self._values else self._keep(value, one=True)
        size = options.get("batch_size")
        weight = self._keep(options.pop("batch_size"), one=True) if isinstance(size, fx.Node) else None
        self.logged.calls.append(LogCall("training_step", name, options, value, weight, len(self.logged.metric_calls)))

    def _keep(self, value: Any, *, one: bool = False) -> int:
        """Make a node's tensor an output as it is now, and return its place."""
        is_number = not isinstance(value, fx.Node) or _kind_of_number(value) is not None
        dtype = logged_type() if is_number and one else None
        self._outputs.append(self.graph.call_function(_kept, (value, dtype)))
        self.kept.append((one, isinstance(value, fx.Node) and value.meta.get("of_samples", False)))
        return len(self.kept) - 1


def _kept(value: Any, dtype: torch.dtype | None) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.scalar_tensor(value, dtype=dtype)
    found: Tensor = value.detach() if dtype is None else value.detach().to(dtype)
    return found.clone()  # weights and batches change


def _kind_of_number(value: Any) -> type | None:
    """Return the type of the number that a node stands for; ``None`` for a tensor."""
    found = value.meta.get("example_value") if isinstance(value, fx.Node) else None
    if found is None or isinstance(found, Tensor):
        return None
    return float if isinstance(found, (float, torch.SymFloat)) else int
