"""One client's ``training_step``, captured by ``torch.compile``, which also guards what it depends on.

The first client's batch is given to the compiled step::

    compiled(module, batch, 0)      # Dynamo reads `training_step`, and calls the backend with its graph
    graph(x, weight, y)             # the backend's function notes the graph's inputs, and computes nothing

Each input that is one of the module's parameters or buffers, or a tensor of the batch, becomes the place of a stack;
what is left is shared by all clients. A step whose guards still hold only notes its inputs again.

**Inputs of the graph** are also the numbers that change from step to step, or from round to round, as tensors of shape
``()``: the batch's index, the round, ``global_step`` (of each client its own), rates of schedules that step with a
client. Other numbers, such as those that hooks set, are constants of the first graph. Once one has another value, the
step is captured a second time, and then it is an input as well::

    beta = min(1.0, self.current_epoch / 10)      # the round: an input
    loss = loss + beta * penalty                  # beta: computed from it, as a tensor

Where Python decides by such a number, Dynamo guards the decision, and captures the step once for each.

**Outputs of the graph** are the loss, what is logged and given to metric objects, buffers, and what the step keeps in
attributes for later (``kept``).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._dynamo import config
from torch._dynamo.types import GuardFilterEntry
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import Keeper, Logged
from fl_lightning._lightning.stacks.stacked_loop import GRADIENT_HOOKS, StackedLoop
from fl_lightning._lightning.stacks.watching import WatchedTrainer
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.compiler.causes import cause_of, changes, effects_of, errors_of_step
from fl_lightning.executors.compiler.conditions import conditions_as_outputs
from fl_lightning.executors.compiler.dependence import Dependence, is_captured_for_stack
from fl_lightning.executors.compiler.graph import Place, StackedGraph
from fl_lightning.executors.compiler.host_draws import draw_of, host_draw, host_draws_noted
from fl_lightning.executors.compiler.kept import WatchedContainers, is_of_watched
from fl_lightning.executors.compiler.nested import inline_checkpoints
from fl_lightning.executors.compiler.nodes import inputs_of, nodes_of
from fl_lightning.executors.compiler.notes import WatchedMetrics, logging_to, note_log
from fl_lightning.executors.compiler.numbers import (
    CHANGING,
    check_sizes,
    expect_rates,
    input_of_steps,
    is_decided_by,
    numbers_as_tensors,
)
from fl_lightning.executors.compiler.reader import KeptValue, Reader
from fl_lightning.executors.compiler.selections import replace_selections
from fl_lightning.executors.compiler.told import Listeners
from fl_lightning.executors.compiler.unmapped import functions_for_capture
from fl_lightning.executors.stack.batches import StackedBatch, leaves_of

#: Options of Dynamo.
_OPTIONS: dict[str, Any] = {
    # It says what a step changes beside its tensors.
    "side_effect_replay_policy": "error",
    # `.item()` is captured.
    "capture_scalar_outputs": True,
    # Hooks of modules are guarded, too.
    "skip_nnmodule_hook_guards": False,
    # `nn.LSTM` is captured, and computed by cells.
    "allow_rnn": True,
    # It refuses numpy's draws; otherwise torch would draw in their place.
    "use_numpy_random_stream": True,
    "recompile_limit": 24,
}
#: How often a step may set the mode of a layer before its graph is that of the mode that it sets.
_ATTEMPTS = 3
#: What Dynamo calls a module, or its buffers.
_OF_MODULES = re.compile(
    r"L\['module'\](\.(_modules|__dict__\['_modules'\])\['\w+'\])*"
    r"(\._modules|\._buffers|\._parameters|\.__dict__\['_buffers'\]|\._non_persistent_buffers_set)?"
)

_function_numbers = count()


@dataclass(eq=False)
class Step:
    """A captured step.

    Attributes:
        source: The graph as it was captured.
        graph: The same graph, with the loss and the tensors to keep as its outputs.
        logged: What it logs and gives to metric objects, without tensors.
        kept: What each tensor to keep is.
        dependence: On what the step depends beside its tensors.
    """

    source: fx.Graph
    graph: StackedGraph
    logged: Logged
    kept: list[KeptValue]
    dependence: Dependence

    @property
    def kept_names(self) -> set[str]:
        """The names of attributes in which it keeps something for later."""
        return {call.metric.name for call in self.logged.metric_calls if isinstance(call.metric, Keeper)}

    def reads_what_is_kept_by(self, other: Step) -> str | None:
        """Return the name of an attribute that it reads, and in which another one keeps something; ``None`` for none.

        What both keep, it does not read: its own capture would have been refused.
        """
        names = sorted(other.kept_names - self.kept_names)
        return next(filter(self.dependence.mentions, names), None)

    def tensors(self, kept: Sequence[Tensor]) -> list[Tensor]:
        """Return what was kept, shape ``(K, ...)`` each, as it is logged: numbers have shape ``(K,)``."""
        found = []
        for tensor, kind in zip(kept, self.kept, strict=True):
            found.append(tensor.reshape(len(tensor)) if kind.is_number else tensor)
        return found


class _Call(NamedTuple):
    """A call of a captured graph, as the backend's function notes it."""

    graph: fx.GraphModule
    inputs: Sequence[Any]
    outputs: Sequence[Tensor]


