"""States of clients' optimizers, kept from round to round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, OptimizerState, Task
from fl_lightning.parts.part import Part

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm

OptimizerStates = Literal["fresh", "kept"]


@dataclass(eq=False)
class ClientOptimizers(Part):
    """Decides whether a client's optimizers begin a round empty, or with what its last round left in them.

    A client whose schedule of personal models gives it two optimizers, as Ditto's does, keeps both.

    Args:
        state: ``"fresh"``: empty. ``"kept"``: moments, counters of steps and schedules by steps stay with the client.

    Attributes:
        tensors: Moments and the like of each client, those of all its trainings one after the other.
        numbers: The numbers of each client's :class:`OptimizerState`, in the same order.
        first: The numbers with which every client begins, shape ``(num_numbers,)``.
    """

    runs_at = "client"
    sends_updates_alone = True
    state: OptimizerStates = "fresh"

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Take the number of trainings, each with optimizers of its own, from the schedule.

        Yields:
            Whether an optimizer would hold the states of several models.
        """
        self._trainings = algorithm.schedule.optimized_trainings
        if self.state == "kept" and algorithm.objective.stepped_models > 1:
            yield (
                f'`optimizer_state` must be "fresh" with {algorithm.objective!r}, which lets one optimizer step '
                f'{algorithm.objective.stepped_models} models of a client, got "kept".'
            )

    @override
    def setup(self, federation: Federation) -> None:
        """Let every client begin with the optimizers that the module has configured."""
        #: Whether clients keep anything: plain SGD holds nothing.
        self.keeps = False
        if self.state == "fresh":
            return
        begin = federation.optimizer_state()
        if not len(begin.numbers):
            return
        self.keeps = True
        self.tensors: ClientVectors
        self.add_client_vectors("tensors", begin.tensors.repeat(self._trainings), has_mean=False)
        self.numbers: ClientVectors
        self.add_client_vectors("numbers", begin.numbers.repeat(self._trainings), has_mean=False)
        # A resumed fit has other settings at its start than the first one had.
        self.first: Tensor
        self.add_state("first", begin.numbers.repeat(self._trainings))

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state.

        Raises:
            ValueError: If it is of optimizers that hold something else.
        """
        if self.keeps and "first" in state and len(state["first"]) != len(self.first):
            raise ValueError(
                '`optimizer_state="kept"` needs optimizers and schedules that hold what those of the checkpoint held, '
                f"{len(state['first'])} numbers of a client, got {len(self.first)}. Resume with the same ones."
            )
        super().load_state_dict(state)

    def of(self, task: Task) -> OptimizerState | None:
        """Return with what a task's optimizers begin; ``None`` if they are fresh. Do not write to its tensors."""
        if not self.keeps or task.phase >= self._trainings:
            return None
        numbers = self.numbers.get(task.client)
        if numbers is None:
            numbers = self.first
        return OptimizerState(self._in_phase(self.tensors[task.client], task), self._in_phase(numbers, task))

    def take(self, result: ClientResult) -> ClientResult:
        """Keep what a client's optimizers hold, and return the result without it."""
        held = result.optimizer
        if held is None:
            return result
        task = result.task
        numbers = self.numbers.get(task.client)
        if numbers is None:
            numbers = self.first
        self.tensors[task.client] = self._joined(self.tensors[task.client], held.tensors, task)
        self.numbers[task.client] = self._joined(numbers, held.numbers, task)
        return replace(result, optimizer=None)

    def _in_phase(self, vector: Tensor, task: Task) -> Tensor:
        """Return the part of a client's vector that belongs to a task's training."""
        length = len(vector) // self._trainings
        return vector[task.phase * length : (task.phase + 1) * length]

    def _joined(self, vector: Tensor, renewed: Tensor, task: Task) -> Tensor:
        """Return a client's vector with another part of a task's training."""
        if self._trainings == 1:
            return renewed
        start = task.phase * len(renewed)
        return torch.cat([vector[:start], renewed, vector[start + len(renewed) :]])
