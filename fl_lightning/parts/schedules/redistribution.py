"""Models that circulate among clients between two moves of the server (RADFed)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.means import RunningMean
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.schedules.base import Play, Schedule
from fl_lightning.parts.server import Server
from fl_lightning.settings import Count

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False)
class Redistribution(Schedule):
    """``m`` models circulate among clients for ``S`` rounds before the server aggregates them (RADFed).

    In each inner round every circulating model goes to one of ``m`` distinct clients drawn at random. After ``S`` inner
    rounds the server moves to the plain mean of the models and all start again from there (eq. (35)-(37)).

    When a cycle ends, the aggregation gets one result for each circulating model: ``start`` is the server's model,
    ``delta`` the change since then, and ``num_samples``, ``num_steps`` and ``summed_lr`` are sums over the cycle. The
    task has the cycle's last round. All else, such as the client and its ``score``, is of the last training (client -1,
    with 0 steps, if there was none).

    Equations are numbered as in ``docs/references.md``.

    Args:
        redistributions: S, the number of local trainings between two aggregations; 1 is FedAvg with uniform weights.
        evaluate: The model that is validated, checkpointed and tested between two aggregations: ``"virtual"`` is the
            mean of the circulating models (not fed back), ``"aggregate"`` the server's last model.
        unequal: What happens in an inner round with fewer than ``m`` active clients. ``"subsample"``: an error; choose
            m so small that this cannot happen. ``"reduce"``: models chosen at random leave for the rest of the cycle.
            ``"park"``: models chosen at random skip this round. ``"count"``: the models trained least often train (ties
            by slot). With more than ``m`` active clients, ``m`` of them train.
        extend_cycle: With ``"count"``, a cycle lasts until every model was trained ``S`` times.

    Attributes:
        position: Rounds of the cycle so far.
        trainings: How often each circulating model was trained in the cycle, by slot.

    Raises:
        ValueError: If an argument is out of its range; in a round, with fewer active clients than models under
            ``"subsample"``, or when the number of models changed in mid-cycle.
    """

    runs_at = "server"
    sends_updates_alone = True
    redistributions: Count
    evaluate: Literal["virtual", "aggregate"] = "virtual"
    unequal: Literal["subsample", "reduce", "park", "count"] = "subsample"
    extend_cycle: bool = False
    circulates = True
    starts_from_server = False

    @override
    def check_with(self, algorithm: "Algorithm") -> Iterable[str]:
        """Yield whether clients may drop out under ``"subsample"``, or ``extend_cycle`` has no effect."""
        if self.unequal == "subsample" and (algorithm.participation.dropout or algorithm.participation.drop_stragglers):
            yield '`participation` lets clients drop out, for which `unequal` must be "reduce", "park" or "count".'
        if self.extend_cycle and self.unequal != "count":
            yield f'`extend_cycle=True` needs `unequal="count"`, got {self.unequal!r}.'

    @override
    def setup(self, federation: Federation) -> None:
        self.position: int
        self.add_state("position", 0)
        self.length: int
        self.add_state("length", self.redistributions)
        self.num_models: int
        self.add_state("num_models", 0)
        self.trainings: dict[int, int]
        self.add_state("trainings", {})
        #: Every trained model of the cycle, by slot, on the process that keeps it.
        self.results: dict[int, ClientResult]
        self.add_state("results", {})

    @property
    def models(self) -> dict[int, Tensor]:
        """The circulating models that this process keeps and that were trained in the cycle, by slot."""
        return {slot: result.vector for slot, result in self.results.items()}

    @property
    @override
    def has_models_under_way(self) -> bool:
        """Whether the cycle has begun."""
        return self.position > 0

    @property
    @override
    def shows_aggregate(self) -> bool:
        """Whether the shown model is the server's."""
        return self.evaluate == "aggregate" or not self.has_models_under_way

    @override
    def unsuitable_rounds(self, rounds: int, arrivals: int) -> str | None:
        """Return a warning of a fit that would end in the middle of a cycle."""
        cycle = self.redistributions
        over = rounds % cycle
        if over == 0:
            return None
        ending = "the mean of the circulating models" if self.evaluate == "virtual" else "the last aggregate"
        return (
            f"`max_epochs={rounds}` is not a multiple of `redistributions={cycle}`: the fit ends {over} rounds after "
            f"the last aggregation, and the final model is {ending}. An epoch is one inner round; the paper has T x S "
            f"of them. Give whole cycles, such as max_epochs={rounds - over + cycle}."
        )

    @override
    def may_show_aggregate(self, rounds: int, *, may_skip_rounds: bool) -> bool:
        """Return whether a cycle may have ended, and if the mean of circulating models is shown, in this very round."""
        # Cycles that are extended, or have rounds without clients, may end in any later round.
        if self.evaluate == "aggregate" or self.extend_cycle or may_skip_rounds:
            return rounds >= self.redistributions
        return rounds % self.redistributions == 0

    @override
    def slots(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> Sequence[int]:
        """Return the slots that train in an inner round; see ``unequal``."""
        if not self.has_models_under_way:
            self.num_models = cohort_size
            self.trainings = dict.fromkeys(range(cohort_size), 0)
        elif cohort_size != self.num_models:
            raise ValueError(
                f"`clients_per_round` must stay {self.num_models}, the models that circulate, for "
                f"{self.redistributions - self.position} rounds, got {cohort_size}."
            )
        slots = sorted(self.trainings)
        if self.unequal == "count":
            if self.extend_cycle:
                slots = [slot for slot in slots if self.trainings[slot] < self.redistributions]
            # Sorting is stable, so that ties go by slot.
            by_trainings = sorted(slots, key=lambda slot: self.trainings[slot])
            return sorted(by_trainings[:num_active])
        if num_active < len(slots) and self.unequal == "subsample":
            raise ValueError(
                f"`clients_per_round` must be at most {num_active}, the active clients, got {len(slots)}. Or give "
                '`unequal="reduce"`, "park" or "count".'
            )
        if num_active >= len(slots) or num_active == 0:
            return slots[:num_active]
        chosen = sorted(rng.choice(slots, size=num_active, replace=False).tolist())
        if self.unequal == "reduce":
            self.trainings = {slot: self.trainings[slot] for slot in chosen}
        return chosen

    @override
    def sent(self, task: Task, server: Server) -> Tensor:
        """Return the circulating model of the task's slot; the server's model at the start of a cycle."""
        return self._model(task.slot, server)

    def _model(self, slot: int, server: Server) -> Tensor:
        return self.results[slot].vector if slot in self.results else server.model

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Pass the models on; aggregate them when the cycle is complete. A round without clients is skipped."""
        # Every model that trains goes on from the one that its slot has.
        results = dict(self.results)
        trained: list[int] = []
        for result in (yield tasks):
            slot = result.task.slot
            results[slot] = _with_earlier_trainings(self.results.get(slot), result)
            trained.append(slot)
        for slot in self.federation.join(dict.fromkeys(trained)):
            self.trainings[slot] += 1
        # Models that have left the cycle are forgotten.
        self.results = {slot: result for slot, result in results.items() if slot in self.trainings}
        if tasks:
            self.position += 1

        done = self.position
        if self.extend_cycle:
            done = min(self.trainings.values(), default=0)
        if self.has_models_under_way and done >= self.redistributions:
            for slot in self._slots_here():
                server.take(self._result_of_cycle(slot, server))
            server.move()
            self.position = 0
            self.trainings = {}
            self.results = {}
        return server.model if self.shows_aggregate else self._mean(server)

    def _slots_here(self) -> list[int]:
        """Return the circulating models that this process keeps."""
        federation = self.federation
        return [slot for slot in sorted(self.trainings) if slot % federation.num_ranks == federation.rank]

    def _result_of_cycle(self, slot: int, server: Server) -> ClientResult:
        """Return a circulating model as the aggregation gets it."""
        model = server.model
        untrained = ClientResult(Task(slot, -1, 0), model, model, 0, num_parameters=self.federation.num_parameters)
        result = self.results.get(slot, untrained)
        return replace(result, received=model, task=replace(result.task, round=self.round))

    def _mean(self, server: Server) -> Tensor:
        """Return the plain mean of all circulating models, those of other processes too."""
        running = RunningMean()
        for slot in self._slots_here():
            running.add(self._model(slot, server))
        mean, _ = running.pop(self.federation, server.model)
        return server.model if mean is None else mean.to(server.model.dtype)

    @override
    def saved(self, name: str, value: Any) -> Any:
        """Return the models of all processes as a checkpoint holds them."""
        return self.federation.join(value) if name == "results" else value

    @override
    def loaded(self, name: str, value: Any) -> Any:
        """Return the models that this process keeps."""
        if name != "results":
            return value
        rank = self.federation.rank
        ranks = self.federation.num_ranks
        return {slot: result for slot, result in value.items() if slot % ranks == rank}

    @override
    def load_state_dict(self, state: Any) -> None:
        """Continue a cycle.

        Raises:
            ValueError: If the checkpoint lies in a cycle of another length.
        """
        if state["position"] and state["length"] != self.redistributions:
            raise ValueError(
                f"`redistributions` must be {state['length']} in the checkpoint's cycle, got {self.redistributions}."
            )
        super().load_state_dict({**state, "length": self.redistributions})


def _with_earlier_trainings(before: ClientResult | None, result: ClientResult) -> ClientResult:
    """Return a model's result with the samples and steps of its earlier trainings in the cycle."""
    # The server's model takes the place of `received` at the end of the cycle.
    if before is None:
        return replace(result, received=result.vector)
    task = replace(result.task, num_samples=before.num_samples + result.num_samples)
    rates = [sum(pair) for pair in zip(before.summed_lr, result.summed_lr, strict=False)]
    steps = before.num_steps + result.num_steps
    return replace(result, task=task, received=result.vector, num_steps=steps, summed_lr=rates)
