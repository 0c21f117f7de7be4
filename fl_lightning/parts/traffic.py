"""The books of a fit: what every message weighs, and what was sent in all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.kept import States
from fl_lightning.parts.messages import Payload, RoundReport, Task, Traffic

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


class Books(States):
    """Counts the messages of a fit.

    Args:
        algorithm: The algorithm, whose exchanges have begun the fit.
        federation: The run.
        travels: Returns whether the named parameter or buffer is sent at all.

    Attributes:
        payload: The message with all parameters that travel, uncompressed.
        traffic: Everything that was sent since the fit began.
    """

    def __init__(self, algorithm: Algorithm, federation: Federation, travels: Callable[[str], bool]) -> None:
        self._algorithm = algorithm
        self.federation = federation
        self._travels = travels
        self.payload = self._message(range(federation.layout.num_trained))
        self.traffic: Traffic
        self.add_state("traffic", Traffic())

    def _message(self, places: Iterable[int], task: Task | None = None) -> Payload:
        """Return the message of those of the model's tensors that travel, as far as a task's client holds them."""
        layout = self.federation.layout
        held = None if task is None else self._algorithm.chain.held(task)
        return layout.payload((place for place in places if self._travels(layout.names[place])), held)

    def parameters_payload(self, task: Task) -> Payload:
        """Return the message with all parameters that travel to or from a task's client, uncompressed."""
        if self._algorithm.chain.held(task) is None:
            return self.payload
        return self._message(range(self.federation.layout.num_trained), task)

    def left_out_payload(self, task: Task) -> Payload:
        """Return the message of a task's client whose result is left out."""
        return self._algorithm.chain.payload_up(self.parameters_payload(task))

    def message_bits(self) -> list[tuple[int, int]]:
        """Return, for each client, the bits of a message to it and of its answer, with all buffers that travel.

        Which buffers training changes, and so :meth:`count` counts, is known only when clients have trained.

        Raises:
            ValueError: If the messages of later rounds may have other sizes.
        """
        for member in self._algorithm.chain.members:
            if member.varies_sizes:
                raise ValueError(
                    f"`bandwidth` and `shared_links` need messages of one size, but those of {member!r} change from "
                    "round to round. Give a clock without them."
                )
        layout = self.federation.layout
        further_vectors = self._algorithm.objective.vectors_sent - 1
        found: list[tuple[int, int]] = []
        for client, size in enumerate(self.federation.sizes.tolist()):
            task = Task(client, client, size)
            buffers = self._message(range(layout.num_trained, len(layout.names)), task)
            besides = buffers.bits + further_vectors * self.payload.bits
            down = self._algorithm.chain.payload_down(self.parameters_payload(task), task)
            found.append((down.bits + besides, self.left_out_payload(task).bits + besides))
        return found

    def count(self, report: RoundReport, changing: Iterable[str]) -> None:
        """Add the messages of a round.

        Args:
            report: What happened to its clients, on all processes.
            changing: Names of the buffers that training changes, which travel with the model.
        """
        traffic = self.traffic
        exchange = self._algorithm.chain
        objective = self._algorithm.objective
        schedule = self._algorithm.schedule
        sampler = self._algorithm.sampler
        names = list(self.federation.layout.names)
        places = sorted(names.index(name) for name in changing)
        buffers = self._message(places)

        # Each client of the round gets a model, unless it was scored with it before the draw. So does each client that
        # was scored, and the schedule may send further models.
        further_models = schedule.further_models(report.num_sent)
        models = len(report.receivers) + further_models
        reported = len(report.uploads)
        for task in report.receivers:
            traffic.send_down(exchange.payload_down(self.parameters_payload(task), task))
            traffic.send_down(self._message(places, task))
        traffic.send_down(exchange.payload_down(self.payload), further_models)
        traffic.send_down(buffers, further_models)
        for task, upload in report.uploads:
            traffic.send_up(upload)
            traffic.send_up(self._message(places, task))

        # Some objectives send further vectors of the model's length, such as control variates, uncompressed.
        further_vectors = objective.vectors_sent - 1
        traffic.send_down(self.payload, further_vectors * report.num_sent)
        traffic.send_up(self.payload, further_vectors * reported)
        # Without values each client trains alone, and no models travel.
        if self.payload.values:
            traffic.models_down += models + further_vectors * report.num_sent
            traffic.models_up += objective.vectors_sent * reported

        # Between the server and edges whole models travel.
        edge_models_down, edge_models_up = schedule.edge_models
        whole_model = self.payload.bits + buffers.bits
        traffic.edge_models_down += edge_models_down
        traffic.edge_models_up += edge_models_up
        traffic.edge_bits_down += edge_models_down * whole_model
        traffic.edge_bits_up += edge_models_up * whole_model

        # Single numbers: scores, losses, choices of a cluster, and what the objective counts itself.
        # A number counts with the bits of the first tensor's.
        number = Payload(1, self.federation.layout.payload([0]).bits_per_value)
        each_sends = (sampler.scored_at is not None) + objective.sends_loss + schedule.sends_choice
        each_sends += schedule.numbers_sent
        traffic.send_up(number, each_sends * reported + report.scored + report.numbers)
        traffic.send_down(number, schedule.numbers_sent * report.num_sent)
        traffic.send_down(number, objective.numbers_down * report.num_sent)
