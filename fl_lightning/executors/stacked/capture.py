"""One client's ``training_step``, captured by ``torch.compile``, which also guards what it depends on."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, fx, nn
from torch._dynamo import config
from torch.utils import _pytree as pytree
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.errors import CannotVectorize, describe_error
from fl_lightning._lightning.stacks.recording import BatchValue, LogCall, Logged, MetricCall, TensorPlace, logged_type
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop, TrainerView
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.stacked.batching import StackedBatch, leaves_of
from fl_lightning.executors.stacked.graph import Place, StackedGraph

Guards = frozenset[tuple[str, str]]

_CACHED = ".__wrapped__"  # of `functools.lru_cache`, in the names of guards
_ARGUMENTS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph", "sync_dist")
_REDUCTIONS = ("mean", "sum", "max", "min")
#: Options of Dynamo: say what a step changes beside its tensors; capture `.item()`; look at hooks of modules, too.
_OPTIONS: dict[str, Any] = {
    "side_effect_replay_policy": "error",
    "capture_scalar_outputs": True,
    "skip_nnmodule_hook_guards": False,
    "specialize_float": True,  # what a fit captures must not depend on what others had before in the process
    "recompile_limit": 24,
}

_numbers = count()  # of functions

seen: list[Any] = []
"""The values that a step has logged that ran as it is, not as a graph."""


# ---- in the module's place: what a step logs and gives to metric objects becomes nodes of its graph ----


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _logged(name: str, value: Any, options: dict[str, Any], of_metric: bool) -> None:
    if not of_metric:
        seen.append(value)


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _metric_call(metric: int, method: str, *args: Any, **kwargs: Any) -> Tensor:
    return torch.zeros(())


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _part(value: Tensor, key: str) -> Tensor:
    return torch.zeros(())


#: The functions that stand for what a step logs and gives to metric objects; whether they log.
notes_of = {_logged: True, _metric_call: False, _part: False}


def _log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
    options = dict(zip(_ARGUMENTS, args, strict=False))
    options.update(kwargs)
    reduction = options.get("reduce_fx", "mean")
    if not isinstance(reduction, str):
        known = (torch.mean, torch.sum, torch.max, torch.min)
        found = [text for text, function in zip(_REDUCTIONS, known, strict=True) if reduction is function]
        options["reduce_fx"] = found[0] if found else ""
    if isinstance(value, MetricStub):
        _logged(name, value.number, options, True)
    else:
        _logged(name, value, options, False)


class MetricStub(nn.Module):
    """Stands for a metric object, or a collection of them: what it is given becomes a node of the graph.

    Args:
        metric: The object.
        known: The objects that have stubs, to which this one is added.
    """

    def __new__(cls, metric: Metric | MetricCollection, known: Any) -> MetricStub:
        """Return an object that is also an instance of the metric's class, for which a step may look."""
        kind: Any = type(metric)
        return object.__new__(_stub_of(kind))

    def __init__(self, metric: Metric | MetricCollection, known: list[Metric | MetricCollection]) -> None:
        nn.Module.__init__(self)
        if metric._forward_hooks or metric._forward_pre_hooks:
            raise CannotVectorize("a metric object has forward hooks, which a stack would call once for all clients")
        self.number, self.parts = len(known), {}
        known.append(metric)
        if isinstance(metric, MetricCollection):
            self.parts = {
                str(key): MetricStub(own, known) for key, own in metric.items(keep_base=False, copy_state=False)
            }

    def __hash__(self) -> int:
        """Return a number of its own: modules are looked for in sets."""
        return self.number

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Give it a batch; return what stands for the batch's value, which may be logged."""
        value = _metric_call(self.number, "forward", *args, **kwargs)
        return {key: _part(value, key) for key in self.parts} if self.parts else value

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Give it a batch."""
        _metric_call(self.number, "update", *args, **kwargs)

    def items(self, *args: Any, **kwargs: Any) -> Any:
        """Return the stubs of a collection by name."""
        return self.parts.items()

    def __getattr__(self, name: str) -> Any:
        torch._dynamo.graph_break(msg=f"`training_step` reads `{name}` of a metric object")
        raise AttributeError(name)


@cache
def _stub_of(kind: type) -> type[MetricStub]:
    # what a collection is asked for is not there, but for what `log_dict` looks at
    hidden = dict.fromkeys(("keys", "values", "__len__", "__iter__", "__getitem__", "__contains__"))
    members = {**hidden, "_enable_compute_groups": True} if issubclass(kind, MetricCollection) else {}
    return type(kind.__name__, (MetricStub, kind), members)


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
    guards: Guards = frozenset()

    def depends_on(self, *names: str) -> bool:
        """Whether it depends on something with one of these words in its name."""
        return any(name in guard for guard, _ in self.guards for name in names)

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
            raise CannotVectorize(f"torch {torch.__version__} does not say what a step changes beside its tensors")
        self._vector, self._trainer, self._module = vector, stacked.trainer, stacked.module
        self._context, self._hidden = stacked.trainer.precision_plugin.train_step_context, stacked.hidden_counters
        self._metrics: list[Metric | MetricCollection] = []
        self._stubs: list[tuple[nn.Module, str, Any, MetricStub]] = []
        step = _step_with_index if stacked.takes_index else _step
        # a function of its own for each fit: Dynamo keeps what it captures with a function's code, and only so many
        # for shorter batches another one, so that sizes stay constants in the graph of full batches
        # by file and name of the code it remembers which sizes have changed
        self._step, *functions = (
            FunctionType(step.__code__.replace(co_name=f"step_{next(_numbers)}"), step.__globals__) for _ in range(3)
        )
        options: Any = {"guard_filter_fn": self._note_guards}
        self._compiled = [  # `torch.compile` takes entries out of its options
            torch.compile(own, backend=self._backend, fullgraph=True, options={**options}) for own in functions
        ]
        self._steps: dict[fx.GraphModule, Step] = {}
        self._called: tuple[fx.GraphModule, Sequence[Any], Sequence[Tensor]] | None = None
        self._guards: Guards = frozenset()

    def begin_stack(self) -> None:
        """Look which metric objects the module has."""
        found = [
            (parent, name, child)
            for parent in self._module.modules()
            if not isinstance(parent, (Metric, MetricCollection))
            for name, child in parent._modules.items()
            if isinstance(child, (Metric, MetricCollection))
        ]
        if [tuple(map(id, each[:3])) for each in self._stubs] != [tuple(map(id, each)) for each in found]:
            self._stubs = [(*each, MetricStub(each[2], self._metrics)) for each in found]

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
        self._guards = frozenset(map(_seen_by, guards))
        return [True] * len(guards)

    @contextmanager
    def stubs(self) -> Iterator[None]:
        """Let the module see no trainer, log and metric object but what stands for them."""
        parts = [part for part in self._module.modules() if isinstance(part, pl.LightningModule)]
        held = [
            (part.__dict__, {k: part.__dict__.get(k) for k in ("_trainer", "log", "_current_fx_name")})
            for part in parts
        ]
        view = TrainerView(self._trainer)
        for attributes, _ in held:
            attributes.update(_trainer=view, log=_log, _current_fx_name="training_step")
        for parent, name, _, stub in self._stubs:
            parent._modules[name] = stub
        seen.clear()
        try:
            with self._context(), self._hidden(), torch.enable_grad():
                yield
        finally:
            for attributes, before in held:
                attributes.update(before)
                if attributes["log"] is None:
                    del attributes["log"]
            for parent, name, metric, _ in self._stubs:
                parent._modules[name] = metric

    def alone(self, batch: Any, batch_idx: int) -> tuple[Any, list[Any]]:
        """Run the step as it is on the module's own weights; return the loss, and what it logs."""
        with self.stubs():
            loss = self._step(self._module, batch, batch_idx)
        return loss, list(seen)

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
                effects = _EFFECTS.search(str(error))
                names = [] if effects is None else ast.literal_eval(effects[1])
                if not names or not all(map(_OF_MODULES.fullmatch, names)):
                    raise CannotVectorize(cause_of(error)) from error
                loss = self._call(compiled, batch, batch_idx, "silent")  # it writes into modules alone: see below
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
                raise CannotVectorize(_changes([f"self.{name}" for name in sorted(others)]))
            if all(name != "training" for _, name, _, _ in changed):
                return loss, [(old, new) for _, _, old, new in changed]
        for part, mode in modes:
            part.training = mode
        raise CannotVectorize("`training_step` sets another mode of a layer each time")

    def _call(self, compiled: Any, batch: Any, batch_idx: int, policy: str) -> Any:
        options = {**_OPTIONS, "side_effect_replay_policy": policy}
        with self.stubs(), config.patch(**options), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compiled(self._module, batch, batch_idx)

    def read(self, source: fx.Graph, guards: Guards, loss: int = 0, assigned: dict[int, int] | None = None) -> Step:
        """Return a captured graph as a step.

        Args:
            source: The graph.
            guards: On what it depends.
            loss: The loss's place among its outputs.
            assigned: For outputs that become buffers, the buffers' places among its inputs.

        Raises:
            CannotVectorize: If it does with metric objects, logged values or gradients what a stack cannot do.
        """
        names = {name for name, _ in guards}
        if any(name.endswith(".grad") and "CLOSURE_MATCH" not in kind for name, kind in guards):  # no `torch.func.grad`
            raise CannotVectorize("`training_step` reads gradients (`p.grad`), which a stack takes after it")
        if any(name.endswith(".state.default_factory") for name in names):  # a dictionary of this kind
            raise CannotVectorize("`training_step` reads the optimizer's state, of which a stack has another")
        caches = sorted(_readable(name[: -len(_CACHED)]) for name in names if name.endswith(_CACHED))
        caches = [name for name in caches if not name.startswith("torch.")]
        if caches:  # Dynamo passes over the cache
            raise CannotVectorize(f"`training_step` calls `{caches[0]}`, whose results are kept in a cache")
        reader = _Reader(source, self._metrics, loss, assigned or {})
        return Step(source, StackedGraph(source.owning_module, reader.graph), reader.logged, reader.kept, guards)


