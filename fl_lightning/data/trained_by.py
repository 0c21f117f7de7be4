"""Notes that a data module is trained on federatedly, so that a federated run does not go on centrally unnoticed."""

from __future__ import annotations

from typing import Any

import lightning as L

from fl_lightning.representation import LOAD_WEIGHTS


class KnowsAlgorithm:
    """The part of a data module that knows which aggregation callback trains on it.

    Attributes:
        trained_by: The class of the aggregation callback of the newest fit; ``None`` in central training.
    """

    trainer: L.Trainer | None
    trained_by: str | None = None

    def _begin_stage(self, stage: str | None) -> None:
        """Forget the callback of the fit before; that of the next one, if there is any, is set up after the data."""
        if stage == "fit":
            self.trained_by = None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds: the aggregation callback, if there is one."""
        return {} if self.trained_by is None else {"trained_by": self.trained_by}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that a federated fit goes on federatedly.

        Raises:
            ValueError: If the checkpoint was written by a federated fit, and the trainer has no aggregation callback.
        """
        before, trainer = state_dict.get("trained_by"), self.trainer
        fits = trainer is not None and trainer.state.fn == "fit"
        if before is not None and self.trained_by is None and fits:
            raise ValueError(
                f"The checkpoint was written by {before}, and the trainer has no aggregation callback, so it would go "
                f"on centrally. Give Trainer(callbacks=[{before}(...)]). To start central training from its weights: "
                f"{LOAD_WEIGHTS}."
            )