class _Change(NamedTuple):
    """An attribute of a module that a step has set."""

    held: dict[str, Any]
    name: str
    old: Any
    new: Any


class CapturedStep:
    """Captures ``training_step``, for each kind of batch, and whenever what it depends on has changed.

    Args:
        stacked: Its loop.
        vector: The federated state of its module.
        ordered: Whether clients that train alone do so in the order of their slots, by which they count steps.

    Raises:
        CannotVectorize: If a metric object has hooks, or torch does not say what a step changes.
    """

    def __init__(self, stacked: StackedLoop, vector: StateVector, ordered: bool = True) -> None:
        if not all(hasattr(config, name) for name in _OPTIONS):
            raise CannotVectorize(f"torch {torch.__version__} does not say what a step changes other than its tensors")
        self._vector = vector
        self._ordered = ordered
        self._module = stacked.module
        self._trainer = WatchedTrainer(stacked.trainer)
        #: The precision in which Lightning runs a step.
        self.context_of_steps = stacked.trainer.precision_plugin.train_step_context
        self._hidden_counters = stacked.hidden_counters
        self._counting = stacked.counting
        self._metrics = WatchedMetrics(self._module)
        self._containers = WatchedContainers(self._module, self._metrics.known)
        #: All that steps may tell something.
        self.listeners = Listeners(self._module, stacked.trainer, self._metrics.known)
        self._changing = stacked.changing_in_clients
        self._takes_index = stacked.takes_index
        # Shorter batches have a function of their own, so that sizes stay constants in the graph of full batches.
        self._of_full_batches = self._compile(_captured_loss)
        self._of_short_batches = self._compile(_captured_loss)
        self._steps: dict[fx.GraphModule, Step] = {}
        self._called: _Call | None = None
        self._dependence = Dependence()
        #: Whether texts keep the numbers that they are made of.
        self._texts_keep_numbers = True
        #: Whether a float that has changed once is an input of the next graph.
        self._floats_are_inputs = True
        #: The optimizer steps so far that the step being captured reads.
        self._steps_so_far = 0
        #: The compiled hooks on gradients, by name.
        self._of_hooks: dict[str, Callable[..., Any]] = {}
        #: The hook that is being captured; ``None`` for a step.
        self._hook: str | None = None

    def _compile(self, captured: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function compiled.

        Dynamo keeps what it captures with a function's code, and only so many; by the code's file and name it remembers
        which sizes have changed. So each has a code of its own name.
        """
        given: Any = captured
        code = given.__code__.replace(co_name=f"step_{next(_function_numbers)}")
        function = FunctionType(code, given.__globals__)
        if self._changing():
            expect_rates(code)
        options: Any = {"guard_filter_fn": self._note_guards}
        compiled: Callable[..., Any] = torch.compile(function, backend=self._backend, fullgraph=True, options=options)
        return compiled

    def kept_names(self) -> set[str]:
        """Return the names of attributes in which steps keep something."""
        return {known.name for known in self._metrics.known if isinstance(known, Keeper)}

    def begin_stack(self) -> None:
        """Look which metric objects the module has."""
        self._metrics.find()

    def alone(self, batch: Any, batch_idx: int, steps_so_far: int) -> Any:
        """Run the step as it is on the module's own weights, and return its loss."""
        with self._counting(steps_so_far), self.context_of_steps(), torch.enable_grad():
            return _loss(self._module, batch, batch_idx, self._takes_index)

    def of_each(
        self, batch: StackedBatch, batch_idx: int, steps_so_far: Sequence[int], *, short: bool
    ) -> list[tuple[list[int], Step, list[Any]]]:
        """Return the captured steps for batches of a kind, each with the places of its clients and its inputs.

        There is one, unless Python decides by the optimizer steps so far, of which each client has its own number.

        Args:
            batch: The batches.
            batch_idx: Their index.
            steps_so_far: Of each client, the optimizer steps of all clients up to this one.
            short: Whether they are of other sizes than most.

        Raises:
            CannotVectorize: If it cannot be captured.
        """
        return _by_steps(lambda number: self(batch, batch_idx, number, short=short), steps_so_far)

    def of_hook(
        self, name: str, arguments: tuple[Any, ...], gradients: Sequence[Tensor | None], steps_so_far: Sequence[int]
    ) -> list[tuple[list[int], Step, list[Any]]]:
        """Return what a hook on gradients, or after a step, computes, captured as steps are; see :meth:`of_each`.

        Args:
            name: The hook.
            arguments: What it is given.
            gradients: The clients' gradients, shape ``(K, ...)`` each.
            steps_so_far: Of each client, the optimizer steps of all clients up to this one.

        Raises:
            CannotVectorize: If it cannot be captured.
        """
        if name not in self._of_hooks:
            self._of_hooks[name] = self._compile(_captured_hook)
        parameters = self._vector.parameters
        own = [None if gradient is None else gradient[0].clone() for gradient in gradients]
        places = {id(gradient): Place("gradients", number) for number, gradient in enumerate(own)}

        def capture(number: int) -> tuple[Step, list[Any]]:
            return self._captured(self._of_hooks[name], (name, arguments), number, places, hook=name)

        for parameter, gradient in zip(parameters, own, strict=True):
            parameter.grad = gradient
        try:
            return _by_steps(capture, steps_so_far)
        finally:
            for parameter in parameters:
                parameter.grad = None

    def __call__(
        self,
        batch: StackedBatch,
        batch_idx: int,
        steps_so_far: int = 0,
        *,
        short: bool = False,
        of_any_size: bool = False,
    ) -> tuple[Step, list[Any]]:
        """Return the captured step for batches of a kind, and its inputs: places of stacks, and what clients share.

        Args:
            batch: The batches.
            batch_idx: Their index.
            steps_so_far: The optimizer steps of all clients up to the first of these.
            short: Whether they are of other sizes than most.
            of_any_size: Whether one graph is to serve batches of other sizes, too, if it can.

        Raises:
            CannotVectorize: If it cannot be captured.
        """
        single = batch.rebuild([tensor[0] for tensor in batch.tensors])
        compiled = self._of_short_batches if short else self._of_full_batches
        of_batch = [leaf for leaf in leaves_of(single) if isinstance(leaf, Tensor)]
        if of_any_size:
            # Otherwise Dynamo would capture the first size alone, and find out from the second that sizes differ.
            for tensor in of_batch:
                if tensor.dim() and tensor.shape[0] == batch.size():
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        places = {id(tensor): Place("batch", number) for number, tensor in enumerate(of_batch)}
        return self._captured(compiled, (single, batch_idx, self._takes_index), steps_so_far, places)

    def _captured(
        self,
        compiled: Callable[..., Any],
        arguments: tuple[Any, ...],
        steps_so_far: int,
        further: dict[int, Place],
        hook: str | None = None,
    ) -> tuple[Step, list[Any]]:
        """Return what is captured of a step, or of a hook, and its inputs.

        Args:
            compiled: The compiled function.
            arguments: What it is given after the module.
            steps_so_far: What it reads as ``global_step``.
            further: The places of stacks of other tensors than the module's, by the tensors' identities.
            hook: The hook's name; ``None`` for a step.
        """
        self._called = None
        self._steps_so_far = steps_so_far
        self._hook = hook
        loss, new_buffers, kept = self._capture(compiled, arguments)
        called = self._called
        if called is None or not isinstance(loss, Tensor):
            raise CannotVectorize("`training_step` returns no loss that is computed from the batch and the weights")
        if called.graph not in self._steps:
            self._note_kept(called, kept)
            replace_selections(called.graph)
            place_of_loss, assigned = _assignments(called, loss, new_buffers, self._kept_outputs(kept))
            step = self.read(called.graph.graph, self._dependence, place_of_loss, assigned)
            self._check_kept_is_unread(step)
            self._steps[called.graph] = step
        places = self._places() | further
        inputs = [places.get(id(value), value) for value in called.inputs]
        return self._steps[called.graph], numbers_as_tensors(called.graph.graph, inputs)

    def _check_kept_is_unread(self, step: Step) -> None:
        """Raise ``CannotVectorize`` if a step or a hook reads what another one keeps for later."""
        for other in self._steps.values():
            name = step.reads_what_is_kept_by(other) or other.reads_what_is_kept_by(step)
            if name is not None:
                raise CannotVectorize(
                    f"a step or a hook sets `self.{name}`, and another one reads it, which in a stack does not yet "
                    "hold what clients keep"
                )

    def _places(self) -> dict[int, Place]:
        """Return the places of the stacks of the module's tensors, by the tensors' identities."""
        parameters = self._vector.parameters
        buffers = self._vector.tensors()[len(parameters) :]
        places: dict[int, Place] = {}
        for kind, tensors in (("parameters", parameters), ("buffers", buffers)):
            for number, tensor in enumerate(tensors):
                places[id(tensor)] = Place(kind, number)
        return places

    def read(
        self, source: fx.Graph, dependence: Dependence, loss: int = 0, assigned: dict[int, int] | None = None
    ) -> Step:
        """Return a captured graph as a step.

        Args:
            source: The graph.
            dependence: On what it depends.
            loss: The loss's place among its outputs.
            assigned: For outputs that become buffers, the buffers' places among its inputs.

        Raises:
            CannotVectorize: If it does with metric objects, logged values or gradients what a stack cannot do.
        """
        if dependence.refusal is not None:
            raise CannotVectorize(dependence.refusal)
        if dependence.counts_steps and not self._ordered:
            raise CannotVectorize(
                "`training_step` reads `global_step`, and clients of an asynchronous algorithm count steps in the "
                "order of their arrival"
            )
        check_sizes(source)
        with self._context():
            reader = Reader(source, self._metrics.known, loss, assigned or {}, self._hook or "training_step")
        graph = StackedGraph(source.owning_module, reader.graph, self.context_of_steps)
        return Step(source, graph, reader.logged, reader.kept, dependence)

    # ---- what Dynamo calls ----

    def _backend(self, module: fx.GraphModule, inputs: Any, **options: Any) -> Callable[..., tuple[Tensor, ...]]:
        """Return what Dynamo calls in the place of a graph: it notes the graph's inputs, and returns as many zeros."""
        outputs: Any = module.graph.output_node().args[0]
        source = fx.Graph()
        source.output(source.graph_copy(module.graph, {}))
        inline_checkpoints(module, source)
        # A parameter that the step has from the optimizer becomes an input as all others, and so does a draw.
        further: list[Any] = []
        for node in nodes_of(source):
            if node.op == "get_attr" and node.target in module._parameters:
                further.append(module._parameters[node.target])
            elif node.target is host_draw:
                further.append(Place("drawn", draw_of(node)))
                node.args = ()
            else:
                continue
            node.op = "placeholder"
            node.target = node.name
        # Whatever is added to the inputs later comes after the last one, and may be used from the beginning.
        begin = next(node for node in nodes_of(source) if node.op != "placeholder")
        for node in inputs_of(source):
            begin.prepend(node)
        graph = fx.GraphModule(module, source)

        def call(*given: Any) -> tuple[Tensor, ...]:
            zeros = tuple(torch.zeros(()) for _ in outputs)
            self._called = _Call(graph, (*given, *further), zeros)
            return zeros

        return call

    def _note_guards(self, guards: Sequence[GuardFilterEntry]) -> list[bool]:
        """Note on what the step that is being captured depends; all guards stay."""
        self._dependence = Dependence.of(guards, self._changing(), reads_gradients=self._hook in GRADIENT_HOOKS)
        return [True] * len(guards)

    # ---- the capture ----

    def _context(self) -> AbstractContextManager[None]:
        """Return the context of a step, with its precision; Lightning calls hooks outside of it."""
        return self.context_of_steps() if self._hook is None else nullcontext()

    def _note_kept(self, called: _Call, kept: Sequence[_Change]) -> None:
        """Add to a captured graph notes of the attributes that it has set.

        Raises:
            CannotVectorize: If it reads what they held before, which is of an earlier step.
        """
        graph = called.graph.graph
        outputs: Any = graph.output_node().args[0]
        nodes = dict(zip(map(id, called.inputs), inputs_of(graph), strict=True))
        nodes.update(zip(map(id, called.outputs), outputs, strict=True))
        parts = {id(vars(part)): part for part in self._module.modules()}
        for change in kept:
            is_read = any(id(leaf) in nodes for leaf in pytree.tree_leaves(change.old) if isinstance(leaf, Tensor))
            if is_read or self._dependence.mentions(change.name) or id(change.held) not in parts:
                raise CannotVectorize(changes([f"self.{change.name}"]))
            self._containers.note_assignment(graph, parts[id(change.held)], change.name, change.new, nodes)

    def _kept_outputs(self, kept: Sequence[_Change]) -> set[int]:
        """Return the identities of what stands for tensors that a captured step has kept."""
        found = {id(tensor) for tensor in self._containers.put}
        for change in kept:
            found.update(id(leaf) for leaf in pytree.tree_leaves(change.new))
        return found

    def _capture(
        self, compiled: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> tuple[Any, list[_Change], list[_Change]]:
        """Call a compiled step, which notes its graph and its inputs.

        Returns:
            The loss, the new buffers, and the attributes that the step has set, which are put back.

        Raises:
            CannotVectorize: If it cannot be captured, or changes something beside its tensors.
        """
        parts = list(self._module.modules())
        modes = [part.training for part in parts]
        # Buffers that a step assigns become outputs of its graph.
        dicts_of_buffers = {id(part._buffers) for part in parts}
        names = [(part._non_persistent_buffers_set, set(part._non_persistent_buffers_set)) for part in parts]
        in_other_modes: list[str] = []
        for _ in range(_ATTEMPTS):
            before = [(held, dict(held)) for part in parts for held in _dicts_of(part)]
            loss = self._call_checked(compiled, arguments)
            # To assign a buffer, torch registers it again.
            for held_names, own_names in names:
                held_names.clear()
                held_names.update(own_names)
            changed = _changes(before)
            others = [change for change in changed if change.name != "training"]
            if others:
                for held, own in before:
                    # A mode that it has set stays, for the next graph.
                    modes_set = {name: held[name] for name in ("training",) if name in own}
                    held.clear()
                    held.update(own | modes_set)
            graph = None if self._called is None else self._called.graph
            code = "" if graph is None else graph.code
            if len(others) == len(changed):
                is_new = graph is not None and graph not in self._steps
                if is_new and any(other != code for other in in_other_modes):
                    # The first client's first step would compute in the mode from before.
                    break
                new_buffers = [change for change in others if id(change.held) in dicts_of_buffers]
                kept = [change for change in others if id(change.held) not in dicts_of_buffers]
                return loss, new_buffers, kept
            # It has set the mode of a layer: the next graph is that of this mode.
            in_other_modes.append(code)
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
        raise CannotVectorize("`training_step` sets the mode of a layer that it has used, or another one each time")

    def _call_checked(self, compiled: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call a compiled step; it may change tensors, and attributes of modules."""
        try:
            return self._call(compiled, arguments, "error")
        except Exception as error:
            effects = effects_of(error)
            if not effects and self.listeners.has_kept_numbers:
                # Of the name of a logged value, say, Python needs to know the text.
                self._texts_keep_numbers = False
                return self._call_checked(compiled, arguments)
            if not effects and self._floats_are_inputs:
                # Some functions, such as dropout, take no symbol in a number's place.
                self._floats_are_inputs = False
                return self._call_checked(compiled, arguments)
            if self._containers.watch(effects):
                return self._call_checked(compiled, arguments)
            is_known = all(_OF_MODULES.fullmatch(effect) or is_of_watched(effect) for effect in effects)
            if not effects or not is_known:
                raise CannotVectorize(cause_of(error)) from error
        with errors_of_step():
            return self._call(compiled, arguments, "silent")

    def _call(self, compiled: Callable[..., Any], arguments: tuple[Any, ...], policy: str) -> Any:
        options = {**_OPTIONS, "side_effect_replay_policy": policy, "specialize_float": not self._floats_are_inputs}
        # Whole numbers in modules may change, as floats may.
        options["allow_unspec_int_on_nn_module"] = self._floats_are_inputs
        with (
            logging_to(self._module, note_log),
            self._metrics.noting(),
            self._containers.noting(),
            self.listeners.noting(keeps_numbers=self._texts_keep_numbers),
            functions_for_capture(),
            conditions_as_outputs(),
            host_draws_noted(),
            self._trainer.watched(self._steps_so_far),
            self._hidden_counters(),
            self._context(),
            torch.enable_grad(),
            config.patch(**options),
            torch.compiler.config.patch(dynamic_sources=CHANGING if self._floats_are_inputs else ""),  # type: ignore[attr-defined]
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            return compiled(self._module, *arguments)


def _loss(module: Any, batch: Any, batch_idx: int, takes_index: bool) -> Any:
    """Run ``training_step`` and return its loss."""
    output = module.training_step(batch, batch_idx) if takes_index else module.training_step(batch)
    return output["loss"] if isinstance(output, dict) else output


def _captured_loss(module: Any, batch: Any, batch_idx: int, takes_index: bool) -> Any:
    """The function that is compiled."""
    if not is_captured_for_stack():
        raise CannotVectorize(
            "PyTorch's Dynamo, which captures steps, is switched off (`TORCHDYNAMO_DISABLE`, `set_stance`)"
        )
    return _loss(module, batch, batch_idx, takes_index)


def _captured_hook(module: Any, name: str, arguments: tuple[Any, ...]) -> Tensor:
    """The function that is compiled of a hook on gradients; it returns a number in the place of a loss."""
    getattr(module, name)(*arguments)
    return torch.zeros(())


def _by_steps(
    capture: Callable[[int], tuple[Step, list[Any]]], steps_so_far: Sequence[int]
) -> list[tuple[list[int], Step, list[Any]]]:
    """Return what is captured for clients of unequal numbers of steps so far, each with the places of its clients.

    Args:
        capture: Captures it for a number of steps.
        steps_so_far: The numbers.
    """
    everybody = list(range(len(steps_so_far)))
    found: dict[Step, tuple[list[int], Step, list[Any]]] = {}
    for place, number in enumerate(steps_so_far):
        step, inputs = capture(number)
        if not step.dependence.counts_steps:
            return [(everybody, step, inputs)]
        of_steps = input_of_steps(step.source)
        if of_steps is not None:
            inputs[of_steps] = Place("steps_so_far", 0)
            if not is_decided_by(step.source, of_steps):
                return [(everybody, step, inputs)]
        members, _, _ = found.setdefault(step, ([], step, inputs))
        members.append(place)
    return list(found.values())


def _dicts_of(part: nn.Module) -> list[dict[str, Any]]:
    """Return what holds a module's attributes, buffers, parameters and submodules."""
    return [part.__dict__, part._buffers, part._parameters, part._modules]


def _changes(before: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[_Change]:
    """Return what was set since, given what holds attributes, and copies of it from before."""
    changed = []
    for held, own in before:
        for name in own.keys() | held.keys():
            old = own.get(name)
            new = held.get(name)
            if old is not new:
                changed.append(_Change(held, name, old, new))
    return changed


def _assignments(
    called: _Call, loss: Tensor, new_buffers: Sequence[_Change], kept: set[int]
) -> tuple[int, dict[int, int]]:
    """Return the loss's place among a call's outputs, and the places of inputs that take other outputs.

    Raises:
        CannotVectorize: If there are outputs that are neither the loss, new buffers nor kept in attributes.
    """
    inputs = {id(value): place for place, value in enumerate(called.inputs)}
    outputs = {id(value): place for place, value in enumerate(called.outputs)}
    place_of_loss = outputs.get(id(loss), 0)
    assigned: dict[int, int] = {}
    for change in new_buffers:
        # An output that is missing is the batch, say, or another buffer.
        assigned[outputs.get(id(change.new), -1)] = inputs.get(id(change.old), -1)
    others = [place for identity, place in outputs.items() if identity not in kept]
    are_known = {place_of_loss, *assigned} >= set(others)
    if not are_known or -1 in (*assigned, *assigned.values()):
        raise CannotVectorize("`training_step` changes the module, of which there is one for all clients")
    return place_of_loss, assigned
