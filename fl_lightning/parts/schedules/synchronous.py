"""FedAvg's rounds: all clients train from the server's model, then the server moves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import RunningMean
from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import Task
from fl_lightning.parts.part import Place
from fl_lightning.parts.schedules.base import Play, Schedule
from fl_lightning.parts.server import Server

EvaluatedModel = Literal["server", "active", "all"]


class Synchronous(Schedule):
    """Every client starts from the server's model, and the server acts at the end of every round (FedAvg)."""

    runs_at: ClassVar[Place | None] = "server"
    sends_updates_alone = True

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Let all clients train, then move the server."""
        # `Round.drive` gets the tasks and sends back their results, each as its client is done.
        for result in (yield tasks):
            server.take(result)
            # The next client trains, and the server moves, without this one's model in memory.
            del result
        server.move()
        return server.model


@dataclass(eq=False)
class ClientAverage(Synchronous):
    """Synchronous rounds after which users see a mean of clients' models instead of the server's model.

    Args:
        evaluate: The mean that is validated, checkpointed and tested: ``"active"``, of the models of the round's
            clients; ``"all"``, of every client's last local model (the first model before its first training).
        weighting: How the mean weighs clients: ``"uniform"``, or ``"samples"`` by their sizes.

    Raises:
        ValueError: If ``evaluate`` or ``weighting`` is unknown.
    """

    runs_at = "server"
    sends_updates_alone = True
    evaluate: Literal["active", "all"]
    weighting: Weighting = "uniform"
    shows_client_models = True

    @override
    def setup(self, federation: Federation) -> None:
        """Give every client the first model, if last local models are to be averaged."""
        self.shown: Tensor | None
        self.add_state("shown", None)
        if self.evaluate == "all":
            self.last: ClientVectors
            self.add_client_vectors("last", federation.model, federation.weights(self.weighting))

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Let all clients train, move the server, and take the mean of the clients' models."""
        active = RunningMean()
        for result in (yield tasks):
            server.take(result)
            if self.evaluate == "active":
                active.add(result.vector, result.weight(self.weighting))
            else:
                self.last[result.client] = result.vector
        server.move()
        if self.evaluate == "all":
            self.last.commit()
            self.shown = self.last.mean.to(server.model.dtype)
            return self.shown
        # A round without clients shows the mean of the last round that had some.
        mean, _ = active.pop(self.federation, server.model)
        if mean is not None:
            self.shown = mean.to(server.model.dtype)
        return server.model if self.shown is None else self.shown


def synchronous(evaluate: EvaluatedModel, weighting: Weighting = "uniform") -> Synchronous:
    """Return FedAvg's schedule, which shows the server's model or a mean of clients' models."""
    return Synchronous() if evaluate == "server" else ClientAverage(evaluate, weighting)
