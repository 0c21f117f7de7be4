"""The composition of an algorithm: six parts, and the settings that all algorithms share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Literal

from fl_lightning.arguments import check_choice
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.exchange.buffers import BufferExchange, Buffers, ChangingBuffers
from fl_lightning.parts.exchange.chain import Chain
from fl_lightning.parts.federation import Federation, LocalClient, Task
from fl_lightning.parts.guards.compared_processes import SameEverywhere
from fl_lightning.parts.guards.own_parts import (
    check_attributes,
    refuse_held_sums,
    refuse_idle,
    refuse_own_exchange,
    refuse_twice,
)
from fl_lightning.parts.guards.seeded_draws import Moment, OwnDraws
from fl_lightning.parts.guards.types_of_parts import check_part
from fl_lightning.parts.guards.unsaved_state import UnsavedState
from fl_lightning.parts.objectives import Correction, LocalObjective
from fl_lightning.parts.part import Part
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.sampling import ClientSampler
from fl_lightning.parts.schedules import BaseSchedule
from fl_lightning.parts.server_optimizers import ServerOptimizer
from fl_lightning.parts.summed_updates import of_sums
from fl_lightning.signatures import ShowsSignature

Invalid = Literal["skip", "raise"]


class Composition(ShowsSignature):
    """The six parts of an algorithm.

    Args:
        sampler: Draws the clients of a round.
        schedule: Gives the models from which clients start, and decides when the server acts: FedAvg's is
            ``Synchronous()``.
        aggregation: Merges results: FedAvg's is ``WeightedMean()``.
        server: Moves the server's model: FedAvg's is ``Mixing()``, which takes the aggregate as it is.
        objective: What clients minimise; the plain objective if ``None``.
        exchange: What travels, apart from buffers: one exchange or a list, in order from the client to the server.

    Raises:
        TypeError: If a part has the wrong type.
    """

    def __init__(
        self,
        *,
        sampler: ClientSampler,
        schedule: BaseSchedule,
        aggregation: Aggregation,
        server: ServerOptimizer,
        objective: LocalObjective | None = None,
        exchange: Exchange | Sequence[Exchange] | None = None,
    ) -> None:
        self.sampler = sampler
        self.schedule = schedule
        self.objective = LocalObjective() if objective is None else objective
        self.aggregation = aggregation
        self.server_optimizer = server
        self.exchange: Chain = Chain(_as_list(exchange))
        self.participation = Participation()
        self.invalid_updates: Invalid = "skip"
        self.changing_buffers = ChangingBuffers()
        self.unsaved, self.same = UnsavedState(), SameEverywhere()
        self._own_draws, self._round = OwnDraws(), 0
        self._clients_stay = False  # on their processes, in this round
        self._federation: Federation | None = None

    def configure(
        self,
        participation: Participation | None = None,
        buffers: Buffers = "average",
        invalid_updates: Invalid = "skip",
        exchange: Exchange | Sequence[Exchange] | None = None,
        aggregation: Aggregation | None = None,
    ) -> None:
        """Take the settings that all algorithms share, and check that the parts can be combined.

        Args:
            participation: Clients that cannot be reached, drop out or do part of the work.
            buffers: How buffers are exchanged; see :class:`BufferExchange`.
            invalid_updates: Whether clients with NaN or infinite values are left out or end the fit.
            exchange: Exchanges that follow the algorithm's own.
            aggregation: Replaces the algorithm's own.

        Raises:
            TypeError: If a part has the wrong type.
            ValueError: If parts cannot be combined.
        """
        check_choice("invalid_updates", invalid_updates, ("skip", "raise"))
        given = Participation() if participation is None else participation
        self.participation = check_part("participation", given, Participation)
        self.invalid_updates = invalid_updates
        self.exchange = Chain([BufferExchange(buffers), *self.exchange.members, *_as_list(exchange)])
        self.aggregation = self.aggregation if aggregation is None else aggregation
        check_part("sampler", self.sampler, ClientSampler)
        check_part("objective", self.objective, LocalObjective)
        check_part("aggregation", self.aggregation, Aggregation)
        check_part("server", self.server_optimizer, ServerOptimizer)
        self.aggregation = of_sums(self.exchange, self.aggregation)
        for objective in self._objectives:
            refuse_own_exchange(objective)
        self._check_parts()

    def _check_parts(self) -> None:
        """Let every part look at the others."""
        refuse_twice(self.parts)
        for part in self.all_parts:
            refuse_idle(part)
            refuse_held_sums(part)
        self._introduce_parts()
        check_attributes(self.all_parts, self.participation)

    def _introduce_parts(self) -> None:
        parts = {**self.parts, "participation": self.participation}
        for part in self.parts.values():
            part.check_beside(parts)

    @property
    def _objectives(self) -> list[LocalObjective]:
        return [part for part in self.objective.with_held_parts if isinstance(part, LocalObjective)]

    @property
    def federation(self) -> Federation:
        """The federation of the fit.

        Raises:
            RuntimeError: Before the fit has begun.
        """
        if self._federation is None:
            raise RuntimeError("The algorithm has no federation before `trainer.fit` has begun.")
        return self._federation

    @property
    def parts(self) -> dict[str, Part]:
        """All parts by name, in the order in which they start a fit."""
        return {
            "sampler": self.sampler,
            "schedule": self.schedule,
            "objective": self.objective,
            "aggregation": self.aggregation,
            "server_optimizer": self.server_optimizer,
            "exchange": self.exchange,
            "changing_buffers": self.changing_buffers,
        }

    @property
    def all_parts(self) -> list[Part]:
        """All parts, with those that they hold."""
        return [part for each in self.parts.values() for part in each.with_held_parts]

    @property
    def keeps_client_states(self) -> bool:
        """Whether clients keep vectors between rounds; a client then belongs to one process."""
        return any(part.keeps_client_states for part in self.parts.values())

    @property
    def changing_parts(self) -> list[Part]:
        """The parts whose own states may change before the round's end: those whose class is a user's, with a state."""
        return [part for part in self.all_parts if part.defines_state and not part.gathers_state]

    @property
    def needs_summed_lr(self) -> bool:
        """Whether a part needs :attr:`ClientResult.summed_lr`."""
        return self.objective.needs_summed_lr or self.aggregation.needs_summed_lr

    def drawing(self, moment: Moment, *numbers: int) -> AbstractContextManager[None]:
        """Return the context in which parts are called; see :meth:`OwnDraws.at`."""
        return self._own_draws.at(self._federation, moment, *numbers)

    @contextmanager
    def at_work(self, moment: Moment, task: Task) -> Iterator[None]:
        """Return the context in which parts are called for one client.

        See :meth:`drawing`. What the client hands in to a :class:`ClientStates` there, others see at the round's end.
        """
        with self.drawing(moment, *task.seeds), self.federation.client_states.at_work(task.client):
            yield

    def start_round(self, round_index: int) -> None:
        """Let all parts start a round, from 0."""
        self._round = round_index
        self._own_draws.look_at(self.parts, self.participation)
        for part in self.changing_parts:
            part.keep_state()
        with self.unsaved.set_anew(), self.drawing(Moment.ROUND_START, round_index):
            for part in self.parts.values():
                part.on_round_start(round_index)
        self._clients_stay = self.federation.num_ranks > 1 and self.keeps_client_states  # also if just made

    def correction(self, client: LocalClient) -> Correction | None:
        """Return what the local objective adds for a client that begins; ``None`` for nothing."""
        with self.at_work(Moment.CORRECTION, client.task):
            return self.objective.correction(client)

    def check_states(self) -> None:
        """Raise ``TypeError`` now if checkpoints could not be read, not after hours of training."""
        for part in self.parts.values():
            with suppress(AttributeError):  # what its first round makes is not there yet
                part.readable_state()

    def replace_sampler(self, sampler: ClientSampler) -> None:
        """Draw clients with another sampler from the next round on.

        Raises:
            TypeError: If it is no :class:`ClientSampler`.
            ValueError: If it cannot be combined with another part.
        """
        before, self.sampler = self.sampler, check_part("sampler", sampler, ClientSampler)
        try:
            self._check_parts()
        except BaseException:
            self.sampler = before
            self._check_parts()  # parts may have kept the rejected one
            raise
        if self._federation is not None:
            self._own_draws.look_at(self.parts, self.participation)
            self._attach(sampler, self._federation, fresh=True)
            check_attributes(self.all_parts, self.participation)

    def attach(self, federation: Federation, *, fresh: bool) -> None:
        """Let all parts take the federation of a fit."""
        self._federation = federation
        self._own_draws.look_at(self.parts, self.participation)
        self.unsaved.on_fit_start()
        self.same.on_fit_start()
        self._introduce_parts()  # again: another callback may have been made with one of them since
        for objective in self._objectives:
            objective.exchange = self.exchange
        for place, part in enumerate(self.parts.values()):
            self._attach(part, federation, place, fresh=fresh)
        refuse_twice(self.parts)  # some may have been made just now
        check_attributes(self.all_parts, self.participation)

    def _attach(self, part: Part, federation: Federation, place: int = 0, *, fresh: bool) -> None:
        # all processes ask these parts for any client
        asked = part is self.sampler or part is self.server_optimizer
        asked = asked or (part is self.aggregation and not self.aggregation.reduces_over_ranks)
        with self.drawing(Moment.FIT_START, place):
            part.attach(replace(federation, replicates_states=True) if asked else federation, fresh=fresh)

    def abort_parts(self) -> None:
        """Let all parts forget a round that breaks off."""
        with self.drawing(Moment.ABORT, self._round):
            for part in self.parts.values():
                part.on_round_abort()
        for states in self.federation.client_states if self._federation is not None else ():
            states.on_round_abort()

    def return_to_kept_states(self) -> None:
        """Let parts return to their states at the start of a round that breaks off."""
        for part in self.all_parts:
            part.return_to_kept_state()

    def __repr__(self) -> str:
        parts = [f"{name}={type(part).__name__}" for name, part in self.parts.items() if name != "changing_buffers"]
        return f"{type(self).__name__}({', '.join(parts)})"


def _as_list(exchange: Exchange | Sequence[Exchange] | None) -> list[Exchange]:
    """Return none, one or several exchanges as a list."""
    if exchange is None:
        return []
    return list(exchange) if isinstance(exchange, (list, tuple)) else [exchange]  # type: ignore[list-item]
