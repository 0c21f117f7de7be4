"""The graph of a captured training step, computed for the models of several clients at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._C import _functorch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.causes import errors_of_step
from fl_lightning.executors.compiler.simplification import as_called_fastest, simplify, step_at_end
from fl_lightning.executors.compiler.unmapped import replace_unmapped
from fl_lightning.executors.stack.inplace_sgd import InPlaceSgd
from fl_lightning.executors.stack.randomness import PerClientDraws, draws_by_name, mapped_dirichlet

_TRACED = 5, 6  # neighbouring numbers of clients, from whose graphs that of any other number follows


class DependsOnNumber(CannotVectorize):
    """A step of filled-up batches has other operations for another number of clients."""


class Place(NamedTuple):
    """Names a stack: which list of :class:`Stacks` holds it, and its place there."""

    kind: str
    number: int


@dataclass
class Stacks:
    """Stacks of K clients' tensors, shape ``(K, ...)`` each, in the place of one client's tensors.

    Attributes:
        parameters: The trained parameters, leaves.
        buffers: The buffers, which a step may write to.
        batch: The tensors of a batch.
        weights: Of each sample in its client's batch, shape ``(K, B)``; ``None`` where all batches are whole.
        draws: Draws random numbers client by client.
        update: Steps a parameter at once; ``None`` where gradients are wanted.
    """

    parameters: list[Tensor]
    buffers: list[Tensor]
    batch: list[Tensor]
    draws: PerClientDraws
    weights: Tensor | None = None
    update: InPlaceSgd | None = None

    def __getitem__(self, place: Place) -> Tensor:
        """Return the stack of a name."""
        if place.kind == "zeros":
            return torch.zeros(len(self.parameters[0]), device=self.parameters[0].device)
        held: Any = getattr(self, place.kind)
        found: Tensor = held if place.kind == "weights" else held[place.number]
        return found


class Computed(NamedTuple):
    """The results of a step.

    Attributes:
        losses: The clients' losses, shape ``(K,)``.
        kept: What they log and give to metric objects, shape ``(K, ...)`` each.
        gradients: Of the sum of the losses, or ``None``, one for each parameter.
        stepped: Whether the parameters have been stepped.
    """

    losses: Tensor
    kept: Sequence[Tensor]
    gradients: list[Tensor | None]
    stepped: bool


class _Flat(NamedTuple):
    """A flat list of operations: forward pass, backward pass and, where it ``steps``, the optimizer's step."""

    run: Callable[..., Sequence[Tensor]]
    used: list[int]  # the parameters that have a gradient
    steps: bool


