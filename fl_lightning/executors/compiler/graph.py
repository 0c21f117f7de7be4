"""The graph of a captured training step, computed for the models of several clients at once.

There are two ways, and the form of a step decides which one it takes. The worked example, for K clients::

    prediction = linear(x, weight)       # mapped: the graph of one client under `torch.func.vmap`
    loss = mse_loss(prediction, y)       # autograd makes the backward pass

    prediction = bmm(x, weight.transpose(1, 2))                            # flat: the operations that `vmap` and
    error = sub(prediction, y)                                             # autograd have called, as one list
    ...
    weight.baddbmm_(slope.transpose(1, 2), x, beta=1, alpha=-lr)           # where plain SGD steps the weights at once

A flat list takes some 0.1 s to make, and its steps half the time of mapped ones, most of which is spent in calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._C import _functorch
from torch.fx.experimental.proxy_tensor import make_fx

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.causes import errors_of_step
from fl_lightning.executors.compiler.nodes import nodes_of
from fl_lightning.executors.compiler.number_of_clients import FEW, MORE, Size, graph_for_any, resized
from fl_lightning.executors.compiler.simplification import (
    call_fastest,
    lay_out_as_read,
    simplify,
    step_at_end,
    write_in_place,
)
from fl_lightning.executors.compiler.unmapped import replace_unmapped
from fl_lightning.executors.stack.inplace_sgd import InPlaceSgd
from fl_lightning.executors.stack.randomness import PerClientDraws, draws_by_name


class Place(NamedTuple):
    """Names a stack.

    Attributes:
        kind: Which list of :class:`Stacks` holds it, or that it is ``"drawn"``.
        number: Its place there, or what is drawn.
    """

    kind: str
    number: Any


@dataclass
class Stacks:
    """Stacks of K clients' tensors, shape ``(K, ...)`` each, in the place of one client's tensors.

    Attributes:
        parameters: The trained parameters, leaves.
        buffers: The buffers, which a step may write to.
        batch: The tensors of a batch.
        draws: Draws random numbers client by client.
        gradients: The parameters' gradients, which a hook may write to; ``None`` for those that have none.
        weights: Of each sample in its client's batch, shape ``(K, B)``; ``None`` where all batches are whole.
        steps_so_far: The optimizer steps of all clients up to each client's, shape ``(K,)``, where a step reads them.
        update: Steps a parameter at once; ``None`` where gradients are wanted.
    """

    parameters: list[Tensor]
    buffers: list[Tensor]
    batch: list[Tensor]
    draws: PerClientDraws
    gradients: Sequence[Tensor | None] = ()
    weights: Tensor | None = None
    steps_so_far: Tensor | None = None
    update: InPlaceSgd | None = None

    @property
    def number(self) -> int:
        """The number of clients, K."""
        return len(self.parameters[0])

    def steps_of(self, row: int) -> int:
        """Return the optimizer steps of all clients up to the client of a row; 0 where no step reads them."""
        return 0 if self.steps_so_far is None else int(self.steps_so_far[row])

    def __getitem__(self, place: Place) -> Tensor:
        """Return the stack of a name."""
        if place.kind == "zeros":
            return torch.zeros(self.number, device=self.parameters[0].device)
        if place.kind == "drawn":
            return self.draws.draw_on_host(place.number.draw)
        held: Any = getattr(self, place.kind)
        stack: Tensor = held if isinstance(held, Tensor) else held[place.number]
        return stack


class Computed(NamedTuple):
    """The results of a step.

    Attributes:
        losses: The clients' losses, shape ``(K,)``.
        kept: What they log and give to metric objects, shape ``(K, ...)`` each.
        gradients: Of the sum of the losses, one for each parameter, or ``None``. Where parameters have been stepped
            these are the parameters.
        stepped: Whether the parameters have been stepped.
    """

    losses: Tensor
    kept: Sequence[Tensor]
    gradients: list[Tensor | None]
    stepped: bool


class _Traced(NamedTuple):
    """Forward and backward pass as one graph.

    Attributes:
        graph: The graph; its outputs are the losses, what is kept, and the gradients.
        used: The places of the parameters that have a gradient.
    """

    graph: fx.Graph
    used: list[int]


class _FlatList(NamedTuple):
    """A flat list of operations: forward pass, backward pass and, where it ``steps``, the optimizer's step.

    Attributes:
        run: Takes the tensors, and the sizes.
        used: The places of the parameters that have a gradient.
        sizes: What depends on the number of clients, in a list that serves any number.
        steps: Whether it steps the parameters.
    """

    run: Callable[..., Sequence[Tensor]]
    used: list[int]
    sizes: list[Size]
    steps: bool


class StackedGraph:
    """A graph of one client's step, whose inputs may be stacks.

    Args:
        root: Holds the graphs that it calls, if any.
        graph: Its outputs are the loss and the tensors to keep; functions that cannot be mapped are replaced.
        context: Lightning's context of a step, in which its forward pass runs.
    """

    def __init__(
        self, root: fx.GraphModule | None, graph: fx.Graph, context: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._context = context
        self._takes_zeros = replace_unmapped(graph)
        self._module = fx.GraphModule(root or {}, graph)
        self._draws = any(map(draws_by_name, nodes_of(graph)))
        self._traced: dict[Any, _Traced] = {}
        self._flat: dict[Any, _FlatList] = {}
        #: What the step under way is taken with, for the functions that its flat list calls.
        self._now: Stacks | None = None
        #: Whether a step of it has been compared with the module itself.
        self.checked = False

    def run(self, stacks: Stacks, inputs: Sequence[Any], *, flat: bool) -> Computed:
        """Take a step, but for the optimizer's unless ``stacks.update`` is given.

        Args:
            stacks: The clients' tensors.
            inputs: For each input the :class:`Place` of a stack, or the value that all clients share.
            flat: Whether it is taken as a flat list. Lists with ``stacks.weights`` serve any number of clients.

        Raises:
            CannotVectorize: If the step changes what clients share, or parameters.
            DependsOnNumber: If there are weights, and other operations for other numbers of clients.
        """
        given = list(inputs)
        if stacks.weights is not None:
            given.append(Place("weights", 0))
        if self._takes_zeros:
            given.append(Place("zeros", 0))
        if self.checked:
            return self._run(stacks, given, flat=flat)
        return self._run_on_copies(stacks, given, flat=flat)

    def _run_on_copies(self, stacks: Stacks, inputs: Sequence[Any], *, flat: bool) -> Computed:
        """Take a step that may write to weights, or to what clients share: it is refused, and has not written there."""
        copies = [_copy(value) for value in inputs]
        parameters = [_copy(parameter) for parameter in stacks.parameters]
        computed = self._run(replace(stacks, parameters=parameters), copies, flat=flat)
        if computed.stepped:
            return computed
        for copied, original in zip([*copies, *parameters], [*inputs, *stacks.parameters], strict=True):
            if isinstance(original, Tensor) and not _same_values(copied, original):
                raise CannotVectorize(
                    "`training_step` writes to parameters, or to a tensor of which there is one for all clients"
                )
        return computed

    def _run(self, stacks: Stacks, inputs: Sequence[Any], *, flat: bool) -> Computed:
        values = [stacks[value] if isinstance(value, Place) else value for value in inputs]
        depth = _functorch.get_dynamic_layer_stack_depth()
        self._now = stacks
        try:
            if flat:
                return self._run_flat(stacks, inputs, values)
            return self._run_mapped(stacks, inputs, values)
        except CannotVectorize:
            # What `torch.func.jvp` in a step that failed has begun has not ended; there is one level at most.
            with suppress(RuntimeError):
                torch._C._exit_dual_level(level=0)
            raise
        finally:
            self._now = None
            # So have other transforms. PyTorch 2.11 ends them, and then raises an error.
            with suppress(RuntimeError):
                _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)

    # ---- mapped ----

    def _mapped(self, inputs: Sequence[Any]) -> Callable[..., tuple[Tensor, ...]]:
        """Return the graph as a function of its tensors, mapped over clients."""
        tensors = [value for value in inputs if isinstance(value, (Tensor, Place))]
        if not any(isinstance(value, Place) for value in tensors):
            raise CannotVectorize("`training_step` computes with neither weights nor a batch")

        def of_one_client(*own: Tensor) -> tuple[Tensor, ...]:
            rest = iter(own)
            arguments = [next(rest) if isinstance(value, (Tensor, Place)) else value for value in inputs]
            outputs: tuple[Tensor, ...] = self._module.forward(*arguments)
            return outputs

        dims = tuple(0 if isinstance(value, Place) else None for value in tensors)
        randomness = "different" if self._draws else "error"
        return torch.func.vmap(of_one_client, in_dims=dims, randomness=randomness)  # type: ignore[no-any-return]

    def _run_mapped(self, stacks: Stacks, inputs: Sequence[Any], values: Sequence[Any]) -> Computed:
        mapped = self._mapped(inputs)
        tensors = [value for value in values if isinstance(value, Tensor)]
        with errors_of_step():
            with self._context(), stacks.draws if self._draws else nullcontext():
                losses, *kept = mapped(*tensors)
            gradients = torch.autograd.grad(losses.sum(), stacks.parameters, allow_unused=True)
        losses = losses.detach().reshape(len(losses))
        return Computed(losses, [tensor.detach() for tensor in kept], list(gradients), stepped=False)

    def run_hook(self, stacks: Stacks, inputs: Sequence[Any]) -> list[Tensor]:
        """Run a hook on gradients, which may write to the stacks, and return what it logs, shape ``(K, ...)`` each.

        Args:
            stacks: The clients' tensors.
            inputs: For each input the :class:`Place` of a stack, or the value that all clients share.

        Raises:
            CannotVectorize: If it cannot be mapped, or writes to a tensor that clients share.
        """
        given = [*inputs, Place("zeros", 0)] if self._takes_zeros else list(inputs)
        copies = [_copy(value) for value in given]
        values = [stacks[value] if isinstance(value, Place) else value for value in copies]
        tensors = [value for value in values if isinstance(value, Tensor)]
        with errors_of_step(), torch.no_grad(), stacks.draws if self._draws else nullcontext():
            if any(isinstance(value, Place) for value in given):
                _, *kept = self._mapped(given)(*tensors)
            else:
                # It computes the same for all clients.
                _, *kept = [tensor.expand(stacks.number, *tensor.shape) for tensor in self._module.forward(*values)]
        for copied, original in zip(copies, given, strict=True):
            if isinstance(original, Tensor) and not _same_values(copied, original):
                raise CannotVectorize("a hook writes to a tensor of which there is one for all clients")
        return [tensor.detach() for tensor in kept]

    # ---- flat ----

    def _run_flat(self, stacks: Stacks, inputs: Sequence[Any], values: Sequence[Any]) -> Computed:
        form = tuple(map(_form, values, inputs))
        number = stacks.number
        key = form, number if stacks.weights is None else None, stacks.update is not None
        flat = self._flat.get(key)
        if flat is None:
            flat = self._flat[key] = self._flatten(stacks, form, inputs, values)
        tensors = [value for value in values if isinstance(value, Tensor)]
        # The casts of autocast are operations of the list.
        device = stacks.parameters[0].device.type
        with torch.no_grad(), self._context(), _without_autocast(device), errors_of_step():
            losses, *found = flat.run(*tensors, *[size.of(number) for size in flat.sizes])
        gradients: list[Tensor | None] = [None] * len(stacks.parameters)
        if flat.steps:
            for place in flat.used:
                gradients[place] = stacks.parameters[place]
            return Computed(losses, found, gradients, stepped=True)
        num_kept = len(found) - len(flat.used)
        for place, gradient in zip(flat.used, found[num_kept:], strict=True):
            gradients[place] = gradient
        return Computed(losses, found[:num_kept], gradients, stepped=False)

    def _flatten(self, stacks: Stacks, form: Any, inputs: Sequence[Any], values: Sequence[Any]) -> _FlatList:
        sizes: list[Size] = []
        if stacks.weights is None:
            traced = self._traced_for(stacks.number, form, inputs, values)
        else:
            few = self._traced_for(FEW, form, inputs, values)
            more = self._traced_for(MORE, form, inputs, values)
            for_any, sizes = graph_for_any(few.graph, more.graph)
            traced = _Traced(for_any, few.used)
        steps = stacks.update is not None
        graph = fx.Graph()
        graph.output(graph.graph_copy(traced.graph, {}))
        # It takes tensors and returns a list.
        graph.set_codegen(fx.graph.CodeGen())
        if steps:
            step_at_end(graph, traced.used, self._step)
        else:
            lay_out_as_read(graph, len(traced.used))
        graph.eliminate_dead_code(is_impure_node=self._is_impure)
        call_fastest(graph)
        run = fx.GraphModule(traced.graph.owning_module or {}, graph).forward
        return _FlatList(run, traced.used, sizes, steps)

    def _traced_for(self, number: int, form: Any, inputs: Sequence[Any], values: Sequence[Any]) -> _Traced:
        """Return forward and backward pass for a number of clients."""
        if (form, number) not in self._traced:
            tensors = []
            for value, place in zip(values, inputs, strict=True):
                if isinstance(value, Tensor):
                    tensors.append(resized(value, number) if isinstance(place, Place) else value)
            self._traced[form, number] = self._trace(inputs, tensors)
        return self._traced[form, number]

    def _trace(self, inputs: Sequence[Any], tensors: Sequence[Tensor]) -> _Traced:
        places = [value for value in inputs if isinstance(value, (Tensor, Place))]
        mapped = self._mapped(inputs)
        used: list[int] = []

        def step(*given: Tensor) -> list[Tensor]:
            own = [tensor.detach() for tensor in given]
            parameters: dict[int, Tensor] = {}
            for tensor, place in zip(own, places, strict=True):
                if isinstance(place, Place) and place.kind == "parameters":
                    parameters[place.number] = tensor.requires_grad_()
            with self._context():
                losses, *kept = mapped(*own)
            # Lightning takes gradients outside of the context, where autocast casts nothing.
            ones = torch.ones_like(losses)
            gradients = torch.autograd.grad(losses, list(parameters.values()), ones, allow_unused=True)
            outputs = [losses.detach().reshape(len(losses)), *(tensor.detach() for tensor in kept)]
            for number, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    used.append(number)
                    outputs.append(gradient)
            return outputs

        with errors_of_step():
            traced = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*[t.detach() for t in tensors])
        simplify(traced.graph, self._draw)
        traced.graph.eliminate_dead_code(is_impure_node=self._is_impure)
        write_in_place(traced.graph)
        return _Traced(traced.graph, used)

    # ---- what a flat list calls ----

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


def _form(value: Any, place: Any) -> Any:
    """Return what a flat list depends on of an input: all but its values and, for stacks, the number of clients."""
    if not isinstance(value, Tensor):
        return value
    shape = value.shape[1:] if isinstance(place, Place) else value.shape
    return shape, value.stride(), value.dtype


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    # Entering it costs as much as a small operation.
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _copy(value: Any) -> Any:
    """Return a copy of a tensor; other values as they are."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _same_values(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool((other != other).any())
