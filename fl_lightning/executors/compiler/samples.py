"""A step's graph with weights of samples, by which it takes means over them.

Of each node it is found out what it has, from the inputs to the loss. In the worked example::

    prediction = linear(x, weight)                 # a value for each sample, since x has one and samples do not mix
    loss = mse_loss(prediction, y)                 # their mean: a weighted one from now on

and if the step went on::

    errors = (prediction - y).square()             # a value for each sample
    loss = errors.mean() + decay                   # a mean, and what no sample is in
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from fl_lightning.executors.compiler.graph import Place
from fl_lightning.executors.compiler.nodes import inputs_of, nodes_of
from fl_lightning.executors.compiler.notes import NOTES, logged
from fl_lightning.executors.compiler.rows import Rows, name_of, nodes_given
from fl_lightning.executors.compiler.sizes import NotOfSamples, Sizes
from fl_lightning.executors.compiler.unmapped import mapped_function
from fl_lightning.executors.stack.randomness import draws_by_name

#: What a node has: a value for each sample, their mean or their sum, or something else.
_SAMPLES = "samples"
_MEAN = "mean"
_SUM = "sum"
_OTHER = "other"

_DIVISIONS = {"div", "truediv", "true_divide"}
#: Sums with something else, by which a sum over samples would no longer be the number of samples times a mean.
_SHIFTS = {"add", "sub", "radd"}
#: Functions of which a mean of values is the mean of their results.
_LINEAR = {
    *_DIVISIONS,
    *_SHIFTS,
    *("neg", "mul", "detach", "item", "float", "double", "to", "view", "reshape", "squeeze", "clone"),
}
#: Questions about a mean, or a sum, which a step gives up by.
_QUESTIONS = {"isnan", "isinf", "isfinite", "logical_not"}
#: Functions whose arguments say the shape of what they return.
_SHAPED = {"view", "reshape", "expand", "unflatten"}


def weighted_graph(source: fx.Graph, inputs: Sequence[Any], size: int, sizes: Sizes) -> fx.Graph:
    """Return a step's graph with one more input, the samples' weights, shape ``(B,)``, by which it takes means.

    Args:
        source: The graph of a batch of ``size`` samples.
        inputs: Its inputs.
        size: Samples of a batch, B.
        sizes: Where the graph has this number.

    Raises:
        NotOfSamples: If the graph does something else with samples than to take means over them.
    """
    graph = fx.Graph(source.owning_module)
    copies: dict[fx.Node, fx.Node] = {}
    outputs: Any = graph.graph_copy(source, copies)
    placeholders = inputs_of(graph)
    with graph.inserting_after(placeholders[-1]):
        weights = graph.placeholder("weights")
    sized = {copies[node]: places for node, places in sizes.arguments.items()}
    rows = {copies[node] for node in sizes.rows}
    kinds = _Kinds(weights, size, sized, rows)
    for node, place in zip(placeholders, inputs, strict=True):
        kinds.add_input(node, place)
    for node in nodes_of(graph):
        if node.op != "placeholder":
            kinds.add(node)
    if kinds.of[outputs[0]] in (_SAMPLES, _SUM):
        raise NotOfSamples
    graph.output(outputs)
    return graph


class _Kinds:
    """Finds what each node of a graph has; nodes that take means become weighted ones.

    Args:
        weights: The input that holds the samples' weights.
        size: Samples of a batch, B.
        sized: The arguments that are the number of samples, by node: their places among its arguments.
        rows: The nodes that have a row for each sample.
    """

    def __init__(self, weights: fx.Node, size: int, sized: dict[fx.Node, set[int]], rows: set[fx.Node]) -> None:
        self.of: dict[fx.Node, str] = {weights: _OTHER}
        self._weights = weights
        self._size = size
        self._sized = sized
        self._with_rows = rows
        self._rows = Rows(lambda node: self.of.get(node) is _SAMPLES, rows)

    def add_input(self, node: fx.Node, place: Any) -> None:
        """Find out what an input has."""
        if not isinstance(place, Place) or place.kind == "parameters":
            self._note(node, _OTHER)
        elif node not in self._with_rows:
            raise NotOfSamples
        else:
            self._note(node, _SAMPLES)

    def add(self, node: fx.Node) -> None:
        """Find out what a node has, after those that it is given."""
        self._note(node, self._find(node))

    def _note(self, node: fx.Node, kind: str) -> None:
        self.of[node] = kind
        node.meta["of_samples"] = kind is _SAMPLES

    def _find(self, node: fx.Node) -> str:
        given = {self.of[own] for own in node.all_input_nodes}
        is_sized = node in self._sized
        if node.target in NOTES:
            self._check_note(node, given)
            return _OTHER
        if node.target is torch._assert_async:
            return _OTHER
        if _MEAN in given or _SUM in given:
            return self._of_means(node, given)
        if self._rows.makes_rows(node):
            return _SAMPLES
        if _SAMPLES not in given:
            if is_sized and not draws_by_name(node):
                raise NotOfSamples
            if not draws_by_name(node):
                return _OTHER
        elif self._rows.makes_constants(node) and not is_sized:
            return _OTHER
        if self._rows.treats_alone(node):
            # It may have the number of samples in a shape, and not compute with it.
            if is_sized and name_of(node) not in _SHAPED:
                raise NotOfSamples
            return _SAMPLES
        if is_sized or draws_by_name(node):
            raise NotOfSamples
        return self._take_mean(node)

    def _check_note(self, node: fx.Node, given: set[str]) -> None:
        """Raise ``NotOfSamples`` if a value of each sample is logged, or a number of samples is handed on."""
        if _SUM in given or (node.target is logged and _SAMPLES in given):
            raise NotOfSamples
        sized = self._sized.get(node, set())
        if node.target is logged:
            arguments: Any = node.args
            name, value, options, of_metric = arguments
            place = 2 + [*options, "batch_size"].index("batch_size")
            if place in sized:
                # What a client logs counts by the samples that it has.
                own = {key: option for key, option in options.items() if key != "batch_size"}
                node.args = (name, value, own, of_metric)
            sized = sized - {place}
        if sized:
            raise NotOfSamples

    def _of_means(self, node: fx.Node, given: set[str]) -> str:
        """Return what a linear function of means, or of sums, is."""
        name = name_of(node)
        if _SAMPLES in given or {_MEAN, _SUM} <= given or name not in _LINEAR | _QUESTIONS:
            raise NotOfSamples
        kind = _SUM if _SUM in given else _MEAN
        means = [own for own in nodes_given(node) if self.of[own] is kind]
        divides = name in _DIVISIONS
        scales = divides or name == "mul"
        if scales and len(means) > 1:
            raise NotOfSamples
        if divides and node.args[0] not in means:
            raise NotOfSamples
        if node in self._sized:
            # A sum divided by the number of samples is a mean, and a mean times that number a sum.
            if divides and kind is _SUM:
                return _MEAN
            if name == "mul" and kind is _MEAN:
                return _SUM
            raise NotOfSamples
        if kind is _SUM and name in _SHIFTS and len(means) < 2:
            raise NotOfSamples
        return kind

    def _take_mean(self, node: fx.Node) -> str:
        """Let a node take a weighted mean, or a sum; return which."""
        name = name_of(node)
        if name in ("mean", "sum") and set(node.kwargs) <= {"dim"}:
            value, *rest = node.args
            dim: Any = node.kwargs.get("dim", rest[0] if rest else None)
            if isinstance(dim, (list, tuple)) and len(dim) == 1:
                dim = dim[0]
            if dim not in (None, 0):
                raise NotOfSamples
            size = self._size if name == "sum" else None
            node.op = "call_function"
            node.target = _weighted_mean
            node.args = (value, self._weights, size, dim is None)
            node.kwargs = {}
            return _SUM if name == "sum" else _MEAN
        function: Any = node.target
        # Losses are the functions of `torch.nn.functional` that are written in Python and have a reduction.
        if getattr(F, name, None) is not function or not inspect.isfunction(function):
            raise NotOfSamples
        signature = inspect.signature(function)
        if "reduction" not in signature.parameters:
            raise NotOfSamples
        options = signature.bind(*node.args, **node.kwargs).arguments
        by_mean = options.get("reduction", "mean") == "mean"
        has_old_options = options.get("size_average") is not None or options.get("reduce") is not None
        if not by_mean or has_old_options or not self._rows.takes_losses(node):
            raise NotOfSamples
        node.target = _weighted_loss_of_classes if name in ("cross_entropy", "nll_loss") else _weighted_loss
        node.args = (name, self._weights)
        node.kwargs = {**options, "reduction": "none"}
        return _MEAN


# ---- what weighted graphs call ----


def _weighted_mean(value: Tensor, weights: Tensor, size: int | None, of_all: bool) -> Tensor:
    """Return the weighted mean over samples, or, times ``size``, what is a sum where all weights are ``1 / size``."""
    if not value.is_floating_point():
        value = value.to(weights.dtype)
    if of_all and value.dim() > 1:
        flat = value.flatten(1)
        value = flat.mean(1) if size is None else flat.sum(1)
    mean = (value * _along_samples(weights, value)).sum(0)
    return mean if size is None else mean * size


def _weighted_loss(name: str, weights: Tensor, **options: Any) -> Tensor:
    losses = mapped_function(getattr(F, name))(**options)
    return _weighted_mean(losses, weights, None, True)


def _weighted_loss_of_classes(name: str, weights: Tensor, **options: Any) -> Tensor:
    """Return a loss of classes, whose mean counts targets by their class's weight, and those ignored not at all."""
    target = options["target"]
    class_weights = options.get("weight")
    ignored = options.get("ignore_index", -100)
    if name == "cross_entropy" and class_weights is not None and options.get("label_smoothing"):
        raise NotOfSamples
    if target.is_floating_point():
        return _weighted_loss(name, weights, **options)
    losses = mapped_function(getattr(F, name))(**options)
    counts: Tensor = target != ignored
    if class_weights is not None:
        counts = counts * class_weights[torch.where(target == ignored, 0, target)]
    own = _along_samples(weights, losses)
    mean: Tensor = (losses * (own / (counts * own).sum())).sum()
    return mean


def _along_samples(weights: Tensor, value: Tensor) -> Tensor:
    """Return weights, shape ``(B,)``, to be multiplied with a value of shape ``(B, ...)``."""
    return weights.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
