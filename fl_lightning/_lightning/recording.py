"""Records what one ``training_step`` of several clients logs and gives to metrics, until Lightning receives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.stand_ins import register_stand_in

_REDUCTIONS = {"mean": "mean", torch.mean: "mean", "sum": "sum", torch.sum: "sum"}
_REDUCTIONS |= {"max": "max", torch.max: "max", "min": "min", torch.min: "min"}
_ARGUMENTS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph", "sync_dist")
_METHODS = ("forward", "update", "compute", "reset")
_COUNTERS = ("_update_count", "_forward_cache", "_computed")


class BatchValue(NamedTuple):
    """Names what a metric object returns for one batch, which is known once it is given the batch.

    Attributes:
        call: The call's place among the step's calls of metric objects.
        key: Which of the values, for a collection of metrics.
    """

    call: int
    key: str | None


class Unusable:
    """Stands for a value that is not known: it may be handed around, and any use raises ``CannotVectorize``."""

    __slots__ = ("__weakref__",)
    use = ""
    """The error's message."""

    def _use(self, *args: Any, **kwargs: Any) -> Any:
        raise CannotVectorize(self.use)

    __getattr__ = __bool__ = __index__ = __int__ = __float__ = __complex__ = __round__ = __array__ = _use
    __str__ = __repr__ = __format__ = __hash__ = __reduce_ex__ = _use
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _use
    __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = _use
    __neg__ = __pos__ = __abs__ = __invert__ = _use
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _use
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _use
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _use


class Returned(Unusable):
    """Stands for what a metric object returns for one batch: it may be logged.

    Args:
        place: Names the value.
    """

    __slots__ = ("place",)
    use = "`training_step` uses what a metric object returns, which has one state for all clients"

    def __init__(self, place: BatchValue) -> None:
        self.place = place
        register_stand_in(self, lambda value: float("nan"))


class Held(Unusable):
    """Stands for what a metric object holds: it is known once the clients have been trained."""

    __slots__ = ()
    use = "`training_step` reads the state of a metric object, which has one for all clients"

    def __deepcopy__(self, memo: Any) -> Held:
        return self


