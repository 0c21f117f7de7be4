"""Steps of clients whose batches have unequal sizes: batches are filled up, and means over samples weighted.

That is the same where a step treats each sample by itself, and its loss and logged numbers are means over them. The
graph tells what becomes a mean, and where; then it is compared with the captured step of the shorter batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from fl_lightning._lightning.stacks.recording import Logged, TensorPlace
from fl_lightning.executors.stacked.batching import StackedBatch
from fl_lightning.executors.stacked.capture import CapturedStep, Step, notes_of
from fl_lightning.executors.stacked.check import Check
from fl_lightning.executors.stacked.graph import Computed, DependsOnNumber, Place, Stacks
from fl_lightning.executors.stacked.randomness import ClientGenerators, draws_by_name
from fl_lightning.executors.stacked.unmapped import mapped_function

_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4}
_SAMPLES, _MEAN, _OTHER = "samples", "mean", "other"  # what a node has: a value for each sample, a mean, something else
_LINEAR = {
    *("add", "sub", "iadd", "isub", "radd", "neg", "mul", "imul", "div", "truediv", "true_divide"),
    *("detach", "item", "float", "double", "to", "view", "reshape", "squeeze", "clone"),
}


class NotOfSamples(Exception):
    """A step treats a batch as a whole."""


class WeightedSteps:
    """The weighted steps of a fit.

    Args:
        captured: The captured steps.
        check: Compares them with the module.
        changing: In names of what changes from step to step.
    """

    def __init__(self, captured: CapturedStep, check: Check, changing: Sequence[str]) -> None:
        self._captured, self._check, self._changing = captured, check, changing
        self._steps: dict[Step, Step | None] = {}
        self._proven: dict[tuple[Step, Step], bool] = {}
        self._settled = set[tuple[Step, int]]()  # sizes whose step depends on nothing but what the whole one does

    def find(
        self, batch: StackedBatch, sizes: Collection[int], parameters: list[Tensor], generators: ClientGenerators
    ) -> tuple[Step, list[Any]]:
        """Return the weighted step for some batches, and its inputs.

        Args:
            batch: The first batches, filled up to B samples, shape ``(K, B, ...)``.
            sizes: All sizes of batches that come.
            parameters: The clients' parameters, shape ``(K, ...)`` each.
            generators: The clients' generators, which stay as they are.

        Raises:
            NotOfSamples: If there is none.
            CannotVectorize: If a step cannot be captured.
        """
        size = batch.tensors[0].shape[1]
        whole, inputs = self._captured(batch, 0)
        if whole not in self._steps:
            self._steps[whole] = self._weigh(whole, inputs, size)
        step = self._steps[whole]
        if step is None:
            raise NotOfSamples
        for own in sorted({size, *sizes}, reverse=True):
            if (whole, own) in self._settled:
                continue
            short = StackedBatch([tensor[:, :own] for tensor in batch.tensors])
            other, others = self._captured(short, 0, short=own < size)
            if other.depends_on(*self._changing):
                raise NotOfSamples
            if (step, other) not in self._proven:
                stacks = Stacks(parameters, [], batch.tensors, generators.drawing(range(len(parameters[0]))))
                step = self._steps[whole] = _with_sizes(step, other, size, own)
                self._proven[step, other] = self._prove(step, inputs, other, others, stacks, short, generators)
            if not self._proven[step, other]:
                raise NotOfSamples
            if other.guards <= whole.guards:
                self._settled.add((whole, own))
        return step, inputs

    def _weigh(self, whole: Step, inputs: Sequence[Any], size: int) -> Step | None:
        try:
            return self._captured.read(weighted_graph(whole, inputs, size), whole.guards)
        except NotOfSamples:
            return None

    def _prove(
        self,
        step: Step,
        inputs: Sequence[Any],
        short: Step,
        others: Sequence[Any],
        stacks: Stacks,
        batch: StackedBatch,
        generators: ClientGenerators,
    ) -> bool:
        """Whether the weighted step of filled-up batches computes what the step of shorter batches computes."""
        number, size = batch.tensors[0].shape[:2]
        rows, largest = range(number), stacks.batch[0].shape[1]
        alone = replace(stacks, batch=[tensor.clone() for tensor in batch.tensors])
        self._check(short, others, alone, batch, 0, rows, flat=False)
        states = [generators.state(row) for row in rows]
        theirs = short.graph.run(alone, others, flat=False)
        generators.rewind(rows, states)
        weights = torch.zeros_like(stacks.parameters[0].detach().reshape(number, -1)[:, :1]).repeat(1, largest)
        weights[:, :size] = 1 / size
        step.graph.checked = True
        places = torch.arange(largest, device=weights.device)
        for chosen in (places, places.clamp(max=size - 1)):  # samples of weight 0: any others, or the last one again
            draws = generators.drawing(rows, [size] * number, largest)
            filled = replace(stacks, batch=[t[:, chosen] for t in stacks.batch], weights=weights, draws=draws)
            try:
                mine = step.graph.run(filled, inputs, flat=True)
            except DependsOnNumber:
                return False
            finally:
                generators.rewind(rows, states)
            if not _agree(step, mine, short, theirs, size):
                return False
        return True


def _with_sizes(step: Step, short: Step, size: int, own: int) -> Step:
    """Return a step without the ``batch_size`` of logged values where that is the number of a batch's samples."""
    calls = []
    for one, other in zip(step.logged.calls, short.logged.calls, strict=False):
        options = dict(one.options)
        if options.get("batch_size") == size != own and (
            other.weight is not None or other.options["batch_size"] == own
        ):
            del options["batch_size"]
        calls.append(replace(one, options=options))
    return replace(step, logged=replace(step.logged, calls=calls)) if calls != step.logged.calls else step


