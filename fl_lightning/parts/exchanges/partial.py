"""Clients that hold a part of the model: the leading entries of some dimensions of its tensors.

For a client that holds two of the four units between two linear layers of three inputs and one output::

    layer     shape      shrinking dimensions      what the client holds
    first     (4, 3)     Span(0, units=4)          the first 2 rows
    second    (1, 4)     Span(1, units=4)          the first 2 columns

All else is 0 with the client and stays 0, so that the model computes what the small one would. Nothing of it travels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.exchanges.compression import Compressor
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.part import walk
from fl_lightning.parts.schedules.base import Schedule
from fl_lightning.settings import Count, check_fields

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


class Span(NamedTuple):
    """A dimension of a tensor of which a client holds the leading entries.

    Attributes:
        dim: The dimension.
        units: Hidden units, or ranks, that it has.
        block: Neighbouring entries that belong to each of them.
    """

    dim: int
    units: int
    block: int = 1


class PartialModel(Exchange, ABC):
    """The base of exchanges with which clients hold a part of the model.

    It must be held by the objective, which keeps the other values at 0, and by the aggregation.
    """

    @property
    @abstractmethod
    def levels(self) -> Sequence[float]:
        """The sizes of clients' models, which clients have in turn."""

    @abstractmethod
    def find_spans(self, federation: Federation) -> Mapping[str, Sequence[Span]]:
        """Return the dimensions that shrink, by the tensors' names in the model."""

    @abstractmethod
    def num_held(self, level: float, units: int) -> int:
        """Return how many of so many units a client of a size holds."""

    def level(self, task: Task) -> float:
        """Return the size of the model of a task's client."""
        return self.largest_level(task.client)

    def largest_level(self, client: int) -> float:
        """Return the largest size of a client's model."""
        return self.levels[client % len(self.levels)]

    @override
    def setup(self, federation: Federation) -> None:
        """Find what clients of each size hold."""
        if len(self.levels) > federation.num_clients:
            raise ValueError(
                f"{self!r} must have at most as many sizes as there are clients, {federation.num_clients}, got "
                f"{len(self.levels)}: client k has the k-th one, from the first one again after the last."
            )
        spans = self.find_spans(federation)
        #: What a client of each size holds, booleans of shape ``(size,)``; ``None`` for all.
        self.masks: dict[float, Tensor | None] = {}
        for level in set(self.levels):
            mask = torch.ones(federation.layout.size, dtype=torch.bool, device=federation.model.device)
            tensors = federation.tensors(mask)
            for name, of_tensor in spans.items():
                for span in of_tensor:
                    kept = self.num_held(level, span.units) * span.block
                    tensors[name].narrow(span.dim, kept, tensors[name].shape[span.dim] - kept).fill_(False)
            self.masks[level] = None if mask.all() else mask

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield which other parts would not leave clients their part of the model."""
        for name, part in (("objective", algorithm.objective), ("aggregation", algorithm.aggregation)):
            if self not in walk(part):
                yield (
                    f"`{name}` cannot be {part!r} with {self!r}, of which it knows nothing. Give an objective and an "
                    "aggregation that hold it, such as HeldGradients(partial) and HolderMean(partial)."
                )
        schedule = algorithm.schedule
        if not trains_once(schedule):
            yield (
                f"The schedule cannot be {schedule!r} with {self!r}: clients must start from what they receive of the "
                "server's model, and train it once. Give Synchronous() or Asynchronous(...)."
            )
        for member in algorithm.chain.members:
            if isinstance(member, PartialModel) and member is not self:
                yield f"`exchange` cannot have both {self!r} and {member!r}. Leave out one of them."
            if not isinstance(member, Compressor):
                continue
            compresses_whole = member.link == "down" or member.of == "model" or member.alone
            members = algorithm.chain.members
            if compresses_whole or members.index(member) < members.index(self):
                yield (
                    f"`exchange` cannot have {member!r} with {self!r}: it compresses whole models. Compress updates on "
                    "the way up by TopK, RandomK, QSGD or SignSGD, after it in the list."
                )
            elif member.error_feedback and self.is_drawn:
                yield f"{member!r} owes values that a client may not hold next time. Give it `error_feedback=False`."
        if not self.is_drawn:
            return
        if algorithm.optimizers.state == "kept":
            yield f'`optimizer_state` must be "fresh" with {self!r}, whose clients hold other values in each round.'
        if schedule.has_virtual_time:
            yield f"The schedule cannot be {schedule!r} with {self!r}: a client's time would depend on what it holds."

    @property
    def is_drawn(self) -> bool:
        """Whether a client holds other values in each round."""
        return False

    @override
    def held(self, task: Task) -> Tensor | None:
        return self.masks[self.level(task)]

    def held_parameters(self, task: Task) -> Tensor | None:
        """Return which parameters a client holds, booleans of shape ``(num_parameters,)``; ``None`` for all."""
        held = self.held(task)
        if held is None:
            return None
        parameters, _ = self.federation.layout.split(held)
        return parameters

    @override
    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the part that the client holds, and 0 elsewhere."""
        return self._part(self.held(task), model)

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result as it is.

        Raises:
            ValueError: If training moved values that the client does not hold.
        """
        held = self.held_parameters(result.task)
        if held is not None and result.parameters[~held].any():
            raise ValueError(
                f"Training moved values that client {result.client} does not hold. Give an optimizer that leaves "
                "a parameter as it is whose value and gradients are 0, as SGD and Adam do."
            )
        return result

    @property
    @override
    def changes_updates(self) -> bool:
        return False

    @property
    @override
    def has_personal(self) -> bool:
        """Whether clients are evaluated with their part of the model: where it is the same in all rounds."""
        return not self.is_drawn

    @override
    def model_of(self, client: int, model: Tensor) -> Tensor:
        """Return the part of the model that the client can hold."""
        if self.is_drawn:
            return model
        return self._part(self.masks[self.largest_level(client)], model)

    @staticmethod
    def _part(held: Tensor | None, model: Tensor) -> Tensor:
        """Return a model with 0 where it is not held."""
        return model if held is None else model.where(held, 0)


def trains_once(schedule: Schedule) -> bool:
    """Return whether each client trains the server's model, from what it receives of it, and no other one."""
    own = type(schedule)
    is_plain = (
        own.further_models is Schedule.further_models
        and own.correction is Schedule.correction
        and own.start is Schedule.start
    )
    return is_plain and not schedule.hides_clients


