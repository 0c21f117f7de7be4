"""The server: it holds the model, takes results and moves.

FedAvg's, in a round of two clients::

    take        WeightedMean.weighted gives the first client's model and its weight, which RunningMean adds
    take        the second client's
    move        RunningMean.pop gives the mean over the clients of all processes, and Mixing.step the next model
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Aggregation
from fl_lightning.parts.aggregations.means import MeanAggregation, RunningMean
from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.kept import States
from fl_lightning.parts.messages import ClientResult, Payload, Task, same_values
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.vectors import checked_vector, sum_dtype


class Server(States):
    """Holds the server's model, takes results and moves.

    Args:
        federation: The run.
        exchange: What travels.
        aggregation: Merges results.
        optimizer: Moves the model to what they merge into.
        left_out_payload: Returns the message of a task's client whose result is left out.

    Attributes:
        model: The server's model w_t, shape ``(size,)``: parameters first, then buffers.
        moves: How often the server has moved.
        changing: Names of the buffers that training changes. All others are constant: masks, tables of positions. They
            stay as they are, cost no traffic, and may be NaN.
    """

    def __init__(
        self,
        federation: Federation,
        exchange: Exchange,
        aggregation: Aggregation,
        optimizer: ServerOptimizer,
        left_out_payload: Callable[[Task], Payload],
    ) -> None:
        self.federation = federation
        self.left_out_payload = left_out_payload
        self._exchange = exchange
        self._aggregation = aggregation
        self._optimizer = optimizer
        self.model: Tensor
        self.add_state("model", federation.model)
        self.moves: int
        self.add_state("moves", 0)
        self.changing: frozenset[str]
        self.add_state("changing", frozenset())
        layout = federation.layout
        #: Number of values of each buffer.
        self._buffers = dict(zip(layout.buffers, layout.buffer_lengths, strict=True))
        #: Length of the vectors of which an aggregation takes the mean, once a result has come.
        self._length: int | None = None
        #: Whether all results must be there before any of them is merged; a plain mean adds them as they come.
        self._waits = exchange.colludes or not isinstance(aggregation, MeanAggregation)
        self.forget()

    def forget(self) -> None:
        """Forget the results that were taken since the last move, and which buffers changed."""
        self._results: list[ClientResult] = []
        self._mean = RunningMean()
        self._buffer_mean = RunningMean()
        self._everywhere = False
        self._seen: set[str] = set()

    # ---- take and move ----

    def take(self, result: ClientResult, *, everywhere: bool = False) -> None:
        """Take one result: the only way into an aggregation.

        Args:
            result: As it left the exchange.
            everywhere: Whether all processes call this with the result, as a schedule does that keeps results for
                later; one of them then adds it. Otherwise only the process that has trained the client calls it. All
                results between two moves are taken in the same way.
        """
        self._everywhere = everywhere
        federation = self.federation
        if self._waits:
            self._results.append(result)
        elif not everywhere or result.task.slot % federation.num_ranks == federation.rank:
            self._add(result)

    def _add(self, result: ClientResult) -> None:
        """Add a result to the mean."""
        aggregation = self._aggregation
        assert isinstance(aggregation, MeanAggregation)
        vector, weight = aggregation.weighted(result)
        self._length = len(vector)
        self._mean.add(vector, weight)
        # A mean of whole models has the buffers in it.
        if not aggregation.merges_buffers and len(result.buffers):
            self._buffer_mean.add(result.buffers, aggregation.weight_of(result))

    def move(self) -> bool:
        """Move to what the results merge into; return false, and stay, if there were none. Call it on all processes."""
        layout = self.federation.layout
        self.join_changing()
        aggregate = self._merge()
        self.forget()
        if aggregate is None:
            return False
        aggregate = self._exchange.on_aggregate(aggregate)
        # The server optimizer moves the parameters. Buffers are replaced.
        current, _ = layout.split(self.model)
        parameters, buffers = layout.split(aggregate)
        stepped = self._optimizer.step(current, parameters)
        stepped = checked_vector(
            self._optimizer, "step", stepped, current, dtype=aggregate.dtype, finite=layout.num_parameters
        )
        self.model = self.keep_constant(layout.joined(stepped, buffers, self.model.dtype))
        self.moves += 1
        return True

    def _merge(self) -> Tensor | None:
        """Return the aggregate, float64 of shape ``(size,)``; ``None`` if there is none."""
        aggregation = self._aggregation
        layout = self.federation.layout
        parameters, buffers = layout.split(self.model)
        model = self.model if aggregation.merges_buffers else parameters
        mean: Tensor | None = None
        if isinstance(aggregation, MeanAggregation):
            method = "finish"
            merged = self._merge_mean(aggregation, model)
            # FedAvg's mean has the buffers in it.
            if not aggregation.merges_buffers:
                mean, _ = self._buffer_mean.pop(self.federation, buffers)
        else:
            method = "merge"
            merged = self._merge_all(aggregation, model)
            mean, _ = self._buffer_mean.pop()
        if merged is None:
            return None
        finite = layout.num_parameters
        merged = checked_vector(aggregation, method, merged, model, dtype=sum_dtype(model), finite=finite)
        if len(merged) == layout.size:
            return merged
        return layout.joined(merged, buffers if mean is None else mean)

    def _merge_mean(self, aggregation: MeanAggregation, model: Tensor) -> Tensor | None:
        """Return what an aggregation makes of the mean over all processes, whose sums are joined."""
        federation = self.federation
        if self._waits:
            # Each process adds its own results, of clients whose vectors it has.
            for result in self._all_results():
                if result.client % federation.num_ranks == federation.rank:
                    self._add(result)
        mean, weight = self._mean.pop(federation, self._no_result(model))
        if mean is None and not aggregation.acts_alone:
            return None
        # An aggregation that acts alone gets `None` for the mean of no results.
        return aggregation.finish(model, mean, weight)  # type: ignore[arg-type]

    def _no_result(self, model: Tensor) -> Tensor | None:
        """Return zeros to add where this process has no result; ``None`` if their length is not known."""
        if self.federation.num_ranks == 1:
            return None
        # Such a process learns the length from the others.
        known = [length for length in self.federation.gather(self._length) if length]
        self._length = max(known, default=None)
        # They take the memory of one value.
        return None if self._length is None else model.new_zeros(1).expand(self._length)

    def _merge_all(self, aggregation: Aggregation, model: Tensor) -> Tensor | None:
        """Return what an aggregation makes of all results, which every process has."""
        results = self._all_results()
        if not aggregation.merges_buffers:
            for result in results:
                self._buffer_mean.add(result.buffers, aggregation.weight_of(result))
        return aggregation.merge(model, results) if results else None

    def _all_results(self) -> Sequence[ClientResult]:
        """Return the results that wait, of all processes, in the order of slots, or of arrivals."""
        results = self._results
        if not self._everywhere:
            gathered = self.federation.gather_results(results)
            results = sorted(gathered, key=lambda result: result.task.slot)
        return self._exchange.collude(results)

    def replace(self, model: Tensor) -> None:
        """Move to a model that a schedule has aggregated itself, shape ``(size,)``."""
        self.model = self.keep_constant(model.to(self.model.dtype))
        self.moves += 1

    # ---- buffers that training does not change ----

    def look_at_buffers(self, result: ClientResult) -> None:
        """Note the buffers that a client changed."""
        if len(self.changing) == len(self._buffers):
            return
        _, start = self.federation.layout.split(result.received)
        lengths = list(self._buffers.values())
        pairs = zip(self._buffers, start.split(lengths), result.buffers.split(lengths), strict=True)
        self.note_changed({name for name, old, new in pairs if not same_values(old, new)})

    def note_changed(self, names: Collection[str]) -> None:
        """Note the names of buffers that a client changed."""
        self._seen.update(names)

    def join_changing(self) -> None:
        """Add the buffers that clients changed to :attr:`changing`; call it on all processes."""
        if len(self.changing) < len(self._buffers):
            self.changing = self.changing.union(*self.federation.gather(self._seen))
        self._seen = set()

    def keep_constant(self, model: Tensor) -> Tensor:
        """Return a model, shape ``(size,)``, with the server's values of all constant buffers."""
        if len(self.changing) == len(self._buffers):
            return model
        layout = self.federation.layout
        parameters, buffers = layout.split(model)
        _, constant = layout.split(self.model)
        _, varies = layout.split(layout.mask(self.changing, model.device))
        return layout.joined(parameters, torch.where(varies, buffers, constant.to(model.dtype)))

    # ---- the boundary between two rounds ----

    @override
    def put_back(self) -> None:
        super().put_back()
        self.forget()
