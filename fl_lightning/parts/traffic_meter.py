"""Counts what an algorithm sends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.objectives import LocalObjective
from fl_lightning.parts.sampling import ClientSampler
from fl_lightning.parts.traffic import Payload, Traffic


class TrafficMeter:
    """Knows how large messages are.

    Args:
        federation: The run.
        exchange: What travels.
        objective: Says how many vectors of the model's length travel each way for a client (those beside the model are
            not compressed), and whether the client sends its loss.
        sampler: Says whether the client sends its importance.

    Attributes:
        sampler: The present sampler.
        scored: Clients that have received the model since the last count to tell their importance before they are
            drawn, without training.
        payload: The message with all parameters that travel, uncompressed.
        payload_up: The message that a client sends.
    """

    def __init__(
        self, federation: Federation, exchange: Exchange, objective: LocalObjective, sampler: ClientSampler
    ) -> None:
        self._exchange, self._objective, self.sampler, self.scored = exchange, objective, sampler, 0
        self._federation = federation
        self.payload = self._sent(range(len(federation.lengths)))
        self.payload_up = exchange.payload_up(self.payload)

    def _sent(self, places: Iterable[int]) -> Payload:
        """Return the message of those of the model's tensors that travel."""
        names = self._federation.names
        return self._federation.payload(p for p in places if not names or self._exchange.travels(names[p]))

    def count(self, traffic: Traffic, sent: int, uploads: Sequence[Payload], buffers: Sequence[int]) -> None:
        """Count the models that went to so many clients, what came back from each, and the scores since the last count.

        Args:
            traffic: To be increased.
            sent: Clients that received a model.
            uploads: The message of each client that reported.
            buffers: Places, among the model's tensors, of the buffers that change.
        """
        changing, number = self._sent(buffers), Payload(1, self._federation.payload([0]).bits_per_value)
        vectors = self._objective.vectors_sent
        traffic.models_down += vectors * sent + self.scored
        traffic.models_up += vectors * len(uploads)
        traffic.send_down(self._exchange.payload_down(self.payload), sent + self.scored)
        traffic.send_down(self.payload, (vectors - 1) * sent)
        traffic.send_down(changing, sent + self.scored)
        for payload in uploads:
            traffic.send_up(payload)
        traffic.send_up(self.payload, (vectors - 1) * len(uploads))
        traffic.send_up(changing, len(uploads))
        numbers = int(self.sampler.needs_scores) + int(self._objective.sends_loss)  # beside the vectors
        traffic.send_up(number, numbers * len(uploads) + self.scored)
        self.scored = 0
