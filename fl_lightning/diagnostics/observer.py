"""The base of callbacks that watch clients and rounds."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.logs.client_log import log_round
from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.loop import FederatedLoop


class RoundObserver(Callback):
    """Watches clients and rounds, and logs its :attr:`values` at each round's end.

    A subclass may define ``on_client_start(trainer, pl_module, client)``, called before a client trains, when the
    module holds the model that it received, and ``on_client_end(trainer, pl_module, result)``, called when it holds the
    client's own. They run on the process that trains the client. Values in ``values`` must be the same on all
    processes; ``loop.gather_objects`` joins what they saw.

    Attributes:
        values: Numbers to log at the round's end, by name.
    """

    values: dict[str, float]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that clients train.

        Raises:
            ValueError: If the trainer has no aggregation callback.
        """
        self.values = {}
        if stage == "fit":
            aggregation_of(trainer, self)
            # The state of a checkpoint is loaded later.
            if trainer.current_epoch == 0:
                self.reset()

    def reset(self) -> None:
        """Forget what earlier fits left; called when a fit begins with its first round."""

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when the round is done: the module holds the model that the user sees, and schedules have stepped."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the values.

        Raises:
            ValueError: If another callback logs one of the same names: the loggers would get the mean of both.
        """
        if self.values:
            _check_other_observers(trainer, self)
            log_round(trainer, pl_module, self.values)


def _check_other_observers(trainer: pl.Trainer, observer: RoundObserver) -> None:
    for other in fit_trainer(trainer).callbacks:
        if other is observer or not isinstance(other, RoundObserver):
            continue
        both = observer.values.keys() & other.values.keys()
        if both:
            first, second = sorted([type(observer).__name__, type(other).__name__])
            who = f"Two callbacks {first}" if first == second else f"{first} and {second}"
            raise ValueError(
                f"{who} both log {min(both)!r}, and the loggers would get the mean of the two. Leave one out, use it "
                "in another run, or give the `values` of a subclass other names."
            )


def aggregation_of(trainer: pl.Trainer, observer: Callback) -> AggregationCallback:
    """Return the trainer's aggregation callback.

    Raises:
        ValueError: If it has none.
    """
    for callback in fit_trainer(trainer).callbacks:
        if isinstance(callback, AggregationCallback):
            return callback
    raise ValueError(
        f"{type(observer).__name__} watches clients, but the trainer has no aggregation callback. Add one such as "
        "FedAvg(), or leave it out."
    )


def loop_of(trainer: pl.Trainer) -> FederatedLoop:
    """Return the trainer's loop, once the fit has begun."""
    loop = trainer.fit_loop
    assert isinstance(loop, FederatedLoop)
    return loop
