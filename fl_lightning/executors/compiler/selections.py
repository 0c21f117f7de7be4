"""Selections by masks as operations on whole batches, whose sizes are known.

What a mask selects has another number of rows for each client. In its place stand as many rows as there are, of which
those that are not selected repeat the first selected one, and count for nothing in means and sums::

    hard = losses[losses > 1]           # hard = _filled(losses, losses > 1)
    loss = hard.square().mean()         # loss = _mean(hard.square(), losses > 1, ...)

That is the same where all that is done with them treats each row by itself, and ends in a mean, a sum or a loss. A mask
that is the same for all clients, such as that of the diagonal, becomes the places that it selects.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.causes import SELECTS
from fl_lightning.executors.compiler.nodes import example_of, example_tensor, node_at, nodes_of
from fl_lightning.executors.compiler.rows import Rows, argument, name_of
from fl_lightning.executors.compiler.unmapped import CHECKS, mapped_function
from fl_lightning.executors.stack.randomness import draws_by_name

#: PyTorch's name of a function that returns a size.
_SIZE = "sym_size.int"
_UNEQUAL = "a mask has the size of the batch, and last batches have several sizes; give them one"
#: What a step may compute with the number of selected rows.
_OF_COUNTS = {*("truediv", "mul", "add", "sub", "radd", "sym_max", "sym_float", "ge", "le", "gt", "lt", "eq", "ne")}


def replace_selections(module: fx.GraphModule) -> None:
    """Replace the selections by masks in a captured graph, which is changed.

    Args:
        module: The graph.

    Raises:
        CannotVectorize: If a step does something else with what it selects.
    """
    graph = module.graph
    if all(_mask_of(node) is None for node in nodes_of(graph)):
        return
    _erase_checks(graph)
    _replace_constant_masks(module)
    selections = _Selections(graph)
    for node in nodes_of(graph):
        selections.replace(node)


def _mask_of(node: fx.Node) -> fx.Node | None:
    """Return the mask by which a node selects; ``None`` if it does not, or by several."""
    if name_of(node) not in ("getitem", "masked_select") or len(node.args) != 2:
        return None
    mask = node.args[1]
    if not isinstance(mask, fx.Node):
        return None
    value = example_of(mask)
    is_mask = isinstance(value, Tensor) and value.dtype == torch.bool and value.dim() > 0
    return mask if is_mask else None


def _erase_checks(graph: fx.Graph) -> None:
    """Erase PyTorch's own questions about the number of selected rows."""
    for node in reversed(nodes_of(graph)):
        is_question = name_of(node) in ("ge", "le", "eq", _SIZE) and not _is_tensor(node)
        is_check = getattr(node.target, "__name__", "").removesuffix(".default") in CHECKS
        if is_check or (is_question and not node.users):
            graph.erase_node(node)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(example_of(node), Tensor)


# ---- masks that are the same for all clients ----


def _replace_constant_masks(module: fx.GraphModule) -> None:
    """Compute what depends on no input, and let constant masks select by places."""
    graph = module.graph
    known: dict[fx.Node, Tensor] = {}
    # What depends on nothing but the number of samples, where that is another for several short batches.
    sized: set[fx.Node] = set()
    # How many rows constant masks select, by PyTorch's symbols of these numbers.
    numbers: dict[Any, int] = {}
    for node in nodes_of(graph):
        given = node.all_input_nodes
        is_number = node.op == "placeholder" and isinstance(example_of(node), torch.SymInt)
        is_sized = given and all(own in sized or own in known for own in given) and not draws_by_name(node)
        if is_number or is_sized:
            sized.add(node)
        mask = _mask_of(node)
        if mask in sized - known.keys() and _has_unknown_rows(node):
            raise CannotVectorize(_UNEQUAL)
        is_constant = all(own in known for own in given) and node.op.startswith("call") and not draws_by_name(node)
        if mask is not None and mask in known:
            number = sum(own.op == "get_attr" for own in nodes_of(graph))
            places: list[fx.Node] = []
            for dim, indices in enumerate(known[mask].nonzero(as_tuple=True)):
                name = f"places_{number}_{dim}"
                module.register_buffer(name, indices)
                with graph.inserting_before(node):
                    places.append(graph.get_attr(name))
                places[-1].meta["example_value"] = indices
            value = node_at(node, 0)
            if value in known:
                known[node] = known[value][known[mask]]
            node.op = "call_function"
            node.target = operator.getitem
            node.args = (value, tuple(places))
            if _has_unknown_rows(node):
                rows: Any = example_tensor(node).shape[0]
                numbers[rows.node.expr] = len(example_tensor(places[0]))
        elif is_constant and _is_tensor(node):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda own: known[own])
            with torch.no_grad():
                known[node] = _called(node, args, kwargs)
        else:
            # It may write to them.
            for own in given:
                if name_of(node) == "setitem" or getattr(node.target, "__name__", str(node.target)).endswith("_"):
                    known.pop(own, None)
    for node in nodes_of(graph):
        _replace_numbers(node, numbers)


def _replace_numbers(node: fx.Node, numbers: dict[Any, int]) -> None:
    """Put numbers in the places of symbols, in what a node stands for."""

    def known(size: Any) -> Any:
        if not isinstance(size, torch.SymInt):
            return size
        number = size.node.expr.subs(numbers)
        return int(number) if number.is_number else size

    value = example_of(node)
    if isinstance(value, Tensor) and numbers:
        node.meta["example_value"] = value.new_empty([known(size) for size in value.shape])
    elif isinstance(value, torch.SymInt) and type(known(value)) is int:
        for user in list(node.users):
            user.args = fx.map_arg(user.args, lambda own: known(value) if own is node else own)
        node.graph.erase_node(node)


