"""Records what one ``training_step`` of several clients logs and gives to metrics, until Lightning receives it.

The line ``self.log("loss", loss)`` of a step of K clients is kept as::

    Entry(
        logged=Logged(calls=[LogCall("training_step", "loss", {}, value=0)]),     # 0: the first of the tensors
        tensors=[losses],                                                          # shape (K,)
        slots=[...],                                                               # which clients these are
        steps=[True, ...],                                                         # each has made an optimizer step
    )
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.errors import CannotVectorize


class BatchValue(NamedTuple):
    """Names what a metric object returns for one batch, which is known once it is given the batch.

    Attributes:
        call: The call's place among the step's calls of metric objects.
        key: Which of the values, for a collection of metrics.
    """

    call: int
    key: str | None


def logged_type() -> torch.dtype:
    """Return the type in which Lightning logs numbers: the default one, single precision at least."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def as_logged(values: Tensor) -> Tensor:
    """Return values in the type in which Lightning sums them."""
    return values if values.dtype in (torch.float32, torch.float64) else values.to(logged_type())


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
        reduction: str = self.options.get("reduce_fx", "mean")
        return reduction

    def logs_as(self, other: LogCall) -> bool:
        """Return whether another call has the same name and options; the batch size may be another one."""
        if self is other:
            return True
        if self.key != other.key or self._metric is not other._metric:
            return False
        return {**self.options, "batch_size": None} == {**other.options, "batch_size": None}

    @property
    def _metric(self) -> Metric | None:
        return self.value if isinstance(self.value, Metric) else None


@dataclass(frozen=True, eq=False)
class Keeper:
    """An attribute of a module in which a step keeps something for later, told client by client as metric objects are.

    Attributes:
        part: The module, or one in it.
        name: The attribute's name.
    """

    part: nn.Module
    name: str

    @property
    def value(self) -> Any:
        """What the attribute holds now; ``None`` if there is none."""
        return vars(self.part).get(self.name)

    def append(self, value: Any) -> None:
        """Append to the list that it holds."""
        self.value.append(value)

    def put(self, key: Any, value: Any) -> None:
        """Put something under a key of the dictionary that it holds."""
        self.value[key] = value

    def assign(self, value: Any) -> None:
        """Set it."""
        vars(self.part)[self.name] = value


