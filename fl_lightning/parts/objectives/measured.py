"""The plain objective, measured before training (q-FedAvg)."""

from __future__ import annotations

from typing_extensions import override

from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.messages import Task
from fl_lightning.parts.objectives.base import LocalObjective


class MeasuredLoss(LocalObjective):
    """The plain objective, whose value at the received model is computed before training: one more pass over the data.

    Attributes:
        losses: F_k at the received model, by the slot of the round's clients that this process trains.
    """

    runs_at = "client"
    needs_summed_lr = True

    @override
    def on_round_start(self, round_index: int) -> None:
        """Forget the losses of the last round."""
        self.losses: dict[int, float] = {}

    @override
    def correction(self, client: LocalClient) -> None:
        """Compute the client's loss; add nothing to it."""
        self.losses[client.task.slot] = client.loss()

    @override
    def loss_of(self, task: Task) -> float:
        """Return the loss that was computed."""
        return self.losses[task.slot]
