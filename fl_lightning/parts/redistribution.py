"""Models that circulate among clients before the server aggregates them (RADFed)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fl_lightning.arguments import check_choice, check_count
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.schedules import Schedule, Server

Evaluate = Literal["virtual", "aggregate"]
Unequal = Literal["subsample", "reduce", "park", "count"]


class Redistribution(Schedule):
    """``m`` models circulate among clients for ``S`` rounds before the server aggregates them (RADFed).

    In each inner round every circulating model goes to one of ``m`` distinct clients drawn at random. After ``S`` inner
    rounds the server moves to the plain mean of the models and all start again from there (eq. (35)-(37)).

    Args:
        redistributions: S, the number of local trainings between two aggregations; 1 is FedAvg with uniform weights.
        evaluate: The model that is validated, checkpointed and tested between two aggregations: ``"virtual"`` is the
            mean of the circulating models (not fed back), ``"aggregate"`` the server's last model.
        unequal: What happens in an inner round with fewer than ``m`` active clients. ``"subsample"``: an error, since
            m is to be no more than are active in any round. ``"reduce"``: models chosen at random leave for the rest
            of the cycle. ``"park"``: models chosen at random stay as they are for this round. ``"count"``: the models
            trained least often train (ties by slot). With more than ``m`` active clients, ``m`` of them train.
        extend_cycle: With ``"count"``, let a cycle last until every model was trained ``S`` times.

    Raises:
        ValueError: If an argument is out of its range; in a round, with fewer active clients than models under
            ``"subsample"``, or when the number of models changed in mid-cycle.
    """

    keeps_models = True

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
        if extend_cycle and unequal != "count":
            raise ValueError(
                f'`extend_cycle=True` needs `unequal="count"`, got {unequal!r}: only there trainings are counted.'
            )
        self.redistributions, self.evaluate = redistributions, evaluate
        self.unequal, self.extend_cycle = unequal, extend_cycle
        self._federation: Federation | None = None
        self._start_cycle()

    def begin(self, federation: Federation) -> None:
        """Start a first cycle."""
        self._federation = federation
        self._start_cycle()

    def _start_cycle(self) -> None:
        self.position = 0
        self.num_models = 0
        self.trainings: dict[int, int] = {}
        """How often each circulating model was trained in the cycle, by slot."""
        self.models: dict[int, Tensor] = {}
        self._trained: dict[int, Tensor] = {}
        self._planned: list[int] = []
        self._circulating: list[int] = []

    @property
    def in_cycle(self) -> bool:
        """Whether the cycle has begun."""
        return self.position > 0

    def open(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> list[int]:
        """Begin an inner round and return the slots that train.

        Raises:
            ValueError: If the number of circulating models changed in the middle of a cycle, or there are fewer active
                clients than models.
        """
        if not self.in_cycle:
            self.num_models, self.trainings = cohort_size, dict.fromkeys(range(cohort_size), 0)
        elif cohort_size != self.num_models:
            raise ValueError(
                f"{self.num_models} models circulate since the last aggregation, but {cohort_size} clients train now. "
                f"Keep `clients_per_round` as it was for the {self.redistributions - self.position} rounds up to the "
                "next aggregation."
            )
        slots = sorted(self.trainings)
        if self.unequal == "subsample" and num_active < len(slots):
            raise ValueError(
                f"{num_active} clients are active in this round, but {len(slots)} models circulate. Lower "
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
        return self.models.get(slot, server.model)

    def receive(self, result: ClientResult, server: Server) -> None:
        """Hold the slot's new model until the round ends."""
        self._trained[result.task.slot] = result.vector

    def close(self, server: Server, failed: Collection[int]) -> Tensor:
        """Pass the models on; aggregate them when the cycle is complete. A round in which nobody trains is skipped."""
        trained, self._trained = self._trained, {}
        if self._planned:
            self.trainings = {slot: self.trainings[slot] for slot in self._circulating}
            for slot in set(self._planned) - set(failed):
                self.trainings[slot] += 1
            self.models = {slot: model for slot, model in {**self.models, **trained}.items() if slot in self.trainings}
            self.position += 1
        complete = self._is_complete()
        if not complete and (self.evaluate == "aggregate" or not self.in_cycle):
            return server.model
        mean = self._mean(server)
        if not complete:
            return server.model if mean is None else mean.to(server.model.dtype)
        server.move(mean)
        self._start_cycle()
        return server.model

    def _is_complete(self) -> bool:
        if self.extend_cycle:
            return self.in_cycle and min(self.trainings.values()) >= self.redistributions
        return self.position >= self.redistributions

    def _mean(self, server: Server) -> Tensor | None:
        """Return the plain mean of all circulating models, those of other processes too."""
        assert self._federation is not None
        for slot in sorted(self.trainings):
            if slot % self._federation.num_ranks == self._federation.rank:
                server.running_mean.add(self.start(slot, server), 1.0)
        return server.merge()

    def discard(self) -> None:
        """Forget the models of the broken-off round; the circulating ones are as they were."""
        self._trained = {}
        if not self.in_cycle:
            self._start_cycle()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the cycle and every circulating model."""
        assert self._federation is not None
        return {
            "position": self.position,
            "num_models": self.num_models,
            "trainings": dict(self.trainings) if self.in_cycle else {},
            "models": self._federation.join(self.models),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a cycle.

        Raises:
            ValueError: If the checkpoint lies further in a cycle than ``redistributions`` allows.
        """
        assert self._federation is not None
        if state["position"] >= self.redistributions and not self.extend_cycle:
            raise ValueError(
                f"The checkpoint was written {state['position']} rounds after the last aggregation, but "
                f"`redistributions` is {self.redistributions}. Resume with the value that the run began with."
            )
        device = self._federation.model.device
        self.position, self.num_models = state["position"], state["num_models"]
        self.trainings = dict(state["trainings"])
        self.models = {slot: model.to(device) for slot, model in state["models"].items()}
