"""Results of stacks, in the order in which clients would have trained alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fl_lightning._lightning.log_replay import Journal
from fl_lightning.clients.hooks import StartedClient
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.changes.shared_state import SharedState
from fl_lightning.executors.stacked.client_ends import ClientEnds
from fl_lightning.executors.stacked.parts import user_defined_parts
from fl_lightning.executors.stacked.stack import Stack
from fl_lightning.executors.stacked.trials.hook_trial import read_at_start
from fl_lightning.executors.stacked.trials.order import Readable
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import ClientResult, Task


@dataclass
class Trained:
    """A stack whose clients have been trained.

    Attributes:
        members: Its rows' clients.
        stack: The stack.
        summed_lr: The sums of their learning rates.
        ends: What hooks find after each of them; ``None`` if there is none that looks.
    """

    members: Sequence[StartedClient]
    stack: Stack
    summed_lr: list[list[float]]
    ends: ClientEnds | None

    @cached_property
    def vector_of(self) -> Callable[[int], Tensor]:
        """Returns a row's model, shape ``(size,)``."""
        return self.stack.models.vectors()


class Results:
    """The results of clients that began together.

    Where callbacks have hooks of clients, the hooks of one client may change what the next ones train on. So whatever
    the clients have in common is looked at before a result is handed in: a client that would have met something else
    is trained again, alone, and its result in the stack is dropped.

    Args:
        training: Trains clients.
        algorithm: The algorithm.
        journal: The values that clients of stacks logged.
        late: Whether ``on_client_start`` is still to be called: it is taken to look at the model only.

    Attributes:
        late_change: What hooks changed, known after :meth:`hand_in`; ``None`` for nothing.
    """

    def __init__(self, training: LocalTraining, algorithm: Algorithm, journal: Journal, *, late: bool) -> None:
        self._training, self._journal = training, journal
        starts = bool(training.hooks.starts)
        self._late, self._early = starts and late, starts and not late
        self._is_watched = training.is_watched or bool(user_defined_parts(algorithm))  # which may hold the module
        self._ground: SharedState | None = None
        self._rows: dict[int, tuple[StartedClient, Trained | None, int]] = {}
        self.late_change: str | None = None

    def add(self, trained: Trained) -> None:
        """Add a stack."""
        for row, member in enumerate(trained.members):
            self._rows[member.task.slot] = member, trained, row

    def add_untrained(self, members: Sequence[StartedClient]) -> None:
        """Add clients that are to train one after the other."""
        for member in members:
            self._rows[member.task.slot] = member, None, 0

    def hand_in(self) -> Iterator[ClientResult]:
        """Yield each client's result, in the order of slots, and call the hooks around it.

        Where hooks can look at them, Lightning then has the values of this client and of those before, and no others.
        """
        training, journal = self._training, self._journal
        each = self._late or training.hooks.read_logged_values
        logged = journal.by_client() if each else {}
        if each:
            journal.cut(0)
        elif not all(trained for _, trained, _ in self._rows.values()):
            journal.tell(training.loop)
        if each or self._early:
            self._ground = SharedState(training, [member.task for member, _, _ in self._rows.values()])
        noted = read_at_start(training) if self._early else None
        for slot in sorted(self._rows):
            member, trained, row = self._rows[slot]
            if self._late:
                member = training.call_start_hooks(member)
            if trained is None or self._meets_another(member):
                yield training.go_on(member, at_once=self._late)
            else:
                if slot in logged:
                    logged[slot].tell(training.loop)
                yield self._result(member, trained, row)
            if noted is not None and slot != max(self._rows):
                _check_order(noted, member.task)
        if self._ground is not None:
            self.late_change = self.late_change or self._ground.changed()

    def _meets_another(self, member: StartedClient) -> bool:
        """Whether hooks have given the client something else than that from which it was trained."""
        if self._ground is None:
            return False
        found = self._ground.changed(member.task)
        if self._late and found is None and member.is_prepared:
            found = "weights, or the optimizer"
        self.late_change = self.late_change or found
        return found is not None

    def _result(self, member: StartedClient, trained: Trained, row: int) -> ClientResult:
        training, model = self._training, trained.vector_of(row)
        if trained.ends is not None:
            training.show_end(member, trained.ends.final_state(row))
        if self._is_watched:
            training.vector.write(model)
        steps = len(trained.stack.windows[row])
        return training.finish(member.client, model, steps, trained.summed_lr[row])


def _check_order(noted: Readable, task: Task) -> None:
    """Raise ``RuntimeError`` if the hooks of a client changed what ``on_client_start`` of the next ones may read.

    It has been called for them, since it sets what they train from, and is not called twice.
    """
    if found := noted.changed(task.client):
        raise RuntimeError(
            f"A callback's `on_client_end` changes `{found}` for some clients only, on which the weights or learning "
            "rates may depend that `on_client_start` has set for the next ones, which train at once. Give the "
            'aggregation `executor="sequential"`.'
        )
    noted.look()