def logged_type() -> torch.dtype:
    """Return the type in which Lightning logs numbers: the default one, single precision at least."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def as_logged(values: Tensor) -> Tensor:
    """Return values in the type in which Lightning sums them."""
    return values if values.dtype in (torch.float32, torch.float64) else values.to(logged_type())


def kind_of_number(value: Any) -> type | None:
    """Return the type of the number that ``item()`` returned and ``value`` stands for; ``None`` for a tensor."""
    kind = None if isinstance(value, Tensor) else getattr(value, "kind", None)
    return kind if isinstance(kind, type) else None


@dataclass
class LogCall:
    """One call of ``self.log``.

    Attributes:
        fx: The hook in which it was made.
        name: The name.
        options: Its other arguments.
        value: A tensor's place among the step's tensors, or a metric object, or what one returned.
        weight: The place of ``batch_size``, where that is a tensor.
        metric_calls: How many calls of metric objects the step had made before.
    """

    fx: str | None
    name: str
    options: dict[str, Any]
    value: int | Metric | BatchValue
    weight: int | None = None
    metric_calls: int = 0

    @property
    def key(self) -> str:
        """The name under which Lightning keeps the value."""
        return f"{self.fx}.{self.name}"

    @property
    def reduction(self) -> str:
        """How values of several batches become one: ``"mean"``, ``"sum"``, ``"max"`` or ``"min"``."""
        return _REDUCTIONS[self.options.get("reduce_fx", "mean")]

    def logs_as(self, other: LogCall) -> bool:
        """Return whether another call of the name has the same options; the batch size may be another one."""
        if self is other:  # as all calls of a program's steps
            return True
        objects = [call.value if isinstance(call.value, Metric) else None for call in (self, other)]
        options = [{**call.options, "batch_size": None} for call in (self, other)]
        return objects[0] is objects[1] and options[0] == options[1]


@dataclass
class MetricCall:
    """One call of a metric object.

    Attributes:
        metric: The object.
        method: ``"forward"`` or ``"update"``.
        leaves: Its arguments, flattened; in the place of a tensor its place among the step's tensors.
        spec: How the leaves make up the arguments.
    """

    metric: Metric | MetricCollection
    method: str
    leaves: list[Any]
    spec: Any


@dataclass(frozen=True)
class TensorPlace:
    """A tensor's place among a step's tensors.

    Attributes:
        place: The place.
        number: The type of a number that ``tensor.item()`` returned; ``None`` for a tensor.
    """

    place: int
    number: type | None = None


@dataclass
class Logged:
    """What one ``training_step`` logged and gave to metric objects; its tensors apart."""

    calls: list[LogCall] = field(default_factory=list)
    metric_calls: list[MetricCall] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    def clear(self) -> None:
        """Forget everything."""
        self.calls.clear()
        self.metric_calls.clear()
        self.tensors.clear()

    def keep(self, tensor: Tensor) -> int:
        """Keep a tensor without its graph, and return its place."""
        self.tensors.append(tensor.detach())
        return len(self.tensors) - 1


class Recorder:
    """Stands in for ``self.log`` and for the methods of metric objects while several clients step at once.

    Args:
        module: The module.
    """

    def __init__(self, module: pl.LightningModule) -> None:
        self._module = module
        self._logged = Logged()
        self.find_metrics()

    def find_metrics(self) -> None:
        """Look which metric objects the module has."""
        self._replaced: list[tuple[dict[str, Any], dict[str, Any]]] = [(self._module.__dict__, {"log": self._log})]
        for metric in self._module.modules():
            if isinstance(metric, (Metric, MetricCollection)):
                own: dict[str, Any] = {name: partial(self._call, metric, name) for name in _METHODS}
                if isinstance(metric, Metric):
                    own |= {"_defaults": {}, **dict.fromkeys([*metric._defaults, *_COUNTERS], Held())}
                self._replaced.append((metric.__dict__, own))

    @contextmanager
    def __call__(self) -> Iterator[Logged]:
        """Collect what ``training_step`` logs."""
        self._logged = Logged()
        replaced = self._replaced
        before = [{name: attributes[name] for name in own if name in attributes} for attributes, own in replaced]
        for attributes, own in replaced:
            attributes.update(own)
        try:
            yield self._logged
        finally:
            self._logged = Logged()
            for (attributes, own), values in zip(replaced, before, strict=True):
                for name in own.keys() - values.keys():
                    attributes.pop(name, None)
                attributes.update(values)

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        options = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        if options.get("reduce_fx", "mean") not in _REDUCTIONS or options.get("enable_graph"):
            raise CannotVectorize(f"`self.log({name!r}, ...)` has a `reduce_fx` of its own or keeps the graph")
        if isinstance(value, Returned):
            value = value.place
        elif not isinstance(value, Metric):
            # a stand-in for a tensor, as of a fused step, is none by its type
            if not hasattr(value, "detach"):
                tensor = torch.tensor(float(value), dtype=logged_type(), device=self._module.device)
            elif kind_of_number(value):
                tensor = value.detach().to(logged_type())
            else:
                tensor = value.detach()
            value = self._logged.keep(tensor.reshape(()))
        weight = None
        if hasattr(options.get("batch_size"), "detach"):
            weight = self._logged.keep(options.pop("batch_size").detach().reshape(()))
        before = len(self._logged.metric_calls)
        self._logged.calls.append(LogCall(self._module._current_fx_name, name, options, value, weight, before))

    def _call(self, metric: Metric | MetricCollection, method: str, *args: Any, **kwargs: Any) -> Any:
        if method not in ("forward", "update"):
            raise CannotVectorize(f"`training_step` calls `{method}` of a metric object, which has one state")
        if method == "forward" and (metric._forward_hooks or metric._forward_pre_hooks):
            raise CannotVectorize("a metric object has forward hooks, which a stack would call once for all clients")
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [self._place(leaf) if hasattr(leaf, "detach") else leaf for leaf in leaves]
        self._logged.metric_calls.append(MetricCall(metric, method, places, spec))
        if method == "update":
            return None
        call = len(self._logged.metric_calls) - 1
        if isinstance(metric, MetricCollection):
            return {str(key): Returned(BatchValue(call, str(key))) for key in metric.keys(keep_base=False)}
        return Returned(BatchValue(call, None))

    def _place(self, leaf: Any) -> TensorPlace:
        """Keep a tensor as it is now, or a number that stands for each client's."""
        number = kind_of_number(leaf)
        leaf = leaf.detach().clone() if type(leaf) is Tensor else leaf  # a traced step changes none in place
        return TensorPlace(self._logged.keep(leaf), number)
