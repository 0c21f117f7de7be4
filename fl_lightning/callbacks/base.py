"""The base of all aggregation callbacks: puts the federated loop into the trainer and carries the algorithm's state."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning._lightning.round_loop import install_loop
from fl_lightning.algorithm import Algorithm
from fl_lightning.arguments import check_count
from fl_lightning.federation import Task
from fl_lightning.loop import FederatedLoop
from fl_lightning.objectives import LocalObjective
from fl_lightning.seeding import default_seed
from fl_lightning.vector import StateVector


class AggregationCallback(Callback):
    """Trains federatedly: one trainer epoch is one round, in which some clients train locally.

    A named algorithm is a subclass that fills in the five parts in :meth:`configure_algorithm`.

    Args:
        local_epochs: Passes E over a client's data in a round.
        local_steps: Optimizer steps of a client in a round, instead of epochs; its data are gone through repeatedly.
        seed: Seed of client draws, shuffling and everything random inside clients. Default: that of
            ``lightning.seed_everything``, else 0.

    Raises:
        ValueError: If ``local_epochs`` or ``local_steps`` is below 1, or both are given.
    """

    def __init__(self, *, local_epochs: int | None = None, local_steps: int | None = None, seed: int | None = None):
        if local_epochs is not None and local_steps is not None:
            raise ValueError(
                f"Give `local_epochs` or `local_steps`, not both; got {local_epochs} and {local_steps}. "
                "A client trains for whole passes over its data, or for a fixed number of optimizer steps."
            )
        check_count("local_epochs", 1 if local_epochs is None else local_epochs)
        check_count("local_steps", 1 if local_steps is None else local_steps)
        if seed is not None:
            check_count("seed", seed, 0)
        self.local_epochs = local_epochs or 1
        self.local_steps = local_steps
        self._seed = seed
        self.algorithm = self.configure_algorithm()
        self._loop: FederatedLoop | None = None
        self._fitting = False
        self._start: dict[int, Tensor] = {}  # the parameters that the present client received

    @abstractmethod
    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm's parts; called once, at the end of ``__init__``."""

    @property
    def seed(self) -> int:
        """Seed of client draws, shuffling and everything random inside clients."""
        return default_seed() if self._seed is None else self._seed

    # ---- the loop ----

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install the federated loop for a fit.

        Raises:
            ValueError: If a setting of the trainer cannot work federatedly.
        """
        self._fitting = stage == "fit"
        if not self._fitting:
            return
        others = [c for c in trainer.callbacks if isinstance(c, AggregationCallback) and c is not self]
        if others:
            raise ValueError(
                f"The trainer has two aggregation callbacks, {type(self).__name__} and {type(others[0]).__name__}; "
                "there is one server. Keep one of them."
            )
        loop = FederatedLoop(trainer, self)
        loop.check()
        install_loop(trainer, loop)
        self._loop = loop
        self.check_rounds(trainer.max_epochs)

    def check_rounds(self, max_epochs: int | None) -> None:
        """Warn when the number of rounds does not suit the algorithm."""

    # ---- the local objective ----

    def begin_client(self, task: Task, vector: StateVector, start: Tensor) -> None:
        """Hand the received model to the local objective."""
        if self._corrects:
            views = vector.views(start)[: len(vector.parameters)]
            self.algorithm.objective.begin(task, views)
            self._start = {id(parameter): view for parameter, view in zip(vector.parameters, views, strict=True)}

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Correct the gradients by the local objective."""
        if self._corrects:
            stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            self.algorithm.objective.correct(stepped, [self._start[id(p)] for p in stepped])

    @property
    def _corrects(self) -> bool:
        return type(self.algorithm.objective) is not LocalObjective

    # ---- logs and checkpoints ----

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what the round cost: ``fed/aggregations`` and ``fed/models_sent`` (up and down, so far)."""
        if trainer.barebones:  # it warns of every value that is logged
            return
        values = {
            "fed/aggregations": float(self.algorithm.server.aggregations),
            "fed/models_sent": float(self.algorithm.models_sent),
        }
        pl_module.log_dict(values, sync_dist=trainer.world_size > 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the server's state at the last round's end, with every circulating model."""
        if self._loop is None:
            return {}
        state = self.algorithm.state_dict(self._loop.gather_models)
        return {**state, "seed": self.seed, "federation": self._loop.federation_fingerprint()} if state else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a checkpoint's state; the run goes on with the seed that it began with.

        Raises:
            ValueError: If the checkpoint belongs to another federation.
        """
        if self._loop is None or not self._fitting:
            return  # a checkpoint that is only evaluated
        present = self._loop.federation_fingerprint()
        if state_dict["federation"] != present:
            raise ValueError(
                f"The checkpoint was written with another federation ({state_dict['federation']}, now {present}): "
                "number or sizes of clients differ. Resume with the same data, partitioner, split and seeds."
            )
        self._seed = state_dict["seed"]
        self.algorithm.load_state_dict(state_dict)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep a client's optimizers out of a checkpoint that is written inside a round."""
        if self._loop is not None:
            self._loop.patch_checkpoint(checkpoint)
