"""The sum of updates in a finite field, as secure aggregation computes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.exchanges.privacy.disclosure import HINT, MORE, parts_that_send_more
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, Payload
from fl_lightning.seeding import Stream
from fl_lightning.settings import Positive, check_fields

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm

_Bits = Annotated[int, "[2, 32]"]


@dataclass(eq=False)
class SecureAggregation(Exchange):
    """Simulates the arithmetic of secure aggregation (Bonawitz et al. 2017). It protects nothing by itself.

    Each value is clipped to ``[-clip, clip]`` and rounded at random, with the right mean, to a multiple of ``clip /
    (2^(precision - 1) - 1)``; the whole numbers are added modulo ``2^bits``, and the sum is mapped back. The server
    sees only the sum. With more than ``2^(bits - precision)`` clients a sum may leave the field. It then wraps around,
    and ``fed/overflows`` counts it. ``fed/clipped_values`` counts clipped values. Masks and keys, whose traffic grows
    with the number of clients, are not simulated.

    Args:
        clip: Largest magnitude of a value.
        bits: Bits of a number in the field, 2 to 32; that is what a client sends for each value.
        precision: Bits to which a value is rounded, 2 to ``bits``; half of ``bits`` if ``None``, at least 2.

    Attributes:
        overflows: Values of all sums so far that left the field.
        clipped_values: Values of all updates so far that were clipped.

    Raises:
        ValueError: If an argument is out of its range, or other parts need single updates, or sums of another kind.
    """

    clip: Positive
    bits: _Bits = 32
    precision: _Bits | None = None

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        precision = max(2, self.bits // 2) if self.precision is None else self.precision
        if precision > self.bits:
            raise ValueError(f"`precision` must be at most `bits`, {self.bits}, got {self.precision}.")
        self._step = self.clip / (2 ** (int(precision) - 1) - 1)

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield which parts let the server act on something else than the sum over a round's clients."""
        schedule = algorithm.schedule
        if schedule.hides_clients or schedule.asynchronous or schedule.shows_client_models:
            yield f"`exchange` cannot have {self!r} with {schedule!r}: the server sees single models."
        for part in parts_that_send_more(algorithm):
            yield f"`exchange` cannot have {self!r} with {part!r}: the server may see {MORE}. {HINT}"

    @override
    def setup(self, federation: Federation) -> None:
        self.overflows: int
        self.add_state("overflows", 0)
        self.clipped_values: int
        self.add_state("clipped_values", 0)

    @override
    def on_round_start(self, round_index: int) -> None:
        self._sum: Tensor | None = None
        self._clipped = 0

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        """Add the client's rounded values; return the result unchanged: the server sees only the sum."""
        update = self.sent_update(result).double()
        is_clipped = update.abs() > self.clip
        self._clipped += int(is_clipped.sum())
        scaled: Tensor = update.clamp(-self.clip, self.clip) / self._step
        generator = self.generator(result.task, stream=Stream.SECURE_AGGREGATION)
        drawn = torch.rand(scaled.shape, generator=generator, dtype=torch.float64).to(scaled.device)
        whole = (scaled + drawn).floor().long()
        self._sum = whole if self._sum is None else self._sum + whole
        return replace(result, payload=Payload(len(update), self.bits))

    @override
    def payload_up(self, payload: Payload) -> Payload:
        return Payload(payload.values, self.bits)

    @override
    def on_sum(self, total: Tensor, count: float) -> tuple[Tensor, float]:
        """Return the sum that comes out of the field, float64 of shape ``(num_parameters,)``."""
        federation = self.federation
        mine = self._sum
        if mine is None:
            mine = torch.zeros(len(self.sent(total)), dtype=torch.int64, device=total.device)
        exact = federation.sum_over_ranks(mine)
        clipped = federation.sum_over_ranks(torch.tensor(self._clipped, device=total.device))
        field = 2**self.bits
        # The field's elements stand for the whole numbers from -field / 2 to field / 2 - 1.
        wrapped: Tensor = (exact + field // 2).remainder(field) - field // 2
        self.overflows += int((wrapped != exact).sum())
        self.clipped_values += int(clipped)
        self._sum = None
        self._clipped = 0
        seen = wrapped.to(total.dtype) * self._step
        return self.filled(seen, torch.zeros_like(total)), count

    @override
    def values(self) -> dict[str, float]:
        """Return how many values left the field, and how many were clipped."""
        return {"fed/overflows": self.overflows, "fed/clipped_values": self.clipped_values}
