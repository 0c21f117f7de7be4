"""Gradients and optimizers as hooks find them after each client of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fl_lightning._lightning.local_optimizers import LocalOptimizers, OptimizerProgress, Options
from fl_lightning.clients.hooks import FinalState
from fl_lightning.executors.stacked.optimizer import StackedOptimizer


class ClientEnds:
    """Keeps the last gradients, the optimizer's state and its settings of each client of a stack.

    Args:
        optimizers: The user's optimizer and schedules; schedules step while the stack trains.
        optimizer: Steps the stack.
        parameters: The module's trained parameters.
    """

    def __init__(
        self, optimizers: LocalOptimizers, optimizer: StackedOptimizer, parameters: Sequence[nn.Parameter]
    ) -> None:
        self._optimizers, self._optimizer, self._parameters = optimizers, optimizer, parameters
        self._gradients: dict[int, list[Tensor | None]] = {}
        self._states: dict[int, list[dict[str, Any]]] = {}
        self._settings: dict[int, tuple[Options, Sequence[dict[str, Any]] | None]] = {}

    def keep_gradients(self, gradients: Sequence[Tensor | None], rows: range) -> None:
        """Keep the gradients with which rows take their last step, shape ``(active, *shape)`` each."""
        own = [None if g is None else g.detach()[rows.start : rows.stop].clone() for g in gradients]
        for place, row in enumerate(rows):
            self._gradients[row] = [None if gradient is None else gradient[place] for gradient in own]

    def keep_state(self, rows: range) -> None:
        """Keep what rows have in the optimizer and the schedules after their last step."""
        states = self._optimizer.states(rows)
        by_step = bool(self._optimizers.by_step)
        settings = self._optimizers.options(), self._optimizers.progress().schedules if by_step else None
        for place, row in enumerate(rows):
            self._states[row], self._settings[row] = states[place], settings

    def final_state(self, row: int) -> FinalState:
        """Return what hooks find after a row's client."""
        if row not in self._states:  # a client without a step
            return FinalState([None] * len(self._parameters), OptimizerProgress([{}]))
        options, schedules = self._settings[row]
        state = {p: held for p, held in zip(self._parameters, self._states[row], strict=True) if held}
        return FinalState(
            self._gradients[row], OptimizerProgress([state], schedules), options if self._optimizers.by_step else None
        )
