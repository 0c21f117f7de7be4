"""The computation of one ``training_step``, noted while it runs on zeros."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.stand_ins import register_stand_in
from fl_lightning.executors.stacked.item import Item

#: What only asks a tensor about itself.
_ASKED = ("size", "dim", "numel", "stride", "is_floating_point", "__len__", "ndimension")
_HELD = ("shape", "dtype", "device", "ndim", "requires_grad", "is_meta", "layout")
QUESTIONS = {getattr(Tensor, name) for name in _ASKED} | {getattr(Tensor, name).__get__ for name in _HELD}

#: Functions that may take a batch's size as a number.
RESHAPES = (Tensor.view, Tensor.reshape, torch.reshape)
DEPENDS_ON_SIZE = "what is computed depends on a batch's size"


@dataclass(frozen=True)
class Ref:
    """The number of a value: the parameters come first, then the batch's tensors, then what is computed."""

    number: int


@dataclass(frozen=True)
class Node:
    """A call of a function.

    Attributes:
        number: Number of its result.
        function: The function.
        args: Its arguments, with :class:`Ref` in the place of tensors.
        kwargs: Its arguments by name.
        in_graph: Whether gradients go through it.
        shape: Shape of its result for one client; empty for several results.
        dtype: Type of its result; ``None`` for several.
    """

    number: int
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    in_graph: bool
    shape: tuple[int, ...]
    dtype: torch.dtype | None

    @cached_property
    def inputs(self) -> list[int]:
        """The numbers of the tensors that it takes."""
        return [leaf.number for leaf in self.leaves if isinstance(leaf, Ref)]

    @cached_property
    def leaves(self) -> list[Any]:
        """Its arguments, those in lists one by one."""
        return pytree.tree_leaves((self.args, self.kwargs))


@dataclass
class Graph:
    """What a step computes.

    Attributes:
        parameters: How many values are parameters.
        leaves: How many values are given: parameters, and the tensors of a batch.
        shapes: The shapes of the given values.
        dtypes: Their types.
        nodes: What is computed, in order.
    """

    parameters: int
    leaves: int
    shapes: list[tuple[int, ...]]
    dtypes: list[torch.dtype]
    nodes: dict[int, Node] = field(default_factory=dict)

    def add(self, function: Any, args: Any, kwargs: Any, result: Tensor | None) -> int:
        """Note a call and return its result's number; the result is ``None`` if there are several."""
        number = self.leaves + len(self.nodes)
        shape, dtype = ((), None) if result is None else (tuple(result.shape), result.dtype)
        self.nodes[number] = Node(number, function, args, kwargs, torch.is_grad_enabled(), shape, dtype)
        return number

    def users(self, number: int) -> list[Node]:
        """Return the calls that take a value."""
        return [node for node in self.nodes.values() if number in node.inputs]

    def shape_of(self, number: int) -> tuple[int, ...]:
        """Return a value's shape."""
        return self.shapes[number] if number < self.leaves else self.nodes[number].shape

    def dtype_of(self, number: int) -> torch.dtype | None:
        """Return a value's type; ``None`` for several results."""
        return self.dtypes[number] if number < self.leaves else self.nodes[number].dtype

    def check_like(self, other: Graph, size: int, other_size: int) -> None:
        """Raise ``CannotVectorize`` if another graph differs in more than the batch's size."""
        if len(self.nodes) != len(other.nodes):
            raise CannotVectorize(DEPENDS_ON_SIZE)
        for a, b in zip(self.nodes.values(), other.nodes.values(), strict=True):
            if a.function is not b.function or a.in_graph != b.in_graph:
                raise CannotVectorize(DEPENDS_ON_SIZE)
            if a.args == b.args and a.kwargs == b.kwargs:
                continue
            sizes = (size, other_size) if a.function in RESHAPES else None
            left, right = a.leaves, b.leaves
            if len(left) != len(right) or not all(x == y or (x, y) == sizes for x, y in zip(left, right, strict=True)):
                raise CannotVectorize(DEPENDS_ON_SIZE)