class Text(NamedTuple):
    """A text that is made of values, such as an f-string.

    Attributes:
        form: The text, with fields in the places of values.
        args: The values of fields without names.
        kwargs: Those of fields with names.
    """

    form: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Listener:
    """Something outside of a step that the step tells what it computes, client by client as metric objects.

    Attributes:
        thing: The module, a logger, or the module of Python that has ``print``.
    """

    thing: Any

    def tell(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Call a method.

        Args:
            path: Its name, such as ``"print"`` or ``"experiment.add_scalar"``.
            args: Its arguments.
            kwargs: Its arguments by name.
        """
        method = self.thing
        for name in path.split("."):
            method = getattr(method, name)
        args, kwargs = with_texts((args, kwargs))
        method(*args, **kwargs)


def with_texts(arguments: Any) -> Any:
    """Return arguments with the texts that are made of values."""

    def made(value: Any) -> Any:
        if not isinstance(value, Text):
            return value
        args, kwargs = with_texts((value.args, value.kwargs))
        return value.form.format(*args, **kwargs)

    return pytree.tree_map(made, arguments, is_leaf=lambda value: isinstance(value, Text))


@dataclass
class MetricCall:
    """One call of a metric object, of an attribute that keeps something, or of something that is told.

    Attributes:
        metric: The object.
        method: ``"forward"``, ``"update"``, ``"compute"`` or ``"reset"``; of an attribute ``"append"``, ``"put"`` or
            ``"assign"``; otherwise ``"tell"``.
        leaves: Its arguments, flattened; in the place of a tensor its place among the step's tensors.
        spec: How the leaves make up the arguments.
        fx: The hook in which it was made.
    """

    metric: Metric | MetricCollection | Keeper | Listener
    method: str
    leaves: list[Any]
    spec: Any
    fx: str


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
    """The calls of ``self.log`` and of metric objects in one ``training_step``, without their tensors.

    Attributes:
        calls: Those of ``self.log``.
        metric_calls: Those of metric objects, and of what else is told.
        conditions: The places of what must be true among the step's tensors.
    """

    calls: list[LogCall] = field(default_factory=list)
    metric_calls: list[MetricCall] = field(default_factory=list)
    conditions: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Entry:
    """The values that some clients logged on one batch each.

    Attributes:
        logged: Their calls of `self.log` and of metric objects.
        tensors: Its tensors, shape ``(K, ...)`` each.
        slots: The clients' slots, in the order of the tensors' rows.
        steps: Whether an optimizer step ended with each client's batch.
        batch: The first client's batch, for its size, where all batches are of one size.
        sizes: Each client's batch size, where it is known.
        settings: The optimizer's settings at the step, where they change within a client.
    """

    logged: Logged
    tensors: Sequence[Tensor]
    slots: Sequence[int]
    steps: Sequence[bool]
    batch: Any = None
    sizes: Sequence[int] | None = None
    settings: list[dict[str, Any]] | None = None
    #: The values that metric objects returned, for each client's row and each call.
    returned: dict[tuple[int, int], Any] = field(default_factory=dict)
    #: The values of single steps that metric objects have when they are logged, for each row and place of ``self.log``.
    cached: dict[tuple[int, int], Any] = field(default_factory=dict)

    def of(self, places: Sequence[int]) -> Entry:
        """Return what the clients at some places logged."""
        tensors: list[Any] = []
        for tensor in self.tensors:
            own = [tensor[place] for place in places]
            # Batches of unequal sizes are a list.
            tensors.append(own if isinstance(tensor, list) else torch.stack(own))
        return Entry(
            self.logged,
            tensors,
            [self.slots[place] for place in places],
            [self.steps[place] for place in places],
            self.batch,
            None if self.sizes is None else [self.sizes[place] for place in places],
        )

    def with_hook(self, logged: Logged, tensors: Sequence[Tensor]) -> Entry:
        """Return the entry with what a hook has logged after the step.

        Args:
            logged: The hook's calls.
            tensors: Their tensors, shape ``(K, ...)`` each.
        """
        first = len(self.tensors)
        first_call = len(self.logged.metric_calls)
        calls = list(self.logged.calls)
        for call in logged.calls:
            value = call.value
            if isinstance(value, int):
                value += first
            elif isinstance(value, BatchValue):
                value = value._replace(call=value.call + first_call)
            weight = None if call.weight is None else call.weight + first
            calls.append(replace(call, value=value, weight=weight, metric_calls=call.metric_calls + first_call))
        metric_calls = list(self.logged.metric_calls)
        for metric_call in logged.metric_calls:
            leaves = list(metric_call.leaves)
            for place, leaf in enumerate(leaves):
                if isinstance(leaf, TensorPlace):
                    leaves[place] = replace(leaf, place=leaf.place + first)
            metric_calls.append(replace(metric_call, leaves=leaves))
        conditions = [*self.logged.conditions, *[place + first for place in logged.conditions]]
        return replace(self, logged=Logged(calls, metric_calls, conditions), tensors=[*self.tensors, *tensors])

    def batch_sizes(self) -> Sequence[int]:
        """Return each client's batch size."""
        if self.sizes is None:
            self.sizes = [extract_batch_size(self.batch)] * len(self.slots)
        return self.sizes

    def values(self, call: LogCall) -> Tensor:
        """Return what each client logged, shape ``(K,)``."""
        if isinstance(call.value, BatchValue):
            return torch.stack([self.value(call, row) for row in range(len(self.slots))])
        assert isinstance(call.value, int)
        return as_logged(self.tensors[call.value])

    def weights(self, call: LogCall) -> Sequence[float]:
        """Return how much each client's number counts in a mean."""
        if call.weight is not None:
            return self.tensors[call.weight].tolist()
        size = call.options.get("batch_size")
        return self.batch_sizes() if size is None else [size] * len(self.slots)

    def value(self, call: LogCall, row: int) -> Any:
        """Return what one client logged."""
        if not isinstance(call.value, BatchValue):
            return self.values(call)[row]
        number, key = call.value
        value = self.returned[row, number]
        if key is not None:
            if key not in value:
                raise CannotVectorize(
                    "a collection of metric objects returns values under other names than those of each"
                )
            value = value[key]
        if not isinstance(value, Tensor):
            value = torch.as_tensor(value, dtype=logged_type())
        return as_logged(value)
