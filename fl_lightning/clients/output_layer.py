"""The output layer of a module, found by a step.

A step on a batch runs once without a trace, and the graph of its loss is walked from the loss to the parameters. For a
module whose ``training_step`` returns ``F.cross_entropy(self.head(self.body(x)), y)``::

    cross_entropy       where the walk begins
    head                the first linear layer on the way: the output layer
    body                comes before another linear layer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_map_only

from fl_lightning._lightning.evaluation.unlogged import UnloggedTraining
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.seeding import preserved_generators


def copied(batch: Any) -> Any:
    """Return a batch whose containers and tensors a step may write to."""
    return tree_map_only(Tensor, torch.clone, batch)


class OutputLayer:
    """Finds the layer whose input are a module's features and whose output are its logits.

    That is the linear layer on which the loss depends and after which no other one comes. Two such layers are two
    outputs, between which the user decides.

    Args:
        module: The module.
        vector: Its federated state.
        quiet: Runs its ``training_step`` without a trace.
    """

    def __init__(self, module: nn.Module, vector: StateVector, quiet: UnloggedTraining) -> None:
        self._module = module
        self._vector = vector
        self._quiet = quiet
        self._found: nn.Module | None = None

    def named(self, name: str) -> nn.Module:
        """Return the layer of a name.

        Raises:
            ValueError: If the module has no such layer.
        """
        parts: dict[str, nn.Module] = dict(self._module.named_modules(remove_duplicate=False))
        if not name or name not in parts:
            known = ", ".join(map(repr, self._linear().values())) or "none"
            raise ValueError(
                f"`output_layer` must be the name of a layer of {type(self._module).__name__}, got {name!r}. Its "
                f"linear layers: {known}."
            )
        return parts[name]

    def of(self, batch: Any, index: int) -> nn.Module | None:
        """Return the layer that a step on a batch shows; the first batch with a loss decides, others give ``None``.

        Raises:
            TypeError: If the loss depends on no linear layer.
            ValueError: If there are several.
        """
        if self._found is None:
            candidates = self._candidates(batch, index)
            if candidates is not None:
                self._found = self._one_of(candidates)
        return self._found

    def _linear(self) -> dict[nn.Module, str]:
        """Return the linear layers with their names."""
        named = self._module.named_modules()
        return {part: name for name, part in named if hasattr(part, "in_features") and hasattr(part, "out_features")}

    def _candidates(self, batch: Any, index: int) -> list[nn.Module] | None:
        """Return the linear layers after which no other one comes on the way to the loss; ``None`` without a loss."""
        layers: dict[Node, nn.Module] = {}

        def note(layer: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.grad_fn is not None:
                # If a layer wraps another one and returns its output, the outer one is noted last, and stays.
                layers[output.grad_fn] = layer

        hooks = [layer.register_forward_hook(note) for layer in self._linear()]
        try:
            with preserved_generators(self._vector.device):
                loss = self._quiet.loss_of_step(self._vector.buffers(), copied(batch), index)
        finally:
            for hook in hooks:
                hook.remove()
        if loss is None:
            return None
        if loss.grad_fn is None:
            return []
        last = _first_reached([loss.grad_fn], layers)
        candidates = dict.fromkeys(layer for node, layer in layers.items() if node in last)
        # A penalty on features reaches a layer past the output layer, for which the layer is still one before it.
        earlier: set[nn.Module] = set()
        for node in last:
            of_node = {layers[other] for other in _all_reached(node, layers)}
            earlier |= of_node - {layers[node]}
        return [layer for layer in candidates if layer not in earlier]

    def _one_of(self, candidates: list[nn.Module]) -> nn.Module:
        if len(candidates) == 1:
            return candidates[0]
        kind = type(self._module).__name__
        if not candidates:
            raise TypeError(
                "The objective takes features and logits from a layer that has `in_features` and `out_features`, as "
                f"nn.Linear has, and the loss of {kind} depends on the output of none. Give the name of another layer "
                "as `output_layer`."
            )
        linear = self._linear()
        names = ", ".join(repr(linear[layer]) for layer in candidates)
        raise ValueError(
            f"The loss of {kind} depends on the outputs of several layers: {names}. Say which of them gives the "
            f"features and logits, such as `output_layer={linear[candidates[0]]!r}`."
        )


def _first_reached(nodes: list[Node], marked: Mapping[Node, Any]) -> set[Node]:
    """Return the marked nodes of a graph that are reached from some nodes without passing through a marked one."""
    found = set[Node]()
    seen = set[Node]()
    left = list(nodes)
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in marked:
            found.add(node)
        else:
            left += _behind(node)
    return found


def _all_reached(node: Node, marked: Mapping[Node, Any]) -> set[Node]:
    """Return all marked nodes of a graph that are reached from a node, but for itself."""
    found = set[Node]()
    left = [node]
    while left:
        new = _first_reached(_behind(left.pop()), marked) - found
        found |= new
        left += new
    return found


def _behind(node: Node) -> list[Node]:
    return [following for following, _ in node.next_functions if following is not None]
