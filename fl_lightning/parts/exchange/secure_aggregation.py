"""The sum of updates in a finite field, as secure aggregation computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fl_lightning.arguments import check_count, check_positive
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.traffic import Payload
from fl_lightning.seeding import Stream, torch_generator


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

    Raises:
        ValueError: If an argument is out of its range, or other parts need single updates, or sums of another kind.
    """

    sums_updates = True

    def __init__(self, clip: float, bits: int = 32, precision: int | None = None) -> None:
        check_positive("clip", clip)
        check_count("bits", bits, 2)
        if bits > 32:
            raise ValueError(f"`bits` must be at most 32, got {bits}. Protocols in use have fields of 16 to 32 bits.")
        chosen = max(2, bits // 2) if precision is None else precision
        check_count("precision", chosen, 2)
        if chosen > bits:
            raise ValueError(f"`precision` must be at most `bits`, {bits}, got {precision}. Values would not fit.")
        self.clip, self.bits, self.precision = clip, int(bits), precision
        self._step = clip / (2 ** (int(chosen) - 1) - 1)
        self._sum: Tensor | None = None
        self._clipped, self._counted = 0, (0, 0)
        self.overflows = 0
        """Values of all sums so far that left the field."""
        self.clipped_values = 0
        """Values of all updates so far that were clipped."""

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if the server acts on something else than the sum over a round's clients."""
        schedule = parts["schedule"]
        if not schedule.merges_each_round or schedule.shows_client_models:
            raise ValueError(
                "SecureAggregation adds up what the clients of a round send, but with the schedule "
                f"{type(schedule).__name__} the server sees single models. "
                'Use a synchronous algorithm with `evaluate="server"`.'
            )
        if parts["objective"].vectors_sent > 1 or parts["objective"].starts_from_server:
            raise ValueError(
                f"With {type(parts['objective']).__name__} vectors of single clients reach the server beside the sum. "
                "Use FedAvg, FedProx or an adaptive server."
            )

    def on_fit_start(self, federation: Federation) -> None:
        """Start with nothing added."""
        self._sum = None
        self.overflows = self.clipped_values = self._clipped = 0

    def on_round_start(self, round_index: int) -> None:
        """Start a round's sum."""
        self._sum, self._clipped, self._counted = None, 0, (0, 0)

    def on_round_end(self) -> None:
        """Count what left the field, and what was clipped."""
        super().on_round_end()
        self.overflows, self.clipped_values = self.overflows + self._counted[0], self.clipped_values + self._counted[1]
        self._counted = 0, 0

    def on_round_abort(self) -> None:
        """Forget the round's sum."""
        super().on_round_abort()
        self._sum, self._clipped, self._counted = None, 0, (0, 0)

    def upload(self, result: ClientResult) -> ClientResult:
        """Add the client's rounded values; return the result unchanged: the server sees only the sum."""
        update = self.sent_update(result).double()
        self._clipped += int((update.abs() > self.clip).sum())
        scaled = update.clamp(-self.clip, self.clip) / self._step
        seed, task = self.federation.seed, result.task
        generator = torch_generator(seed, Stream.SECURE_AGGREGATION, *task.seeds)
        drawn = torch.rand(scaled.shape, generator=generator, dtype=torch.float64).to(scaled.device)
        whole = (scaled + drawn).floor().long()
        self._sum = whole if self._sum is None else self._sum + whole
        return replace(result, payload=Payload(len(update), self.bits))

    def payload_up(self, payload: Payload) -> Payload:
        """Return what a client sends whose result is left out."""
        return Payload(payload.values, self.bits)

    def summed(self, total: Tensor, count: float) -> tuple[Tensor, float]:
        """Return the sum that comes out of the field, float64 of shape ``(num_parameters,)``."""
        places, federation = self.sent_places(), self.federation
        number = len(total) if places is None else len(places)
        mine = torch.zeros(number, dtype=torch.int64, device=total.device) if self._sum is None else self._sum
        exact = federation.sum_over_ranks(mine)
        clipped = federation.sum_over_ranks(torch.tensor(self._clipped, device=total.device))
        field = 2**self.bits
        wrapped = (exact + field // 2).remainder(field) - field // 2
        self._counted = int((wrapped != exact).sum()), int(clipped)
        self._sum, self._clipped = None, 0
        seen = wrapped.to(total.dtype) * self._step
        return (seen if places is None else torch.zeros_like(total).index_copy(0, places, seen)), count

    def values(self) -> dict[str, float]:
        """Return how many values left the field, and how many were clipped."""
        return {"fed/overflows": self.overflows, "fed/clipped_values": self.clipped_values}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"overflows": self.overflows, "clipped": self.clipped_values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the counts of a checkpoint."""
        self.overflows, self.clipped_values = state["overflows"], state["clipped"]
