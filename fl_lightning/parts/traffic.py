"""Counts of what a round sent, and of what happened to its clients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from fl_lightning.arguments import check_count, check_not_negative, plain

_PLAIN = (int, int, int), (int, int, float)


@dataclass(frozen=True)
class Payload:
    """The size of one message: how many numbers it holds, and with how many bits.

    Attributes:
        values: Numbers that are sent.
        bits_per_value: Bits of each number.
        extra_bits: Further bits: the positions of a sparse message, the scale of a quantised one.

    Raises:
        ValueError: If one of these is negative or no number, or a count is no whole number.
    """

    values: int = 0
    bits_per_value: float = 32
    extra_bits: int = 0

    def __post_init__(self) -> None:
        kinds = type(self.values), type(self.extra_bits), type(self.bits_per_value)
        if kinds in _PLAIN and self.values >= 0 and self.extra_bits >= 0 and 0 <= self.bits_per_value < math.inf:
            return  # nearly always, and for each client
        check_count("values", self.values, 0, "It is how many numbers are sent.")
        check_count("extra_bits", self.extra_bits, 0, "Round bits up.")
        check_not_negative("bits_per_value", self.bits_per_value)
        for name, value in vars(self).items():  # numbers of numpy would make checkpoints that cannot be read
            object.__setattr__(self, name, plain(value))

    @property
    def bits(self) -> int:
        """Bits of the whole message, rounded up."""
        return math.ceil(self.values * self.bits_per_value) + self.extra_bits

    def sparse(self, values: int, of: int) -> Payload:
        """Return the payload of ``values`` numbers out of ``of``, each sent with its position.

        Raises:
            ValueError: If ``values`` is no whole number from 0 to ``of``.
        """
        check_count("values", values, 0, "It is how many numbers are sent.")
        if values > of:
            raise ValueError(f"`values` must be at most `of`, {of}, got {values}: no more numbers can be sent.")
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
