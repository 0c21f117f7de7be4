"""The base of schedules: from which model does a client start, and when does the server act?"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Sequence

import numpy as np
from torch import Tensor

from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.messages import ClientResult, RoundReport, Task
from fl_lightning.parts.objectives.corrections import Correction
from fl_lightning.parts.part import Part
from fl_lightning.parts.server import Server

#: Yields tasks, is sent their results as they come, and returns the model that the user sees.
Play = Generator[Sequence[Task], Iterable[ClientResult], Tensor]


class Schedule(Part, ABC):
    """Plays a round: it yields tasks, takes their results, lets the server move and returns the model to show.

    :class:`Synchronous` is FedAvg's. With several processes each one gets the results of its own clients, and
    :meth:`Server.move` is called on all of them.
    """

    #: Whether slots keep their models from round to round, so that the server gets models that many clients trained.
    circulates = False
    #: Whether clients begin whenever they are free, so that :meth:`play` gets no tasks.
    asynchronous = False
    #: Whether a client may train on several models at once.
    repeats_clients = False
    #: Whether the server may merge several results of one client at once.
    repeats_in_buffer = False
    #: Whether the shown model is made of clients' models, before exchanges on the server's side.
    shows_client_models = False
    #: Whether every client starts from the server's model.
    starts_from_server = True
    #: Number of a client's trainings whose optimizers it may keep, that of the server's model and the first further
    #: ones; the others' are fresh.
    optimized_trainings = 1
    #: Whether clients work in virtual time, which the schedule logs.
    has_virtual_time = False
    #: Whether clients tell which of several models they chose.
    sends_choice = False
    #: The round's report, if the schedule makes one itself.
    report: RoundReport | None = None
    #: Clients (or results) of a usual round; set before each round.
    cohort_size = 0

    @property
    def hides_clients(self) -> bool:
        """Whether the server merges models that several clients have trained, and sees no client's own."""
        return self.circulates

    @property
    def edge_models(self) -> tuple[int, int]:
        """How many models the server sent to edges in the round, which serve groups of clients, and got from them."""
        return 0, 0

    @property
    def numbers_sent(self) -> int:
        """How many numbers go to each client of the round, and as many back, besides models and a choice."""
        return 0

    @property
    def has_models_under_way(self) -> bool:
        """Whether clients or slots hold models that the server has not aggregated yet."""
        return False

    @property
    def shows_aggregate(self) -> bool:
        """Whether the model that was shown last is the server's, not a mean of circulating models."""
        return True

    @property
    def virtual_time(self) -> float:
        """The present virtual time, where there is one."""
        return 0.0

    def at_work(self) -> Sequence[tuple[int, float]]:
        """Return the clients that work now, and the virtual time at which each received its model."""
        return ()

    def slots(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> Sequence[int]:
        """Return the slots that train in a round, at most one for each active client.

        Args:
            num_active: Clients that train in the round.
            cohort_size: Clients that usually do.
            rng: The round's generator.
        """
        return range(num_active)

    def sent(self, task: Task, server: Server) -> Tensor:
        """Return the model that the server sends for a task, shape ``(size,)``; not to be written to."""
        return server.model

    def start(self, task: Task, received: Tensor) -> Tensor:
        """Return the model from which a task trains, shape ``(size,)``; not to be written to.

        Args:
            task: The task.
            received: What the client received, with what it keeps of its own, shape ``(size,)``.
        """
        return received

    def correction(self, client: LocalClient) -> Correction | None:
        """Return what is asked of the client's steps in a further training, whose ``task.phase`` is not 0."""
        return None

    def on_client_end(self, result: ClientResult) -> ClientResult | None:
        """Called when a client is done, with its result before any exchange; return another one, or ``None``."""
        return None

    def unsuitable_rounds(self, rounds: int, arrivals: int) -> str | None:
        """Return why a fit of so many rounds would not end with an aggregation; ``None`` if it would.

        Args:
            rounds: Rounds of the fit.
            arrivals: Results that arrive in a round of an asynchronous schedule.
        """
        return None

    def may_show_aggregate(self, rounds: int, *, may_skip_rounds: bool) -> bool:
        """Return whether the model that is shown after so many rounds of a fit may be the server's.

        Args:
            rounds: Rounds from the fit's begin.
            may_skip_rounds: Whether rounds may be without clients.
        """
        return True

    def further_models(self, sent: int) -> int:
        """Return how many models the server sends in the round besides one to each client of the round.

        Args:
            sent: How many clients of the round received one.
        """
        return 0

    def expected_tasks(self) -> int:
        """Return about how many tasks the round will have besides those that are known when it begins."""
        return 0

    def rounds_under_way(self) -> Collection[int] | None:
        """Return the earlier rounds on whose models clients have yet to be trained; ``None`` if no round has such."""
        return None

    def finish(self, server: Server) -> Play:
        """Make clients' models of the last round, at a fit's end, if :attr:`personal_is_current` is False.

        Of all that it changes, only the schedule's own state stays.

        Args:
            server: The server.

        Yields:
            Further trainings, whose ``task.phase`` is not 0, as :meth:`play` does.
        """
        return server.model
        yield ()

    @abstractmethod
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Play a round.

        Args:
            tasks: The round's tasks, of all processes.
            server: The server.

        Yields:
            Tasks to be trained now. Each yield returns this process's results, which come as they are trained; take all
            of them.

        Returns:
            The model that is validated and checkpointed, shape ``(size,)``.
        """
