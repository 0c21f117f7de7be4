"""The graph of a captured training step, computed for the models of several clients at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._C import _functorch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.stacked.causes import errors_of_step
from fl_lightning.executors.stacked.inplace_sgd import InPlaceSgd
from fl_lightning.executors.stacked.randomness import PerClientDraws, draws_by_name, mapped_dirichlet
from fl_lightning.executors.stacked.unmapped import replace_unmapped

aten = torch.ops.aten
_IN_BATCHES = {(1, 2), (2, 1), (-1, -2), (-2, -1)}  # of dimensions, that `transpose` turns in a batched product
_NOTHING = {aten.alias.default, aten.detach.default}
_RESHAPES = {
    *(aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default),
    *(aten.permute.default, aten.transpose.int),
}
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
        self._simplify(traced.graph)
        return traced.graph, list(used)

    def _flatten(self, traced: fx.Graph, used: list[int], *, steps: bool) -> _Flat:
        graph = fx.Graph()
        graph.output(graph.graph_copy(traced, {}))
        graph.set_codegen(fx.graph.CodeGen())  # tensors in, a list out
        if steps:
            self._step_at_end(graph, used)
        graph.eliminate_dead_code(is_impure_node=self._is_impure)
        for node in graph.nodes:
            node.target = _as_called_fastest(node.target)
        return _Flat(fx.GraphModule(traced.owning_module or {}, graph).forward, used, steps)

    def _simplify(self, graph: fx.Graph) -> None:
        """Leave out operations that change nothing, add within products, and let random operations draw by client."""
        calls = [node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        writes = any(target._schema.is_mutable for target in calls)
        for node in list(graph.nodes):
            first: Any = node.args[0] if node.args else None
            same = isinstance(first, fx.Node) and _form(first) is not None and _form(first) == _form(node)
            if node.op != "call_function":
                continue
            is_copied = node.target is aten.clone.default and not writes and _is_new(first)
            is_one = node.target is aten.mul.Scalar and node.args[1] == 1
            if node.target in _NOTHING or is_copied or (same and (node.target in _RESHAPES or is_one)):
                node.replace_all_uses_with(first)
                graph.erase_node(node)
            elif node.target is aten.add.Tensor and not node.kwargs and any(map(_is_product, node.args)):
                offset, product = node.args if _is_product(node.args[1]) else node.args[::-1]
                alike = [isinstance(each, fx.Node) and _form(each)[2] == _form(node)[2] for each in node.args]
                if all(alike) and len(product.users) == 1 and _form(node)[0] == _form(product)[0]:
                    node.target, node.args = aten.baddbmm.default, (offset, *product.args)
            elif node.target is aten.transpose.int and _undoes(node, first):
                node.replace_all_uses_with(first.args[0])  # type: ignore[union-attr]
                graph.erase_node(node)
            elif node.target is aten.view.default and _squeezes(node, first):
                node.target, node.args = aten.sum.dim_IntList, first.args[:2]  # type: ignore[union-attr]
            elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                node.target, node.args = self._draw, (node.target, *node.args)
        for node in graph.nodes:  # kernels may lay their results out otherwise than the traced ones
            if node.target in (aten.view.default, aten._unsafe_view.default) and not writes:
                node.target = aten.reshape.default

    def _step_at_end(self, graph: fx.Graph, used: Sequence[int]) -> None:
        """Step each parameter by its gradient; where that is a product, by the product at once."""
        output = graph.output_node()
        outputs = list(output.args[0])  # type: ignore[arg-type, call-overload]
        number = len(outputs) - len(used)
        with graph.inserting_before(output):
            for place, gradient in zip(used, outputs[number:], strict=True):
                turned = gradient.target is aten.transpose.int and gradient.args[1:] in _IN_BATCHES
                product: Any = gradient.args[0] if turned else gradient
                if not _is_product(product) or len(gradient.users) > 1:
                    factors: Any = (gradient,)
                else:
                    factors = [_turned(graph, f) for f in product.args[::-1]] if turned else product.args
                graph.call_function(self._step, (place, *factors))
        output.args = (outputs[:number],)

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


def _as_called_fastest(target: Any) -> Any:
    """Return the function of ``torch`` that does the same as an overload, in half the time that a call takes."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return target
    function = getattr(torch, target.overloadpacket.__name__, None)
    takes_gaps = "Tensor?[]" in str(target._schema)  # as indices of `x[:, [0, 2]]`, which the function does not take
    return function if isinstance(function, BuiltinFunctionType) and not takes_gaps else target


def _same_values(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool((other != other).any())


def _is_product(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.target is aten.bmm.default


def _undoes(node: fx.Node, first: Any) -> bool:
    """Whether a transposition undoes another one."""
    return isinstance(first, fx.Node) and first.target is aten.transpose.int and _form(node) == _form(first.args[0])  # type: ignore[arg-type]


def _turned(graph: fx.Graph, factor: Any) -> Any:
    """Return the transposed factor of a batched product."""
    if factor.target is aten.transpose.int and factor.args[1:] in _IN_BATCHES:
        return factor.args[0]
    return graph.call_function(aten.transpose.int, (factor, 1, 2))


def _squeezes(node: fx.Node, first: Any) -> bool:
    """Whether a view leaves out the dimension over which a sum was taken."""
    if not isinstance(first, fx.Node) or first.target is not aten.sum.dim_IntList or first.args[2:] != (True,):
        return False
    dims: Any = first.args[1]
    if len(dims) != 1 or first.kwargs or len(first.users) > 1:
        return False
    shape = list(first.meta["val"].shape)
    del shape[dims[0]]
    return list(node.meta["val"].shape) == shape


def _is_new(node: Any) -> bool:
    """Whether a node's tensor is no view of another one."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and not any(own.alias_info for own in target._schema.returns)


def _form(node: Any) -> Any:
    value = node.meta.get("val")
    return (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else None
