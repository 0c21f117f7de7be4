"""Results of stacks, given to the algorithm in the order in which clients would have trained alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fl_lightning._lightning.journal import Journal
from fl_lightning.clients.training import Begun, LocalTraining
from fl_lightning.executors.stacked.circumstances import Circumstances
from fl_lightning.executors.stacked.training import Stack
from fl_lightning.parts.algorithm import Algorithm


@dataclass
class Trained:
    """A stack whose clients have been trained: its rows' clients, and the sums of their learning rates."""

    members: Sequence[Begun]
    stack: Stack
    summed_lr: list[list[float]]

    @cached_property
    def vector_of(self) -> Callable[[int], Tensor]:
        """Returns a row's model, shape ``(size,)``."""
        return self.stack.models.vectors()


class Results:
    """The results of clients that began together.

    Args:
        clients: Trains clients.
        algorithm: Takes the results.
        journal: What the clients of stacks said.
        late: Whether ``on_client_start`` is still to be called: it is taken to look at the model only.

    Attributes:
        late_change: What ``on_client_start`` changed even so, known after :meth:`hand_in`; ``None`` for nothing.
    """

    def __init__(self, clients: LocalTraining, algorithm: Algorithm, journal: Journal, *, late: bool) -> None:
        self._clients, self._algorithm, self._journal = clients, algorithm, journal
        self._late = late and bool(clients.hooks.starts)
        self._is_watched = clients.is_watched
        self._rows: dict[int, tuple[Begun, Trained | None, int]] = {}
        self.late_change: str | None = None

    def add(self, trained: Trained) -> None:
        """Add a stack."""
        for row, member in enumerate(trained.members):
            self._rows[member.task.slot] = member, trained, row

    def add_untrained(self, members: Sequence[Begun]) -> None:
        """Add clients that are to train one after the other."""
        for member in members:
            self._rows[member.task.slot] = member, None, 0

    def hand_in(self) -> None:
        """Give each client's result to the algorithm, in the order of slots, and call the hooks around it.

        Where hooks can look at them, Lightning has heard just what this client and those before said.
        """
        clients, journal = self._clients, self._journal
        each = self._late or clients.hooks.read_what_was_said
        said = journal.by_client() if each else {}
        if each:
            journal.cut(0)
        elif not all(trained for _, trained, _ in self._rows.values()):
            journal.tell(clients.loop)
        before = Circumstances(clients) if self._late else None
        for slot in sorted(self._rows):
            member, trained, row = self._rows[slot]
            if before is not None:
                member = clients.call_start_hooks(member)
                if self._changed(member, before):
                    trained = None
            if trained is None:
                self._algorithm.receive(clients.go_on(member))
                continue
            if slot in said:
                said[slot].tell(clients.loop)
            self._receive(member, trained, row)

    def _changed(self, member: Begun, before: Circumstances) -> bool:
        """Whether ``on_client_start`` has given the client another start than that from which it was trained."""
        if not before.same_as(Circumstances(self._clients)):
            self.late_change = "an attribute or a hook of the module, or a callback"
        elif member.is_prepared:
            self.late_change = "weights or learning rates"
        else:
            return False
        return True

    def _receive(self, member: Begun, trained: Trained, row: int) -> None:
        clients, model = self._clients, trained.vector_of(row)
        if self._is_watched:
            clients.vector.write(model)
        steps = len(trained.stack.windows[row])
        self._algorithm.receive(clients.finish(member.client, model, steps, trained.summed_lr[row]))
