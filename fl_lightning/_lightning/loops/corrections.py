"""The hook in which a local objective corrects a client's gradients, such as SCAFFOLD's.

A hook is the one place that lies after the backward pass, after a gradient scaler has unscaled and before clipping,
whichever way a step is taken, and with manual optimisation too.
"""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning._lightning.loops.client_loop import ClientLoop


class CorrectsGradients(Callback):
    """Corrects gradients by the local objective, after the hooks of callbacks before it and before those after it.

    All federated callbacks are of this class. FedAvg's objective asks for no correction, so the hook is not called in
    its rounds.
    """

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        loop = trainer.fit_loop.epoch_loop
        if isinstance(loop, ClientLoop) and loop.client_steps is not None:
            loop.client_steps.correct(optimizer)
