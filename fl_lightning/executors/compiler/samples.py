"""A step's graph with weights of samples, by which it takes means over them.

Of each node it is found out what it has, from the inputs to the loss::

    z = linear(x, w)               # a value for each sample, since x has one and samples do not mix
    losses = (z - y).square()      # a value for each sample
    loss = losses.mean()           # their mean: (losses * weights).sum() from now on
    return loss + decay            # a mean, and what no sample is in
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fl_lightning.executors.compiler.capture import Step
from fl_lightning.executors.compiler.graph import Place
from fl_lightning.executors.compiler.notes import NOTES, logged
from fl_lightning.executors.compiler.rows import Rows, name_of
from fl_lightning.executors.compiler.sizes import NotOfSamples, Sizes
from fl_lightning.executors.compiler.unmapped import mapped_function
from fl_lightning.executors.stack.randomness import draws_by_name

#: What a node has: a value for each sample, their mean or their sum, or something else.
_SAMPLES = "samples"
_MEAN = "mean"
_SUM = "sum"
_OTHER = "other"
_LINEAR = {
    *("add", "sub", "radd", "neg", "mul", "div", "truediv", "true_divide"),
    *("detach", "item", "float", "double", "to", "view", "reshape", "squeeze", "clone"),
}


#: Functions whose arguments say the shape of what they return.
_SHAPED = {"view", "reshape", "expand", "unflatten"}


def weighted_graph(step: Step, inputs: Sequence[Any], size: int, sizes: Sizes | None = None) -> fx.Graph:
    """Return a step's graph with one more input, the samples' weights, shape ``(B,)``, by which it takes means.

    Args:
        step: The step of a batch of ``size`` samples.
        inputs: Its inputs.
        size: Samples of a batch, B.
        sizes: Where the graph has this number; ``None`` if all batches have it.

    Raises:
        NotOfSamples: If the graph does something else with samples than to take means over them.
    """
    graph = fx.Graph(step.source.owning_module)
    copies: dict[fx.Node, fx.Node] = {}
    outputs: Any = graph.graph_copy(step.source, copies)
    places = iter(inputs)
    given = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_after(given[-1]):
        weights = graph.placeholder("weights")
    sized = {} if sizes is None else {copies[node]: places for node, places in sizes.arguments.items()}
    rows = None if sizes is None else {copies[node] for node in sizes.rows}
    kinds = _Kinds(weights, size, sized, rows)
    for node in list(graph.nodes):
        if node is weights:
            kinds[node] = _OTHER
        elif node.op == "placeholder":
            kinds[node] = _kind_of_input(node, next(places), kinds)
        else:
            kinds[node] = kinds.find(node)
        node.meta["of_samples"] = kinds[node] is _SAMPLES
    if kinds[outputs[0]] in (_SAMPLES, _SUM):
        raise NotOfSamples
    graph.output(outputs)
    return graph


def _kind_of_input(node: fx.Node, place: Any, kinds: _Kinds) -> str:
    if not isinstance(place, Place) or place.kind == "parameters":
        return _OTHER
    if place.kind == "buffers" or not kinds.rows.leads(node):
        raise NotOfSamples
    return _SAMPLES


class _Kinds(dict[fx.Node, str]):
    """What each node has.

    Args:
        weights: The input that holds the samples' weights.
        size: Samples of a batch, B.
        sized: The arguments that are the number of samples, by node: their places among its arguments.
        rows: The nodes that have a row for each sample; ``None`` if their shapes tell.
    """

    def __init__(self, weights: fx.Node, size: int, sized: dict[fx.Node, set[int]], rows: set[fx.Node] | None) -> None:
        super().__init__()
        self._weights, self._size, self._sized = weights, size, sized
        self.rows = Rows(size, lambda node: self.get(node) is _SAMPLES, rows)

    def find(self, node: fx.Node) -> str:
        """Return what a node has; a node that takes a mean takes a weighted one from now on."""
        given = {self[own] for own in node.all_input_nodes}
        sized = self._sized.get(node, set())
        if node.target in NOTES:
            self._check_note(node, given)
            return _OTHER
        if self.rows.makes_rows(node) and given <= {_OTHER, _SAMPLES}:
            return _SAMPLES
        if _SAMPLES in given and self.rows.makes_constants(node) and not sized:
            return _OTHER
        if given <= {_OTHER} and not draws_by_name(node):
            if sized:
                raise NotOfSamples
            return _OTHER
        if given <= {_OTHER, _SAMPLES}:
            if self.rows.treats_alone(node):
                self._check_sized(node)
                return _SAMPLES
            if draws_by_name(node) or sized:
                raise NotOfSamples
            return _take_mean(node, self._weights, self._size, self.rows)
        return self._of_means(node, given)

    def _check_note(self, node: fx.Node, given: set[str]) -> None:
        """Raise ``NotOfSamples`` if a value of each sample is logged, or a number of samples is handed on."""
        if _SUM in given or (node.target is logged and _SAMPLES in given):
            raise NotOfSamples
        leaves, _ = pytree.tree_flatten((node.args, node.kwargs))
        options: Any = node.args[2] if node.target is logged else {}
        allowed = options.get("batch_size")
        if any(leaves[place] is not allowed for place in self._sized.get(node, ())):
            raise NotOfSamples

    def _check_sized(self, node: fx.Node) -> None:
        """Raise ``NotOfSamples`` if a function of rows computes with the number of samples, other than in a shape."""
        if self._sized.get(node) and name_of(node) not in _SHAPED:
            raise NotOfSamples

    def _of_means(self, node: fx.Node, given: set[str]) -> str:
        """Return what a linear function of means or sums is."""
        name = name_of(node)
        sized = self._sized.get(node, set())
        means = [own for own in node.all_input_nodes if self[own] in (_MEAN, _SUM)]
        divides = name in ("div", "truediv", "true_divide")
        scales = divides or name == "mul"
        if _SAMPLES in given or name not in _LINEAR or {_MEAN, _SUM} <= given:
            raise NotOfSamples
        if scales and (len(means) > 1 or (divides and node.args[0] not in means)):
            raise NotOfSamples
        kind = _SUM if _SUM in given else _MEAN
        if not sized:
            shifts = name in ("add", "sub", "radd") and len(means) < 2
            if kind is _SUM and shifts:
                raise NotOfSamples
            return kind
        if not scales or (divides and kind is _MEAN) or (not divides and kind is _SUM):
            raise NotOfSamples
        return _MEAN if divides else _SUM


def _take_mean(node: fx.Node, weights: fx.Node, size: int, rows: Rows) -> str:
    """Let a node take a weighted mean, or a sum; return which."""
    name = name_of(node)
    value, *rest = node.args
    if name in ("mean", "sum") and set(node.kwargs) <= {"dim"}:
        dim = node.kwargs.get("dim", rest[0] if rest else None)
        dim = dim[0] if isinstance(dim, (list, tuple)) and len(dim) == 1 else dim
        if dim not in (None, 0):
            raise NotOfSamples
        node.args, node.kwargs = (value, weights, size if name == "sum" else None, dim is None), {}
        node.op, node.target = "call_function", _weighted_mean
        return _SUM if name == "sum" else _MEAN
    if getattr(F, name, None) is node.target and "reduction" in inspect.signature(node.target).parameters:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
        options = bound.arguments
        if options.get("reduction", "mean") != "mean" or not {options.get("size_average"), options.get("reduce")} <= {
            None
        }:
            raise NotOfSamples
        if not rows.takes_losses(node, name):
            raise NotOfSamples
        node.args, node.kwargs = (name, weights), {**options, "reduction": "none"}
        node.target = _weighted_counts if name in ("cross_entropy", "nll_loss") else _weighted_loss
        return _MEAN
    raise NotOfSamples


def _weighted_mean(value: Tensor, weights: Tensor, size: int | None, of_all: bool) -> Tensor:
    """Return the weighted mean over samples, or, times ``size``, what is a sum where all weights are ``1 / size``."""
    value = value if value.is_floating_point() else value.to(weights.dtype)
    if of_all and value.dim() > 1:
        value = value.flatten(1).mean(1) if size is None else value.flatten(1).sum(1)
    found = (value * weights.to(value.dtype).view(-1, *(1,) * (value.dim() - 1))).sum(0)
    return found if size is None else found * size


def _weighted_loss(name: str, weights: Tensor, **options: Any) -> Tensor:
    return _weighted_mean(mapped_function(getattr(F, name))(**options), weights, None, True)


def _weighted_counts(name: str, weights: Tensor, **options: Any) -> Tensor:
    """Return a loss of classes, whose mean counts targets by their class's weight, and those ignored not at all."""
    target, weight, ignored = options["target"], options.get("weight"), options.get("ignore_index", -100)
    if name == "cross_entropy" and weight is not None and options.get("label_smoothing"):
        raise NotOfSamples
    if target.is_floating_point():
        return _weighted_loss(name, weights, **options)
    losses = mapped_function(getattr(F, name))(**options)
    counts: Tensor = target != ignored
    if weight is not None:
        counts = counts * weight[torch.where(target == ignored, 0, target)]
    own = weights.to(losses.dtype).view(-1, *(1,) * (losses.dim() - 1))
    mean: Tensor = (losses * (own / (counts * own).sum())).sum()
    return mean