class _Reader:
    """Takes what a step logs and gives to metric objects out of its graph, and makes their tensors outputs.

    Args:
        source: The graph.
        metrics: The metric objects, in the order of their stubs' numbers.
        loss: The loss's place among the outputs.
        assigned: For outputs that become buffers, the buffers' places among the inputs.
    """

    def __init__(
        self, source: fx.Graph, metrics: Sequence[Metric | MetricCollection], loss: int, assigned: dict[int, int]
    ) -> None:
        self.graph, self.logged, self.kept = fx.Graph(), Logged(), list[tuple[bool, bool]]()
        self._metrics = metrics
        outputs: Any = self.graph.graph_copy(source, {})
        self._values: dict[Any, BatchValue] = {}
        self._outputs: list[fx.Node] = []
        notes = [node for node in self.graph.nodes if node.target in notes_of]
        for node in notes:
            with self.graph.inserting_before(node):
                self._log(*node.args) if node.target is _logged else self._call(node)
        for node in reversed(notes):
            self.graph.erase_node(node)
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        for output, buffer in assigned.items():
            self.graph.call_method("copy_", (inputs[buffer], outputs[output]))
        self.graph.output((outputs[loss], *self._outputs))

    def _call(self, node: fx.Node) -> None:
        if any(user.target not in (_part, _logged) for user in node.users):
            raise CannotVectorize(
                "`training_step` uses what a metric object returns, which has one state for all clients"
            )
        if node.target is _part:
            value, key = node.args
            self._values[node] = self._values[value]._replace(key=key)  # type: ignore[index, arg-type]
            return
        metric, method, *args = node.args
        leaves, spec = pytree.tree_flatten((args, dict(node.kwargs)))
        leaves = [TensorPlace(self._keep(a), _kind_of_number(a)) if isinstance(a, fx.Node) else a for a in leaves]
        self._values[node] = BatchValue(len(self.logged.metric_calls), None)
        self.logged.metric_calls.append(MetricCall(self._metrics[metric], method, leaves, spec))  # type: ignore[index, arg-type]

    def _log(self, name: str, value: Any, options: Any, of_metric: bool) -> None:
        options = dict(options)
        if options.get("reduce_fx", "mean") not in _REDUCTIONS or options.get("enable_graph"):
            raise CannotVectorize(f"`self.log({name!r}, ...)` has a `reduce_fx` of its own or keeps the graph")
        if of_metric:
            value = self._metrics[value]
        else:
            value = self._values[value] if value in self._values else self._keep(value, one=True)
        size = options.get("batch_size")
        weight = self._keep(options.pop("batch_size"), one=True) if isinstance(size, fx.Node) else None
        self.logged.calls.append(LogCall("training_step", name, options, value, weight, len(self.logged.metric_calls)))

    def _keep(self, value: Any, *, one: bool = False) -> int:
        """Make a node's tensor an output as it is now, and return its place."""
        is_number = not isinstance(value, fx.Node) or _kind_of_number(value) is not None
        dtype = logged_type() if is_number and one else None
        self._outputs.append(self.graph.call_function(_kept, (value, dtype)))
        self.kept.append((one, isinstance(value, fx.Node) and value.meta.get("of_samples", False)))
        return len(self.kept) - 1


