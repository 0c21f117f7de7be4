"""One client's ``training_step``, captured by ``torch.compile``, which also guards what it depends on."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo import config

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import Logged
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop
from fl_lightning._lightning.stacks.watching import WatchedTrainer
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.compiler.causes import EFFECTS, cause_of, changes, errors_of_step, readable
from fl_lightning.executors.compiler.dependence import Dependence
from fl_lightning.executors.compiler.graph import Place, StackedGraph
from fl_lightning.executors.compiler.notes import (
    WatchedMetrics,
    logging_to,
    note_log,
)
from fl_lightning.executors.compiler.reader import Reader
from fl_lightning.executors.stack.batches import StackedBatch, leaves_of

_CACHED = ".__wrapped__"  # of `functools.lru_cache`, in the names of guards
#: Options of Dynamo: say what a step changes beside its tensors; capture `.item()`; look at hooks of modules, too.
_OPTIONS: dict[str, Any] = {
    "side_effect_replay_policy": "error",
    "capture_scalar_outputs": True,
    "skip_nnmodule_hook_guards": False,
    "specialize_float": True,  # what a fit captures must not depend on what others had before in the process
    "use_numpy_random_stream": True,  # which refuses numpy's draws; otherwise torch would draw in their place
    "recompile_limit": 24,
}

_numbers = count()  # of functions

# ---- a captured step ----


@dataclass(eq=False)
class Step:
    """A captured step.

    Attributes:
        source: The graph as it was captured.
        graph: The same graph, with the loss and the tensors to keep as its outputs.
        logged: What it logs and gives to metric objects, without tensors.
        kept: For each tensor to keep: whether it is one number, and whether it has a row for each sample, as is known
            of weighted steps.
        guards: On what the step depends beside its tensors: what it is called, and what of it.
    """

    source: fx.Graph
    graph: StackedGraph
    logged: Logged
    kept: list[tuple[bool, bool]]
    guards: Dependence

    def tensors(self, kept: Sequence[Tensor]) -> list[Tensor]:
        """Return what was kept, as it is logged."""
        return [t.reshape(len(t)) if one else t for t, (one, _) in zip(kept, self.kept, strict=True)]


class CapturedStep:
    """Captures ``training_step``, for each kind of batch, and whenever what it depends on has changed.

    Args:
        stacked: Its loop.
        vector: The federated state of its module.

    Raises:
        CannotVectorize: If a metric object has hooks, or torch does not say what a step changes.
    """

    def __init__(self, stacked: StackedLoop, vector: StateVector) -> None:
        missing = [name for name in _OPTIONS if not hasattr(config, name)]
        if missing:
            raise CannotVectorize(f"torch {torch.__version__} does not say what a step changes other than its tensors")
        self._vector, self._module = vector, stacked.module
        self._trainer = WatchedTrainer(stacked.trainer)
        self._context, self._hidden = stacked.trainer.precision_plugin.train_step_context, stacked.hidden_counters
        self._metrics = WatchedMetrics(self._module)
        self._changing = stacked.changing_in_clients
        self._takes_index = stacked.takes_index
        step = _step_with_index if self._takes_index else _step
        # a function of its own for each fit: Dynamo keeps what it captures with a function's code, and only so many
        # for shorter batches another one, so that sizes stay constants in the graph of full batches
        # by file and name of the code it remembers which sizes have changed
        functions = [
            FunctionType(step.__code__.replace(co_name=f"step_{next(_numbers)}"), step.__globals__) for _ in range(2)
        ]
        options: Any = {"guard_filter_fn": self._note_guards}
        self._compiled = [  # `torch.compile` takes entries out of its options
            torch.compile(own, backend=self._backend, fullgraph=True, options={**options}) for own in functions
        ]
        self._steps: dict[fx.GraphModule, Step] = {}
        self._called: tuple[fx.GraphModule, Sequence[Any], Sequence[Tensor]] | None = None
        self._guards = Dependence()

    def begin_stack(self) -> None:
        """Look which metric objects the module has."""
        self._metrics.find()

    def _backend(self, graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        outputs: Any = graph.graph.output_node().args[0]
        source = fx.Graph()
        source.output(source.graph_copy(graph.graph, {}))
        found = [node for node in source.nodes if node.op == "get_attr" and node.target in graph._parameters]
        held = [graph._parameters[node.target] for node in found]  # type: ignore[index]
        for node in found:  # a parameter that the step has from the optimizer: an input as all others
            node.op, node.target = "placeholder", node.name
        own = fx.GraphModule(graph, source)

        def call(*given: Any) -> tuple[Tensor, ...]:
            self._called = own, (*given, *held), tuple(torch.zeros(()) for _ in outputs)
            return self._called[2]

        return call

    def _note_guards(self, guards: Any) -> list[bool]:
        self._guards = Dependence.of(guards, self._changing())
        return [True] * len(guards)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Let the module note what it logs and gives to metric objects, and see no counters."""
        with (
            logging_to(self._module, note_log),
            self._metrics.noting(),
            self._trainer.watched(),
            self._hidden(),
            self._context(),
            torch.enable_grad(),
        ):
            yield

    def alone(self, batch: Any, batch_idx: int) -> Any:
        """Run the step as it is on the module's own weights, and return its loss."""
        with self._context(), torch.enable_grad():
            arguments = (batch, batch_idx) if self._takes_index else (batch,)
            output = self._module.training_step(*arguments)
        return output["loss"] if isinstance(output, dict) else output

    def __call__(self, batch: StackedBatch, batch_idx: int, *, short: bool = False) -> tuple[Step, list[Any]]:
        """Return the captured step for batches of a kind, and its inputs: places of stacks, and what clients share.

        Args:
            batch: The batches.
            batch_idx: Their index.
            short: Whether they are of other sizes than most.

        Raises:
            CannotVectorize: If it cannot be captured.
        """
        single = batch.rebuild([tensor[0] for tensor in batch.tensors])
        number = len(self._vector.parameters)
        own = self._vector.tensors()
        places = {id(tensor): Place("parameters", place) for place, tensor in enumerate(own[:number])}
        places |= {id(tensor): Place("buffers", place) for place, tensor in enumerate(own[number:])}
        tensors = [leaf for leaf in leaves_of(single) if isinstance(leaf, Tensor)]
        places |= {id(tensor): Place("batch", place) for place, tensor in enumerate(tensors)}
        self._called = None
        loss, assigned = self._capture(self._compiled[short], single, batch_idx)
        if self._called is None or not isinstance(loss, Tensor):
            raise CannotVectorize("`training_step` returns no loss that is computed from the batch and the weights")
        module, given, outputs = self._called
        if module not in self._steps:
            inputs_by_id = {id(value): number for number, value in enumerate(given)}
            numbers = {id(value): number for number, value in enumerate(outputs)}
            pairs = {numbers[id(new)]: inputs_by_id.get(id(old), -1) for old, new in assigned}
            if {numbers.get(id(loss), 0), *pairs} != set(range(len(outputs))) or -1 in pairs.values():
                raise CannotVectorize("`training_step` changes the module, of which there is one for all clients")
            self._steps[module] = self.read(module.graph, self._guards, numbers.get(id(loss), 0), pairs)
        inputs = [places.get(id(value), value) if isinstance(value, Tensor) else value for value in given]
        return self._steps[module], inputs

    def _capture(self, compiled: Any, batch: Any, batch_idx: int) -> tuple[Any, list[tuple[Any, Any]]]:
        """Call a compiled step, which notes its graph and its inputs; return the loss, and old and new buffers.

        Raises:
            CannotVectorize: If it cannot be captured, or changes something beside its tensors.
        """
        modes = [(part, part.training) for part in self._module.modules()]
        for _ in range(3):
            before = [(held, dict(held)) for part in self._module.modules() for held in _attributes(part)]
            try:
                loss = self._call(compiled, batch, batch_idx, "error")
            except Exception as error:
                effects = EFFECTS.search(str(error))
                names = [] if effects is None else ast.literal_eval(effects[1])
                if not names or not all(map(_OF_MODULES.fullmatch, names)):
                    raise CannotVectorize(cause_of(error)) from error
                # It writes into modules alone, which is looked at below.
                with errors_of_step():
                    loss = self._call(compiled, batch, batch_idx, "silent")
            # what it writes into the module itself is there already, but for buffers, or a mode that it sets
            changed = [
                (held, name, own.get(name), held.get(name))
                for held, own in before
                for name in own.keys() | held.keys()
                if own.get(name) is not held.get(name)
            ]
            if any(name != "training" for _, name, _, _ in changed):
                for held, own in before:
                    held.clear()
                    held.update(own)
            buffers = [id(part._buffers) for part in self._module.modules()]
            others = {name for held, name, _, _ in changed if id(held) not in buffers and name != "training"}
            if others:
                raise CannotVectorize(changes([f"self.{name}" for name in sorted(others)]))
            if all(name != "training" for _, name, _, _ in changed):
                return loss, [(old, new) for _, _, old, new in changed]
        for part, mode in modes:
            part.training = mode
        raise CannotVectorize("`training_step` sets another mode of a layer each time")

    def _call(self, compiled: Any, batch: Any, batch_idx: int, policy: str) -> Any:
        options = {**_OPTIONS, "side_effect_replay_policy": policy}
        with self._noting(), config.patch(**options), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = compiled(self._module, batch, batch_idx)
        return loss

    def read(self, source: fx.Graph, guards: Dependence, loss: int = 0, assigned: dict[int, int] | None = None) -> Step:
        """Return a captured graph as a step.

        Args:
            source: The graph.
            guards: On what it depends.
            loss: The loss's place among its outputs.
            assigned: For outputs that become buffers, the buffers' places among its inputs.

        Raises:
            CannotVectorize: If it does with metric objects, logged values or gradients what a stack cannot do.
        """
        if guards.refusal is not None:
            raise CannotVectorize(guards.refusal)
        names = {name for name, _ in guards.guards}
        if any(
            name.endswith(".grad") and "CLOSURE_MATCH" not in kind for name, kind in guards.guards
        ):  # no `torch.func.grad`
            raise CannotVectorize("`training_step` reads gradients (`p.grad`), which a stack takes after it")
        if any(name.endswith(".state.default_factory") for name in names):  # a dictionary of this kind
            raise CannotVectorize("`training_step` reads the optimizer's state, of which a stack has another")
        caches = sorted(readable(name[: -len(_CACHED)]) for name in names if name.endswith(_CACHED))
        caches = [name for name in caches if not name.startswith("torch.")]
        if caches:  # Dynamo passes over the cache
            raise CannotVectorize(f"`training_step` calls `{caches[0]}`, whose results are kept in a cache")
        reader = Reader(source, self._metrics.known, loss, assigned or {})
        return Step(source, StackedGraph(source.owning_module, reader.graph), reader.logged, reader.kept, guards)


def _step_with_index(module: Any, batch: Any, batch_idx: int) -> Any:
    if not _is_captured():
        raise CannotVectorize(_SWITCHED_OFF)
    output = module.training_step(batch, batch_idx)
    return output["loss"] if isinstance(output, dict) else output


def _step(module: Any, batch: Any, batch_idx: int) -> Any:
    if not _is_captured():
        raise CannotVectorize(_SWITCHED_OFF)
    output = module.training_step(batch)
    return output["loss"] if isinstance(output, dict) else output


#: By a name of its own, so that guards tell it from a question of the user's step.
_is_captured = torch.compiler.is_dynamo_compiling
_SWITCHED_OFF = "PyTorch's Dynamo, which captures steps, is switched off (`TORCHDYNAMO_DISABLE`, `set_stance`)"


def _attributes(part: nn.Module) -> list[dict[str, Any]]:
    """Return what holds a module's attributes, buffers, parameters and submodules."""
    return [part.__dict__, part._buffers, part._parameters, part._modules]


#: What Dynamo calls a module, or its buffers.
_OF_MODULES = re.compile(r"L\['module'\](\.(_modules|__dict__\['_modules'\])\['\w+'\])*(\._buffers|\._modules)?")