def pairs_of(federation: Federation, *, need_both: bool = False) -> list[tuple[str, str]]:
    """Return the names of A and B of the adapters whose product the server knows: both are trained and travel.

    Args:
        federation: The run.
        need_both: Whether the products are merged.

    Raises:
        ValueError: If the products are merged, and of an adapter only one factor travels.
    """
    trained = federation.layout.trained
    traveling = trained if federation.traveling is None else federation.traveling
    pairs: list[tuple[str, str]] = []
    for a in trained:
        b = a.replace("lora_A", "lora_B")
        if "lora_A" not in a.split(".") or b not in trained:
            continue
        sent = [factor for factor in (a, b) if factor in traveling]
        if len(sent) == 2:
            pairs.append((a, b))
        elif sent and need_both:
            raise ValueError(
                "The products B A are merged, of which the server must know both factors, but of "
                f"{a} and {b} only {sent[0]} travels. Let both travel or none, or take the means of A and B, by "
                '`mode="average"` of FedLoRA.'
            )
    return pairs


def check_not_empty(name: str, levels: Sequence[float]) -> None:
    """Raise ``ValueError`` if clients have no sizes."""
    if not levels:
        raise ValueError(f"`{name}` must have at least one number, got none.")


@dataclass(eq=False)
class AdapterRanks(PartialModel):
    """Clients have adapters of their own ranks: leading rows of A and columns of B (Cho et al. 2024, HetLoRA).

    Adapters are ``lora_A`` and ``lora_B``, as peft names them; they have the largest rank. Their scale ``alpha / rank``
    is that of the largest rank for all clients.

    Args:
        ranks: Ranks, each at least 1; client k has the k-th, from the first one again after the last.

    Raises:
        ValueError: If a rank is less than 1; when the fit begins, if it is larger than that of the adapters, or if
            there are none.
    """

    ranks: Sequence[Count]

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        check_not_empty("ranks", self.ranks)

    @property
    @override
    def levels(self) -> Sequence[float]:
        return self.ranks

    @override
    def num_held(self, level: float, units: int) -> int:
        return min(int(level), units)

    @override
    def find_spans(self, federation: Federation) -> Mapping[str, Sequence[Span]]:
        """Return the rows of A and the columns of B."""
        spans: dict[str, Sequence[Span]] = {}
        for name, shape in zip(federation.names, federation.shapes, strict=True):
            if "lora_A" in name.split("."):
                spans[name] = [Span(0, shape[0])]
            elif "lora_B" in name.split("."):
                spans[name] = [Span(1, shape[1])]
        most = max((units for of_tensor in spans.values() for _, units, _ in of_tensor), default=0)
        if max(self.ranks) > most:
            raise ValueError(
                f"`ranks` must be at most {most}, the rank of the module's adapters, got {list(self.ranks)}. Add "
                "adapters of the largest rank, by `add_lora(module, rank=...)`."
            )
        return spans