def _called(node: fx.Node, args: Any, kwargs: Any) -> Any:
    function: Any = node.target
    if node.op == "call_method":
        return getattr(args[0], function)(*args[1:], **kwargs)
    return function(*args, **kwargs)


# ---- masks of each client ----


class _Selections:
    """Replaces the nodes of a graph that select by a client's mask, and those that compute with what they select.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        #: The masks of nodes that have selected rows.
        self._masks: dict[fx.Node, fx.Node] = {}
        leading = {node for node in nodes_of(graph) if _has_unknown_rows(node)}
        self._rows = Rows(self._masks.__contains__, leading)
        self._counts: set[fx.Node] = set()

    def replace(self, node: fx.Node) -> None:
        """Replace a node, after those that it is given."""
        masks = [self._masks[own] for own in node.all_input_nodes if own in self._masks]
        mask = _mask_of(node)
        if mask is not None and _has_unknown_rows(node) and not masks:
            self._fill(node, mask)
        elif masks:
            if any(each is not masks[0] for each in masks):
                raise CannotVectorize(SELECTS)
            self._use(node, masks[0])
        elif any(own in self._counts for own in node.all_input_nodes) and name_of(node) not in _OF_COUNTS:
            raise CannotVectorize(SELECTS)

    def _fill(self, node: fx.Node, mask: fx.Node) -> None:
        value = node_at(node, 0)
        is_of_values = example_tensor(mask).dim() > 1
        if is_of_values and example_tensor(mask).shape != example_tensor(value).shape:
            raise CannotVectorize(SELECTS)
        if is_of_values:
            with self._graph.inserting_before(node):
                value = self._graph.call_method("flatten", (value,))
                flat = self._graph.call_method("flatten", (mask,))
            flat.meta["example_value"] = example_tensor(mask).flatten()
            mask = flat
        node.op = "call_function"
        node.target = _filled
        node.args = (value, mask)
        self._note(node, mask)

    def _note(self, node: fx.Node, mask: fx.Node) -> None:
        """Note that a node has selected rows, and as many rows as its mask."""
        value = example_tensor(node)
        node.meta["example_value"] = value.new_empty((example_tensor(mask).numel(), *value.shape[1:]))
        self._masks[node] = mask

    def _use(self, node: fx.Node, mask: fx.Node) -> None:
        """Replace a node that is given selected rows."""
        name = name_of(node)
        function: Any = node.target
        is_loss = inspect.isfunction(function) and getattr(F, name, None) is function
        options: dict[str, Any] = {}
        if is_loss:
            options = inspect.signature(function).bind(*node.args, **node.kwargs).arguments
        if name == _SIZE and node.args[1] == 0:
            self._replace(node, _count, (mask,))
            self._counts.add(node)
        elif name in ("mean", "sum") and set(node.kwargs) <= {"dim"} and _dim(node) in (None, 0):
            self._replace(node, _mean if name == "mean" else _sum, (node.args[0], mask, _dim(node) is None))
        elif options.get("reduction") != "none" and self._rows.takes_losses(node) and not _has_old_options(options):
            self._replace(node, _loss, (name, mask), {"reduction": "mean", **options})
        elif draws_by_name(node) or not self._rows.treats_alone(node) or not _is_tensor(node):
            raise CannotVectorize(SELECTS)
        else:
            self._note(node, mask)

    def _replace(self, node: fx.Node, function: Any, args: Any, kwargs: dict[str, Any] | None = None) -> None:
        node.op = "call_function"
        node.target = function
        node.args = args
        node.kwargs = kwargs or {}


def _has_unknown_rows(node: fx.Node) -> bool:
    """Whether a node has as many rows as values decide."""
    value = example_of(node)
    if not isinstance(value, Tensor) or not value.dim():
        return False
    size = value.shape[0]
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None and not size.node.has_hint()


def _dim(node: fx.Node) -> Any:
    """Return the dimension along which a node takes a mean or a sum."""
    dim = argument(node, 1, "dim")
    return dim[0] if isinstance(dim, (list, tuple)) and len(dim) == 1 else dim


def _has_old_options(options: dict[str, Any]) -> bool:
    return options.get("size_average") is not None or options.get("reduce") is not None


# ---- what graphs call ----


def _filled(value: Tensor, mask: Tensor) -> Tensor:
    """Return rows, of which those that are not selected repeat the first that is."""
    first = mask.int().argmax().reshape(1)
    return torch.where(_along_rows(mask, value), value, value.detach().index_select(0, first))


def _count(mask: Tensor) -> Tensor:
    return mask.sum()


def _sum(value: Tensor, mask: Tensor, of_all: bool) -> Tensor:
    selected = torch.where(_along_rows(mask, value), value, 0)
    return selected.sum() if of_all else selected.sum(0)


def _mean(value: Tensor, mask: Tensor, of_all: bool) -> Tensor:
    number = mask.sum()
    if of_all:
        for size in value.shape[1:]:
            number = number * size
    return _sum(value, mask, of_all) / number


def _loss(name: str, mask: Tensor, **options: Any) -> Tensor:
    """Return the mean, or the sum, of the losses of selected rows."""
    function = mapped_function(getattr(F, name))
    target: Tensor = options["target"]
    if name in ("cross_entropy", "nll_loss") and not target.is_floating_point():
        ignored = options.get("ignore_index", -100)
        loss: Tensor = function(**{**options, "target": torch.where(_along_rows(mask, target), target, ignored)})
        return loss
    losses = function(**{**options, "reduction": "none"})
    return _sum(losses, mask, True) if options["reduction"] == "sum" else _mean(losses, mask, True)


def _along_rows(mask: Tensor, value: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (value.dim() - 1))
