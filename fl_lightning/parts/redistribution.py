"""Models that circulate among clients before the server aggregates them (RADFed)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fl_lightning.arguments import check_bool, check_choice, check_count, plain
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.running_mean import RunningMean
from fl_lightning.parts.saved_results import numbers_of, with_models
from fl_lightning.parts.schedules import Schedule
from fl_lightning.parts.server import Server
from fl_lightning.representation import counted, who_train

Evaluate = Literal["virtual", "aggregate"]
Unequal = Literal["subsample", "reduce", "park", "count"]


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

    Raises:
        ValueError: If an argument is out of its range; in a round, with fewer active clients than models under
            ``"subsample"``, or when the number of models changed in mid-cycle.
    """

    keeps_models = True
    saves_results = True
    gathers_state = True

    def __init__(
        self,
        redistributions: int,
        evaluate: Evaluate = "virtual",
        unequal: Unequal = "subsample",
        extend_cycle: bool = False,
    ) -> None:
        check_count("redistributions", redistributions, 1, "1 is FedAvg with uniform weights.")
        check_choice("evaluate", evaluate, ("virtual", "aggregate"))
        check_choice("unequal", unequal, ("subsample", "reduce", "park", "count"))
        check_bool("extend_cycle", extend_cycle)
        if extend_cycle and unequal != "count":
            raise ValueError(
                f'`extend_cycle=True` needs `unequal="count"`, got {unequal!r}: the others count no trainings.'
            )
        self.redistributions, self.evaluate = plain(redistributions), evaluate
        self.unequal, self.extend_cycle = unequal, extend_cycle
        #: Position, trainings and results before a round ended, until the server has moved.
        self._before: tuple[int, dict[int, int], dict[int, ClientResult]] | None = None
        self._start_cycle()

    def on_fit_start(self, federation: Federation) -> None:
        """Start a first cycle."""
        self._start_cycle()

    def _start_cycle(self) -> None:
        self.position = 0
        self.num_models = 0
        self.trainings: dict[int, int] = {}
        """How often each circulating model was trained in the cycle, by slot."""
        self._results: dict[int, ClientResult] = {}
        """Every trained model of the cycle, by slot, as the server will get it, but for ``start``."""
        self._trained: dict[int, ClientResult] = {}
        self._planned: list[int] = []
        self._circulating: list[int] = []

    @property
    def models(self) -> dict[int, Tensor]:
        """The circulating models that this process keeps and that were trained in the cycle, by slot."""
        return {slot: result.vector for slot, result in self._results.items()}

    @property
    def in_cycle(self) -> bool:
        """Whether the cycle has begun."""
        return self.position > 0

    @property
    def shows_aggregate(self) -> bool:
        """Whether the published model is the server's."""
        return self.evaluate == "aggregate" or not self.in_cycle

    def check_participation(self, participation: Participation) -> None:
        """Raise ``ValueError`` if clients may drop out under ``"subsample"``."""
        if self.unequal == "subsample" and (participation.dropout or participation.drop_stragglers):
            raise ValueError(
                "`participation` lets clients drop out, so some rounds have fewer clients than circulating models. "
                '`unequal="subsample"` does not allow that. Give `unequal="reduce"`, "park" or "count".'
            )

    def choose_slots(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> list[int]:
        """Return the slots that train in an inner round.

        Raises:
            ValueError: If the number of circulating models changed in the middle of a cycle, or there are fewer active
                clients than models.
        """
        if not self.in_cycle:
            self.num_models, self.trainings = cohort_size, dict.fromkeys(range(cohort_size), 0)
        elif cohort_size != self.num_models:
            circulating = counted(self.num_models, "model") + (" circulates" if self.num_models == 1 else " circulate")
            left = counted(self.redistributions - self.position, "round")
            raise ValueError(
                f"{circulating} since the last aggregation, but {who_train(cohort_size)} now. Keep `clients_per_round` "
                f"as it was for the {left} up to the next aggregation."
            )
        slots = sorted(self.trainings)
        if self.unequal == "subsample" and num_active < len(slots):
            raise ValueError(
                f"This round has {counted(num_active, 'active client')}, but {len(slots)} models circulate. Lower "
                '`clients_per_round` to the smallest number of active clients, or give `unequal="reduce"`, "park" or '
                '"count".'
            )
        self._circulating, self._planned = self._choose(slots, num_active, rng)
        return self._planned

    def _choose(self, slots: list[int], num_active: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
        """Return the slots that stay in the cycle, and those that train now."""
        if self.unequal == "count":
            behind = [s for s in slots if not self.extend_cycle or self.trainings[s] < self.redistributions]
            return slots, sorted(sorted(behind, key=lambda s: (self.trainings[s], s))[:num_active])
        if num_active >= len(slots) or num_active == 0:
            return slots, slots[:num_active]
        chosen = sorted(rng.choice(slots, size=num_active, replace=False).tolist())
        return (chosen if self.unequal == "reduce" else slots), chosen

    def start(self, slot: int, server: Server) -> Tensor:
        """Return the circulating model of the slot; the server's model at the start of a cycle."""
        result = self._results.get(slot)
        return server.model if result is None else result.vector

    def receive(self, result: ClientResult, server: Server) -> None:
        """Hold the slot's new model until the round ends."""
        self._trained[result.task.slot] = result

    def publish(self, server: Server, failed: Collection[int]) -> Tensor:
        """Pass the models on; aggregate them when the cycle is complete. A round without clients is skipped."""
        self._before = self.position, self.trainings, self._results
        trained, self._trained = self._trained, {}
        if self._planned:
            self.trainings = {slot: self.trainings[slot] for slot in self._circulating}
            for slot in set(self._planned) - set(failed):
                self.trainings[slot] += 1
            new = {slot: _added(self._results.get(slot), result) for slot, result in trained.items()}
            self._results = {
                slot: result for slot, result in {**self._results, **new}.items() if slot in self.trainings
            }
            self.position += 1
        if self._is_complete():
            self._hand_over(server)
            server.move()
            self._start_cycle()
        shows_mean = self.evaluate == "virtual" and self.in_cycle
        shown = self._virtual_mean(server) if shows_mean else server.model
        self._before = None
        return shown

    def _is_complete(self) -> bool:
        if self.extend_cycle:
            return self.in_cycle and min(self.trainings.values()) >= self.redistributions
        return self.position >= self.redistributions

    def _hand_over(self, server: Server) -> None:
        """Give the server every circulating model."""
        model, n = server.model, self.federation.num_parameters
        for slot in self._slots_here():
            untrained = ClientResult(Task(slot, -1, 0), model, model, 0, num_parameters=n)
            result = replace(self._results.get(slot, untrained), start=model)
            server.take(replace(result, task=replace(result.task, round=server.round)))

    def _virtual_mean(self, server: Server) -> Tensor:
        """Return the plain mean of all circulating models, those of other processes too."""
        running = RunningMean()
        for slot in self._slots_here():
            running.add(self.start(slot, server))
        mean, _ = running.take(self.federation, server.model)
        return server.model if mean is None else mean.to(server.model.dtype)

    def _slots_here(self) -> list[int]:
        """Return the circulating models that this process keeps."""
        federation = self.federation
        return [slot for slot in sorted(self.trainings) if slot % federation.num_ranks == federation.rank]

    def on_round_abort(self) -> None:
        """Forget the models of the broken-off round; the circulating ones are as they were."""
        self._trained = {}
        if self._before is not None:
            self.position, self.trainings, self._results = self._before
            self._before = None
        if not self.in_cycle:
            self._start_cycle()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the cycle and every circulating model."""
        numbers = {slot: numbers_of(result) for slot, result in self._results.items()}
        return {
            "redistributions": self.redistributions,
            "position": self.position,
            "num_models": self.num_models,
            "trainings": dict(self.trainings) if self.in_cycle else {},
            "models": self.federation.join(self.models),
            "results": self.federation.join(numbers),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a cycle.

        Raises:
            ValueError: If the checkpoint lies in a cycle of another length.
        """
        if state["position"] and state["redistributions"] != self.redistributions:
            raise ValueError(
                f"The checkpoint was written {counted(state['position'], 'round')} after the last aggregation, in a "
                f"cycle of {state['redistributions']}, but `redistributions` is {self.redistributions}. Resume with "
                f"{state['redistributions']}, or from a checkpoint of an aggregated model."
            )
        device = self.federation.model.device
        self.position, self.num_models = state["position"], state["num_models"]
        self.trainings = dict(state["trainings"])
        here = set(self._slots_here())  # another process trains the others on
        models = {slot: model.to(device) for slot, model in state["models"].items() if slot in here}
        self._results = {slot: with_models(state["results"][slot], model, model) for slot, model in models.items()}


def _added(before: ClientResult | None, result: ClientResult) -> ClientResult:
    """Return a model's result with the samples and steps of its earlier trainings in the cycle."""
    if before is None:
        return replace(result, start=result.vector)  # the server's model takes this place at the end of the cycle
    task = replace(result.task, num_samples=before.num_samples + result.num_samples)
    rates = [sum(pair) for pair in zip(before.summed_lr, result.summed_lr, strict=False)]
    steps = before.num_steps + result.num_steps
    return replace(result, task=task, start=result.vector, num_steps=steps, summed_lr=rates)