def _agree(step: Step, mine: Computed, short: Step, theirs: Computed, size: int) -> bool:
    ours, other = step.logged, short.logged
    same = [len(_places(each)) for each in (ours, other)], [len(each.calls) for each in (ours, other)]
    if any(one != two for one, two in same):
        return False
    for one, two in zip(ours.calls, other.calls, strict=True):
        sizes = {call.options.get("batch_size") for call in (one, two)} if "batch_size" in one.options else {None}
        if one.weight is not None or len(sizes) > 1 or not one.logs_as(two) or one.reduction != "mean":
            return False
    pairs = [(mine.losses, theirs.losses), *zip(mine.gradients, theirs.gradients, strict=True)]
    for place, other_place in zip(_places(ours), _places(other), strict=True):
        a, b = mine.kept[place], theirs.kept[other_place]
        pairs.append((a[:, :size] if step.kept[place][1] else a, b))
    bound = _BOUNDS.get(mine.losses.dtype, 5e-2)
    return all(_close(a, b, bound) for a, b in pairs)


def _places(logged: Logged) -> list[int]:
    """Return the places of the tensors that are logged, and given to metric objects."""
    leaves = [leaf for call in logged.metric_calls for leaf in call.leaves if isinstance(leaf, TensorPlace)]
    return [*(call.value for call in logged.calls if isinstance(call.value, int)), *(leaf.place for leaf in leaves)]


def _close(one: Tensor | None, other: Tensor | None, bound: float) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape:
        return one.numel() == other.numel() and _close(one.reshape(-1), other.reshape(-1), bound)
    largest = float(other.nan_to_num().abs().max()) if other.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=bound, atol=bound * (1e-3 + largest), equal_nan=True)


# ---- the graph ----


def weighted_graph(step: Step, inputs: Sequence[Any], size: int) -> fx.Graph:
    """Return a step's graph with one more input, the samples' weights, shape ``(B,)``, by which it takes means.

    Args:
        step: The step of a batch of ``size`` samples.
        inputs: Its inputs.
        size: Samples of a batch, B.

    Raises:
        NotOfSamples: If the graph does something else with samples than to take means over them.
    """
    graph = fx.Graph(step.source.owning_module)
    outputs: Any = graph.graph_copy(step.source, {})
    places = iter(inputs)
    kinds: dict[fx.Node, str] = {}
    inputs_of_graph = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_after(inputs_of_graph[-1]):
        weights = graph.placeholder("weights")
    for node in list(graph.nodes):
        if node.op == "placeholder":
            place = None if node is weights else next(places)
            kinds[node] = _SAMPLES if isinstance(place, Place) and place.kind == "batch" else _OTHER
            if isinstance(place, Place) and (
                place.kind == "buffers" or (kinds[node] is _SAMPLES and not _leads(node, size))
            ):
                raise NotOfSamples
        else:
            kinds[node] = _kind(node, {kinds[own] for own in node.all_input_nodes}, kinds, weights, size)
        node.meta["of_samples"] = kinds[node] is _SAMPLES
    if kinds[outputs[0]] is _SAMPLES:
        raise NotOfSamples
    graph.output(outputs)
    return graph


def _kind(node: fx.Node, given: set[str], kinds: dict[fx.Node, str], weights: fx.Node, size: int) -> str:
    """Return what a node has; a node that takes a mean takes a weighted one from now on."""
    if node.target in notes_of:
        logs_samples = notes_of[node.target] and any(kinds[own] is _SAMPLES for own in node.all_input_nodes)
        if logs_samples:
            raise NotOfSamples
        return _OTHER
    if draws_by_name(node):
        if _MEAN in given or not _leads(node, size):
            raise NotOfSamples
        return _SAMPLES
    if given <= {_OTHER}:
        return _OTHER
    if given <= {_OTHER, _SAMPLES}:
        if _leads(node, size):
            return _SAMPLES
        _take_mean(node, weights, size)
        return _MEAN
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    means = [own for own in node.all_input_nodes if kinds[own] is _MEAN]
    scales = name in ("mul", "imul", "div", "truediv", "true_divide")
    if (
        _SAMPLES in given
        or name not in _LINEAR
        or (scales and (len(means) > 1 or ("div" in name and node.args[0] not in means)))
    ):
        raise NotOfSamples
    return _MEAN


def _leads(node: fx.Node, size: int) -> bool:
    """Whether a node's tensors have a row for each sample."""
    value = node.meta.get("example_value")
    values = value if isinstance(value, (tuple, list)) else [value]
    return all(isinstance(own, Tensor) and own.dim() > 0 and own.shape[0] == size for own in values)


def _take_mean(node: fx.Node, weights: fx.Node, size: int) -> None:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    value, *rest = node.args
    if name in ("mean", "sum") and set(node.kwargs) <= {"dim"}:
        dim = node.kwargs.get("dim", rest[0] if rest else None)
        dim = dim[0] if isinstance(dim, (list, tuple)) and len(dim) == 1 else dim
        if dim not in (None, 0):
            raise NotOfSamples
        node.args, node.kwargs = (value, weights, size if name == "sum" else None, dim is None), {}
        node.op, node.target = "call_function", _weighted_mean
    elif getattr(F, name, None) is node.target and "reduction" in inspect.signature(node.target).parameters:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
        options = bound.arguments
        if options.get("reduction", "mean") != "mean" or not {options.get("size_average"), options.get("reduce")} <= {
            None
        }:
            raise NotOfSamples
        node.args, node.kwargs = (name, weights), {**options, "reduction": "none"}
        node.target = _weighted_counts if name in ("cross_entropy", "nll_loss") else _weighted_loss
    else:
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
