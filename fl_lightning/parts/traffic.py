"""What a round did, and what was sent."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Traffic:
    """What was sent since the fit began.

    Attributes:
        models_down: Models (vectors of the model's length) from the server to clients.
        models_up: Models from clients to the server.
        values_down: Single numbers from the server to clients, in whole.
        values_up: Single numbers from clients to the server, in whole.
    """

    models_down: int = 0
    models_up: int = 0
    values_down: int = 0
    values_up: int = 0


@dataclass
class RoundReport:
    """What became of a round's clients.

    Attributes:
        reported: Clients whose work the server used.
        dropped: Clients that received a model and did not report.
        left_out: Clients that handed back NaN or infinite values.
    """

    reported: list[int] = field(default_factory=list)
    dropped: int = 0
    left_out: list[int] = field(default_factory=list)