def _step_with_index(module: Any, batch: Any, batch_idx: int) -> Any:
    output = module.training_step(batch, batch_idx)
    return output["loss"] if isinstance(output, dict) else output


def _step(module: Any, batch: Any, batch_idx: int) -> Any:
    output = module.training_step(batch)
    return output["loss"] if isinstance(output, dict) else output


def _kept(value: Any, dtype: torch.dtype | None) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.scalar_tensor(value, dtype=dtype)
    found: Tensor = value.detach() if dtype is None else value.detach().to(dtype)
    return found.clone()  # weights and batches change


def _kind_of_number(value: Any) -> type | None:
    """Return the type of the number that a node stands for; ``None`` for a tensor."""
    found = value.meta.get("example_value") if isinstance(value, fx.Node) else None
    if found is None or isinstance(found, Tensor):
        return None
    return float if isinstance(found, (float, torch.SymFloat)) else int


def cause_of(error: Exception) -> str:
    """Return why a step cannot be captured or stacked, in one line, with the user's file and line."""
    text = str(error)
    message = re.search(r"Message: (.*)", text)
    explained = re.search(r"Explanation: (.*)", text)
    words = explained[1].strip().rstrip(".") if explained else describe_error(error)
    cause = message[1] if message else f"a step cannot be stacked: {words}"
    if (effects := _EFFECTS.search(text)) is not None:
        cause = _changes(sorted(map(_readable, ast.literal_eval(effects[1]))))
    cause = next((known for phrase, known in _CAUSES.items() if phrase in text), cause)
    lines = (
        re.findall(r'File "([^"]+)", line (\d+)', text.split("from user code:")[-1])
        if "from user code:" in text
        else []
    )
    mine = [(file, line) for file, line in lines if file != __file__ and not file.startswith("<")]
    return f"{cause} ({Path(mine[-1][0]).name}, line {mine[-1][1]})" if mine else cause


