"""Counts of what a round sent, and of what happened to its clients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Payload:
    """The size of one message: how many numbers it holds, and with how many bits.

    Attributes:
        values: Numbers that are sent.
        bits_per_value: Bits of each number.
        extra_bits: Further bits: the positions of a sparse message, the scale of a quantised one.
    """

    values: int = 0
    bits_per_value: float = 32
    extra_bits: int = 0

    @property
    def bits(self) -> int:
        """Bits of the whole message, rounded up."""
        return math.ceil(self.values * self.bits_per_value) + self.extra_bits

    def sparse(self, values: int, of: int) -> Payload:
        """Return the payload of ``values`` numbers out of ``of``, each sent with its position."""
        position = math.ceil(math.log2(of)) if of > 1 else 0
        return replace(self, values=values, extra_bits=self.extra_bits + values * position)

    def quantized(self, bits_per_value: float, extra_bits: int = 0) -> Payload:
        """Return the payload with fewer bits a number and, for example, the bits of a scale."""
        return replace(self, bits_per_value=bits_per_value, extra_bits=self.extra_bits + extra_bits)


@dataclass
class Traffic:
    """Everything that was sent since the fit began.

    Attributes:
        models_down: Models (vectors of the model's length) from the server to clients.
        models_up: Models from clients to the server.
        values_down: Numbers from the server to clients.
        values_up: Numbers from clients to the server.
        bits_down: Bits from the server to clients.
        bits_up: Bits from clients to the server.
    """

    models_down: int = 0
    models_up: int = 0
    values_down: int = 0
    values_up: int = 0
    bits_down: int = 0
    bits_up: int = 0

    def send_down(self, payload: Payload, times: int = 1) -> None:
        """Count a message that the server sends to ``times`` clients."""
        self.values_down += payload.values * times
        self.bits_down += payload.bits * times

    def send_up(self, payload: Payload, times: int = 1) -> None:
        """Count a message that ``times`` clients send to the server."""
        self.values_up += payload.values * times
        self.bits_up += payload.bits * times


@dataclass
class RoundReport:
    """What happened to a round's clients.

    Attributes:
        reported: Clients whose work the server used.
        dropped: Clients that received a model and did not report.
        left_out: Clients that handed back NaN or infinite values.
    """

    reported: list[int] = field(default_factory=list)
    dropped: int = 0
    left_out: list[int] = field(default_factory=list)
