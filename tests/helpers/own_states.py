"""Parts of a user's own with a state of their own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fl_lightning.parts import Momentum


class FadingMomentum(Momentum):
    """Has a state beside that of the library's class."""

    count = 0

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.count += 1
        return super().step(model, model + (aggregate - model) / self.count)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.count = state["count"]