_DECIDES = (
    "Python decides by a tensor's value (`if`, `while`, `assert`), and each client has its own; use `torch.where`"
)
_SELECTS = "a selection's size depends on values, and each client has its own; weigh all samples instead"
_NUMBERS = "Python computes with a tensor's value (`.item()`, `float`), and each client has its own; keep it a tensor"
#: By what PyTorch says; the first one that is found.
_CAUSES = {
    "data-dependent branching": _DECIDES,
    "(Size-like symbols: u": _SELECTS,
    "Could not guard on data-dependent expression": _DECIDES,
    "Could not extract specialized integer": _DECIDES,
    "dynamic shape": _SELECTS,
    "calling .item() on a Tensor": _NUMBERS,
    "expected (<class 'numpy.integer'>": _NUMBERS,
    "Missing `as_proxy()`": "`training_step` gives PyTorch an object that is no tensor, such as a random generator",
    "trace_autograd_ops": "`training_step` takes gradients itself (`torch.autograd.grad`)",
    "cannot register a hook on a tensor": "`training_step` registers a hook on a tensor",
    "accessing `data` under vmap": "`training_step` writes to a parameter's `.data`",
    "Dynamo does not support RNN": "`nn.LSTM`, `nn.GRU` and `nn.RNN` compute one model at a time",
}


def _changes(names: Sequence[str]) -> str:
    held = ", ".join(f"`{name}`" for name in names)
    return f"`training_step` changes {held}, of which there is one for all clients"


def _seen_by(guard: Any) -> tuple[str, str]:
    """Return what a guard looks at, and what of it: of a dictionary, say, whether it has a certain key."""
    options = getattr(guard.orig_guard.create_fn, "keywords", {}) if guard.guard_type != "TENSOR_MATCH" else ""
    return re.sub(r"(__builtins_dict__)_\d+", r"\1", guard.name), f"{guard.guard_type} {options}"  # counted by graphs


def _attributes(part: nn.Module) -> list[dict[str, Any]]:
    """Return what holds a module's attributes, buffers, parameters and submodules."""
    return [part.__dict__, part._buffers, part._parameters, part._modules]


def _readable(source: str) -> str:
    """Return the name that a user gives to what Dynamo names so."""
    name = re.sub(r"G\['([^']+)'\]", r"\1", source.replace("L['module']", "self"))
    name = re.sub(r"__import_(\w+)", lambda found: found[1].replace("_dot_", "."), name)
    return re.sub(r"\._modules\['(\w+)'\]", r".\1", name)


_EFFECTS = re.compile(r"side effects happened.*double check: (\[.*\])")
#: What Dynamo calls a module, or its buffers.
_OF_MODULES = re.compile(r"L\['module'\](\.(_modules|__dict__\['_modules'\])\['\w+'\])*(\._buffers|\._modules)?")
