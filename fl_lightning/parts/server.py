"""The server: its model, and the only way in which clients' results reach it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from weakref import ref

import torch
from torch import Tensor

from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.exchange.buffers import ChangingBuffers
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.guards.changes_in_place import call
from fl_lightning.parts.guards.contracts import call_for_merged, call_for_vector
from fl_lightning.parts.guards.put_back import Undo
from fl_lightning.parts.guards.seeded_draws import Moment
from fl_lightning.parts.guards.taken_results import TakenResults
from fl_lightning.parts.part import Part
from fl_lightning.parts.running_mean import RunningMean
from fl_lightning.parts.server_optimizers import ServerOptimizer


class Server:
    """Holds the server's model, takes results and moves.

    Args:
        federation: The run.
        aggregation: Merges results.
        optimizer: Moves the parameters.
        exchange: May change the model to which the server moves.
        changing: Knows which buffers training changes.
        drawing: Seeds the global generators for parts; see :meth:`Composition.drawing`.
        schedule: Gives results; a user's own class has its results checked.

    Attributes:
        model: The server's model w_t, shape ``(size,)``: parameters first, then buffers.
        round: The round under way, from 0.
        aggregations: How often the server has moved.
        has_results: Whether this process has taken results since then.
    """

    def __init__(
        self,
        federation: Federation,
        aggregation: Aggregation,
        optimizer: ServerOptimizer,
        exchange: Exchange,
        changing: ChangingBuffers,
        drawing: Callable[..., AbstractContextManager[None]] = lambda *purpose: nullcontext(),
        schedule: Part | None = None,
    ) -> None:
        self._drawing, self._taken = drawing, TakenResults(schedule)
        self.model = federation.model
        self.round = self._tries = 0
        self.aggregations = 0
        self.federation = federation
        self._aggregation, self._optimizer, self._exchange, self._changing = aggregation, optimizer, exchange, changing
        self._num_parameters = federation.num_parameters
        self._tracks_buffers = not aggregation.merges_buffers and len(self.model) > self._num_parameters
        self._buffers = RunningMean()
        self._undo = Undo(aggregation)
        self._waiting: list[ClientResult] = []
        self._given: list[ref[ClientResult]] = []  # a user's aggregation may keep them until it merges
        self._end_of_round: Callable[[], None] | None = None
        self._shared = self.has_results = False

    def start_round(self, round_index: int) -> None:
        """Begin a round, from 0, or begin it again."""
        self.round, self._tries = round_index, 0

    def take(self, result: ClientResult, *, on_all_ranks: bool = False) -> None:
        """Take one result: the only way into an aggregation.

        Args:
            result: As it left the exchange.
            on_all_ranks: Whether every process takes this result, just before the server moves; otherwise only the one
                that has it.

        Raises:
            TypeError: If a user's own schedule gives something else than a result.
            ValueError: If it gives one of another shape or client, or one twice.
            FloatingPointError: If it gives NaN or infinite values.
        """
        result = self._taken.checked(result, self.model, self.federation)
        federation, self.has_results = self.federation, True
        if self._exchange.colludes:  # before any of them is merged, all must be there
            self._waiting.append(result)
            self._shared = on_all_ranks
        elif self._aggregation.reduces_over_ranks:
            if not on_all_ranks or result.task.slot % federation.num_ranks == federation.rank:
                self._add(result)
        elif on_all_ranks:
            self._add(result)
        else:
            # until the server moves: then all processes see all results in one order, and a round that breaks off
            # leaves nothing in an aggregation
            self._waiting.append(result)

    def _add(self, result: ClientResult) -> None:
        self._undo.remember()
        task = result.task  # a circulating model may have no client, and a schedule's own task no round
        with self._drawing(Moment.UPDATE, self.round, task.round, task.slot):
            call(self._aggregation, "update", result, results=[result])
        if not self._aggregation.is_of_library:
            self._given.append(ref(result))
        if self._tracks_buffers:
            self._buffers.add(result.buffers, self._aggregation.weight_of(result))

    def move(self) -> bool:
        """Move to what the results merge into; return false, and stay, if there were none. Call it on all processes."""
        self._tries += 1  # not `aggregations`: the server may stay
        with self._drawing(Moment.MOVE, self.round, self._tries):
            return self._move()

    def _move(self) -> bool:
        self._take_waiting()
        self._taken.forget()
        self.has_results = False
        n, size = self._num_parameters, len(self.model)
        model = self.model if self._aggregation.merges_buffers else self.model[:n]
        self._undo.end_results()
        lengths = (n, size) if self._tracks_buffers else (size,)
        given = [result for each in self._given if (result := each()) is not None]
        self._given = []
        aggregate = call_for_merged(self._aggregation, model, given, lengths, n)
        self._undo.forget()
        buffers = self._merged_buffers()
        if aggregate is not None and len(aggregate) < size:
            kept = self.model[n:] if buffers is None else buffers
            aggregate = torch.cat([aggregate, kept.to(aggregate.dtype)])
        if self._end_of_round is None:  # the parts' own came before this move
            for states in self._aggregation.client_states.values():
                states.on_round_end()
        self.complete_round()
        if aggregate is None:
            return False
        aggregate = self._exchange.merged(aggregate)
        ends = self.model[:n], aggregate[:n]
        moved = call_for_vector(self._optimizer, "step", *ends, watch=ends, lengths=(n,), finite=n)
        model = torch.cat([moved, aggregate[n:].to(moved.dtype)])
        self.model = self._changing.keep_constant(model, self.model)
        self.aggregations += 1
        return True

    def end_round(self, change: Callable[[], None]) -> None:
        """Let parts change their state as soon as the results are merged, but not if that fails.

        Args:
            change: Changes it; called once, when the server moves or by :meth:`complete_round`.
        """
        self._end_of_round = change

    def complete_round(self) -> None:
        """Let parts change their state, if they have not done so."""
        change, self._end_of_round = self._end_of_round, None
        if change is not None:
            change()

    def _take_waiting(self) -> None:
        """Hand the aggregation the results of all processes, in the order of slots, or of arrivals."""
        federation, reduces = self.federation, self._aggregation.reduces_over_ranks
        results, self._waiting = self._waiting, []
        if reduces and not self._exchange.colludes:
            return
        if not self._shared:
            if federation.num_ranks > 1:
                shares = federation.gather([result.to(torch.device("cpu")) for result in results])
                results = [result.to(self.model.device) for share in shares for result in share]
            results = sorted(results, key=lambda result: result.task.slot)
        for result in self._exchange.colluded(results):
            if not reduces or result.task.client % federation.num_ranks == federation.rank:  # where its vectors are
                self._add(result)

    def _merged_buffers(self) -> Tensor | None:
        """Return the weighted mean of the clients' buffers, if the aggregation does not merge them."""
        if not self._tracks_buffers:
            return None
        if self._aggregation.reduces_over_ranks:
            return self._buffers.take(self.federation, self.model[self._num_parameters :])[0]
        mean = self._buffers.compute()
        self._buffers.reset()
        return mean

    def on_round_abort(self) -> None:
        """Forget the results of a round that broke off."""
        self._waiting, self._given, self._end_of_round, self.has_results = [], [], None, False
        self._buffers.reset()
        self._taken.forget()
        self._undo.put_back()