class Traced(Tensor):
    """A tensor of one client whose every use is noted; whoever asks for its values gets an error."""

    graph: Graph
    number: int

    @classmethod
    def make(cls, like: Tensor, graph: Graph, number: int) -> Traced:
        """Return a traced tensor."""
        made = like.as_subclass(cls)
        made.graph, made.number = graph, number
        return register_stand_in(made, _zeros)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a call."""
        kwargs = dict(kwargs or {})
        if function in QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        name = getattr(function, "__name__", str(function))
        if function is Tensor.item:
            return Item.traced(args[0])
        if (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or "out" in kwargs:
            raise CannotVectorize(f"{name} changes a tensor in place")
        given: list[Traced] = []
        noted = (
            tuple(_noted(arg, given, name) for arg in args),
            {key: _noted(v, given, name) for key, v in kwargs.items()},
        )
        graph = given[0].graph
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
        # a program draws masks when it runs: the trace only notes that, and leaves the generators alone
        drawn_later = _undrawn(given[0].device) if function is F.dropout else nullcontext()
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch(), drawn_later:
            result = function(*args, **kwargs)
        if isinstance(result, Tensor):
            return cls.make(result, graph, graph.add(function, *noted, result))
        if isinstance(result, tuple) and all(isinstance(part, Tensor) for part in result):
            number = graph.add(function, *noted, None)
            parts = [
                cls.make(part, graph, graph.add(operator.getitem, (Ref(number), place), {}, part))
                for place, part in enumerate(result)
            ]
            return type(result)(parts) if hasattr(result, "n_fields") else tuple(parts)
        raise CannotVectorize(f"{name} turns a tensor into something else")


def _undrawn(device: torch.device) -> AbstractContextManager[None]:
    """Put generators back afterwards."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _zeros(traced: Traced) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return torch.zeros(traced.shape, dtype=traced.dtype, device=traced.device)


def _noted(value: Any, given: list[Traced], name: str) -> Any:
    """Return an argument with references in the place of tensors, which are added to ``given``."""
    if type(value) is Item:
        value = value.tensor
    if isinstance(value, Tensor):
        if type(value) is not Traced:
            raise CannotVectorize(f"{name} takes a tensor that is neither a parameter nor the batch's")
        given.append(value)
        return Ref(value.number)
    return type(value)([_noted(part, given, name) for part in value]) if type(value) in (list, tuple) else value


def trace(
    parameters: Sequence[Tensor], tensors: Sequence[Tensor], step: Callable[[list[Traced], list[Traced]], Any]
) -> tuple[Graph, Any]:
    """Run a step on zeros; return what it computes, and what it returned.

    Args:
        parameters: The parameters of one model.
        tensors: The tensors of one batch, all zeros.
        step: Called with the traced parameters and the traced tensors of the batch.

    Raises:
        CannotVectorize: If it does something that cannot be noted.
    """
    shapes = [tuple(tensor.shape) for tensor in (*parameters, *tensors)]
    graph = Graph(len(parameters), len(shapes), shapes, [tensor.dtype for tensor in (*parameters, *tensors)])
    weights = [parameter.detach().new_zeros(()).expand(parameter.shape).requires_grad_() for parameter in parameters]
    made = [Traced.make(tensor, graph, number) for number, tensor in enumerate((*weights, *tensors))]
    for weight in made[: len(weights)]:
        weight._is_param = True  # what `isinstance(_, nn.Parameter)` asks for
    with _NothingUnseen():
        returned = step(made[: len(weights)], made[len(weights) :])
    return graph, returned


class _NothingUnseen(TorchDispatchMode):
    """Raises ``CannotVectorize`` where something computes with traced tensors unseen, such as a ``torch.jit`` function.

    It would read zeros.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(value, Traced) for value in pytree.tree_leaves((args, kwargs))):
            raise CannotVectorize(f"{function} is called in a way that cannot be noted, such as by `torch.jit`")
        return function(*args, **(kwargs or {}))


def custom_functions(loss: Tensor) -> bool:
    """Whether gradients of a loss go through an ``autograd.Function`` of the user's own."""
    with torch._C.DisableTorchFunctionSubclass():
        waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return False