class StackedGraph:
    """A graph of one client's step, whose inputs may be stacks.

    Args:
        root: Holds the graphs that it calls, if any.
        graph: Its outputs are the loss and the tensors to keep; functions that cannot be mapped are replaced.
    """

    def __init__(self, root: fx.GraphModule | None, graph: fx.Graph) -> None:
        self.takes_zeros = replace_unmapped(graph)
        self._module = fx.GraphModule(root or {}, graph)
        self._draws = any(map(draws_by_name, graph.nodes))
        self._traced: dict[Any, list[tuple[fx.Graph, list[int]]]] = {}
        self._flat: dict[Any, _Flat] = {}
        self._now: Stacks | None = None
        #: Whether a step of it has been compared with the module itself.
        self.checked = False

    def run(self, stacks: Stacks, inputs: Sequence[Any], *, flat: bool) -> Computed:
        """Take a step, but for the optimizer's unless ``stacks.update`` is given.

        Args:
            stacks: The clients' tensors.
            inputs: For each input the :class:`Place` of a stack, or the value that all clients share.
            flat: Whether to make a flat list of operations of it, which costs some 0.1 s for each new form; forms with
                ``stacks.weights`` serve any number of clients.

        Raises:
            CannotVectorize: If the step changes what clients share, or parameters.
            DependsOnNumber: If there are weights, and other operations for other numbers of clients.
        """
        inputs = [
            *inputs,
            *[Place("weights", 0)] * (stacks.weights is not None),
            *[Place("zeros", 0)] * self.takes_zeros,
        ]
        if self.checked:
            return self._run(stacks, inputs, flat=flat)
        # A step that writes to weights or to what clients share is refused, and must not have written to them.
        shared = [value.detach().clone() if isinstance(value, Tensor) else value for value in inputs]
        for copied, value in zip(shared, inputs, strict=True):
            if isinstance(value, Tensor):
                copied.requires_grad_(value.requires_grad)
        parameters = [parameter.detach().clone().requires_grad_() for parameter in stacks.parameters]
        computed = self._run(replace(stacks, parameters=parameters), shared, flat=flat)
        originals = [*inputs, *stacks.parameters]
        for copied, value in zip([*shared, *parameters], originals, strict=True):
            if isinstance(value, Tensor) and not _same_values(copied, value) and not computed.stepped:
                raise CannotVectorize(
                    "`training_step` writes to parameters, or to a tensor of which there is one for all clients"
                )
        return computed

    def _run(self, stacks: Stacks, inputs: Sequence[Any], *, flat: bool) -> Computed:
        values = [stacks[value] if isinstance(value, Place) else value for value in inputs]
        depth = _functorch.get_dynamic_layer_stack_depth()
        self._now = stacks
        try:
            return (self._run_flat if flat else self._run_mapped)(stacks, inputs, values)
        finally:
            self._now = None
            # A transform in a step that failed has begun, and has not ended.
            _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)

    # ---- mapped ----

    def _mapped(self, inputs: Sequence[Any]) -> Callable[..., tuple[Tensor, ...]]:
        """Return the graph as a function of its tensors, mapped over clients."""
        given = [value for value in inputs if isinstance(value, (Tensor, Place))]
        if not any(isinstance(value, Place) for value in given):
            raise CannotVectorize("`training_step` computes with neither weights nor a batch")

        def one(*tensors: Tensor) -> tuple[Tensor, ...]:
            each = iter(tensors)
            found: tuple[Tensor, ...] = self._module.forward(
                *[next(each) if isinstance(value, (Tensor, Place)) else value for value in inputs]
            )
            return found

        dims = tuple(0 if isinstance(value, Place) else None for value in given)
        return torch.func.vmap(one, in_dims=dims, randomness="different" if self._draws else "error")  # type: ignore[no-any-return]

    def _run_mapped(self, stacks: Stacks, inputs: Sequence[Any], values: Sequence[Any]) -> Computed:
        mapped, tensors = self._mapped(inputs), [value for value in values if isinstance(value, Tensor)]
        with errors_of_step():
            if self._draws:
                with stacks.draws, mapped_dirichlet():
                    losses, *kept = mapped(*tensors)
            else:
                losses, *kept = mapped(*tensors)
            gradients = torch.autograd.grad(losses.sum(), stacks.parameters, allow_unused=True)
        return Computed(
            losses.detach().reshape(len(losses)), [tensor.detach() for tensor in kept], list(gradients), False
        )

    # ---- flat ----

    def _run_flat(self, stacks: Stacks, inputs: Sequence[Any], values: Sequence[Any]) -> Computed:
        number, steps = len(stacks.parameters[0]), stacks.update is not None
        form = tuple(
            (value.shape[isinstance(place, Place) :], value.stride(), value.dtype)
            if isinstance(value, Tensor)
            else value
            for value, place in zip(values, inputs, strict=True)
        )
        key = form, number, steps
        if key not in self._flat:
            numbers = (number,) if stacks.weights is None else _TRACED
            self._flat[key] = self._flatten(*self._graph(form, numbers, number, inputs, values), steps=steps)
        flat = self._flat[key]
        # The casts of autocast are operations of the list.
        with torch.no_grad(), _without_autocast(stacks.parameters[0].device.type), errors_of_step():
            losses, *found = flat.run(*[value for value in values if isinstance(value, Tensor)])
        kept = found if flat.steps else found[: len(found) - len(flat.used)]
        gradients: list[Tensor | None] = [None] * len(stacks.parameters)
        own = [stacks.parameters[place] for place in flat.used] if flat.steps else found[len(kept) :]
        for place, gradient in zip(flat.used, own, strict=True):
            gradients[place] = gradient
        return Computed(losses, kept, gradients, flat.steps)

    def _graph(
        self, form: Any, numbers: Sequence[int], number: int, inputs: Sequence[Any], values: Sequence[Any]
    ) -> tuple[fx.Graph, list[int]]:
        """Return the graph for a number of clients, from those that are traced for some numbers."""
        if (form, numbers) not in self._traced:
            self._traced[form, numbers] = [
                self._trace(inputs, [_resized(v, n, place) for v, place in zip(values, inputs, strict=True)])
                for n in numbers
            ]
        (graph, used), *others = self._traced[form, numbers]
        return (_between(graph, others[0][0], number) if others else graph), used

    def _trace(self, inputs: Sequence[Any], values: Sequence[Any]) -> tuple[fx.Graph, list[int]]:
        """Return forward and backward pass as one graph, and the places of the parameters that have a gradient."""
        given = [place for place in inputs if isinstance(place, (Tensor, Place))]
        leaves = [place.number if isinstance(place, Place) and place.kind == "parameters" else None for place in given]
        mapped, used = self._mapped(inputs), list[int]()

        def step(*tensors: Tensor) -> list[Tensor]:
            own = [
                t.detach() if leaf is None else t.detach().requires_grad_()
                for t, leaf in zip(tensors, leaves, strict=True)
            ]
            with mapped_dirichlet():
                losses, *kept = mapped(*own)
            wanted = {leaf: tensor for leaf, tensor in zip(leaves, own, strict=True) if leaf is not None}
            found = torch.autograd.grad(losses, list(wanted.values()), torch.ones_like(losses), allow_unused=True)
            gradients = {leaf: g for leaf, g in zip(wanted, found, strict=True) if g is not None}
            used[:] = gradients
            return [losses.detach().reshape(len(losses)), *(tensor.detach() for tensor in kept), *gradients.values()]

        tensors = [value.detach() for value in values if isinstance(value, Tensor)]
        with errors_of_step():
            traced = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
        simplify(traced.graph, self._draw)
        return traced.graph, list(used)

    def _flatten(self, traced: fx.Graph, used: list[int], *, steps: bool) -> _Flat:
        graph = fx.Graph()
        graph.output(graph.graph_copy(traced, {}))
        graph.set_codegen(fx.graph.CodeGen())  # tensors in, a list out
        if steps:
            step_at_end(graph, used, self._step)
        graph.eliminate_dead_code(is_impure_node=self._is_impure)
        for node in graph.nodes:
            node.target = as_called_fastest(node.target)
        return _Flat(fx.GraphModule(traced.owning_module or {}, graph).forward, used, steps)

    def _is_impure(self, node: fx.Node) -> bool:
        if isinstance(node.target, torch._ops.OpOverload):
            return node.target._schema.is_mutable
        return node.op in ("placeholder", "output") or node.target in (self._step, self._draw)

    def _step(self, place: int, *factors: Tensor) -> None:
        assert self._now is not None and self._now.update is not None
        self._now.update.step(place, *factors)

    def _draw(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        assert self._now is not None
        return self._now.draws.draw(function, args, kwargs)


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _resized(value: Any, number: int, place: Any) -> Any:
    """Return a stack like another one, of a number of clients."""
    if not isinstance(place, Place) or len(value) == number:
        return value
    return value.detach().new_empty_strided((number, *value.shape[1:]), value.stride())


def _between(one: fx.Graph, other: fx.Graph, number: int) -> fx.Graph:
    """Return the graph for another number of clients, given two: their sizes are linear in it.

    Raises:
        DependsOnNumber: If the two differ in more than sizes.
    """
    graph, copies, twins = fx.Graph(one.owning_module), dict[Any, Any](), dict[Any, Any]()

    def find(a: Any, b: Any) -> Any:
        if isinstance(a, fx.Node) and twins[a] is b:
            return copies[a]
        if type(a) is int and type(b) is int:
            return a + (b - a) * (number - _TRACED[0])
        if type(a) is not type(b) or a != b:
            raise DependsOnNumber
        return a

    if len(one.nodes) != len(other.nodes):
        raise DependsOnNumber
    for node, twin in zip(one.nodes, other.nodes, strict=True):
        twins[node] = twin
        (leaves, spec), (others, other_spec) = (pytree.tree_flatten((n.args, n.kwargs)) for n in (node, twin))
        if (node.op, node.target, spec) != (twin.op, twin.target, other_spec):
            raise DependsOnNumber
        args, kwargs = pytree.tree_unflatten(list(map(find, leaves, others)), spec)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
    return graph


def _same_values(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool((other != other).any())
