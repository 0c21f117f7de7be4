"""The success of a backdoor."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fl_lightning._lightning.evaluation.predictions import called, compared
from fl_lightning._lightning.trainer_callbacks import check_alone
from fl_lightning.data.targets import inputs_of
from fl_lightning.metrics import scores_and_classes
from fl_lightning.settings import check_arguments


@runtime_checkable
class Trigger(Protocol):
    """A backdoor, such as :class:`~fl_lightning.data.Backdoor`."""

    target: int

    def stamped(self, x: Tensor) -> Tensor:
        """Return inputs with the trigger."""
        ...


class BackdoorSuccess(Callback):
    """Logs ``fed/backdoor_success``: the share of stamped validation samples that the model calls the target.

    Samples of the target class itself are left out. The module is called on a batch's inputs, in eval mode, and returns
    scores of classes; targets are those of :class:`~fl_lightning.ClientMetrics`.

    Args:
        backdoor: The pattern and the class.

    Raises:
        TypeError: If it cannot stamp inputs, or has no target class; in a validation, if a batch does not say which its
            inputs and targets are.
        ValueError: At set-up, if the trainer has another such callback; in a validation, if the module's scores and the
            targets do not fit.
    """

    def __init__(self, backdoor: Trigger) -> None:
        self.backdoor = backdoor
        check_arguments(self)
        # Samples that the model calls the target, and all that were stamped.
        self._counts = torch.zeros(2)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that nobody else logs the share."""
        why = "both log 'fed/backdoor_success', and the loggers would get the mean of the two"
        check_alone(self, BackdoorSuccess, trainer, "callbacks that watch a backdoor", why)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start to count."""
        self._counts = torch.zeros(2, dtype=torch.float64, device=pl_module.device)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count the batch's samples."""
        stamped = self.backdoor.stamped(inputs_of(batch))
        predictions, targets = compared(trainer, batch, called(pl_module, stamped), outputs)
        scores, classes = scores_and_classes(predictions, targets)
        is_other_class = classes != self.backdoor.target
        is_called_target = scores.argmax(dim=1) == self.backdoor.target
        taken = is_called_target & is_other_class
        self._counts += torch.stack([taken.sum(), is_other_class.sum()])

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the share."""
        taken, stamped = trainer.strategy.reduce(self._counts, reduce_op="sum")
        if stamped:
            pl_module.log("fed/backdoor_success", taken / stamped, sync_dist=trainer.world_size > 1)
