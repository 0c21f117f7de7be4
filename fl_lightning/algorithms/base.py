"""The base of all aggregation callbacks: puts the federated loop into the trainer and carries the algorithm's state."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning._lightning.logging import log_round
from fl_lightning._lightning.round_loop import install_loop
from fl_lightning.arguments import check_choice, check_count
from fl_lightning.clients.corrections import ClientCorrection
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.auto import ExecutorChoice, ExecutorName
from fl_lightning.loop import ClientAtWork, FederatedLoop
from fl_lightning.parts.algorithm import Algorithm, Invalid
from fl_lightning.parts.exchange.buffers import BufferPolicy, Buffers
from fl_lightning.parts.federation import ClientResult
from fl_lightning.parts.objectives import Correction
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.sampling import ClientSampler, UniformSampler
from fl_lightning.seeding import default_seed


class AggregationCallback(Callback):
    """Trains federatedly: one trainer epoch is one round, in which some clients train locally.

    A named algorithm is a subclass that fills in the five parts in :meth:`configure_algorithm`. Its clients are drawn
    by :attr:`sampler`.

    Other callbacks of the trainer may define ``on_client_start(trainer, pl_module, client)``,
    ``on_client_end(trainer, pl_module, result)`` and ``on_round_end(trainer, pl_module)``; see
    :class:`~fl_lightning.diagnostics.RoundObserver`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C, an int the number m.
        local_epochs: Passes E over a client's data in a round; default 1.
        local_steps: Optimizer steps of a client in a round, instead of epochs; its data are gone through repeatedly.
        sampler: Draws the clients, in the place of a :class:`UniformSampler` of ``clients_per_round``.
        participation: Clients that cannot be reached, drop out or do part of the work.
        buffers: What becomes of buffers such as BatchNorm's statistics: ``"average"`` them as parameters, keep them
            ``"local"`` to each client, or take the ``"server"``'s always; see :class:`BufferPolicy`.
        invalid_updates: What to do with a client that hands back NaN or infinite values: ``"skip"`` leaves it out and
            counts it, ``"raise"`` ends the fit.
        state_dir: Folder for the vectors that clients keep between rounds, in a memory-mapped file that vanishes with
            the process; ``None`` keeps them in memory.
        executor: How a round's clients are computed: ``"sequential"``, one after the other; ``"vectorized"``, many at
            once as stacked models, where the module allows it; ``"auto"`` measures both when the fit begins. All give
            the same result to rounding, but draw other dropout masks; see ``docs/scaling.md``.
        clients_at_once: Models in a stack at most; ``None`` for as many as memory allows, and on a CPU at most 32 MiB
            of weights.
        seed: Seed of client draws, shuffling and everything random inside clients. Default: that of
            ``lightning.seed_everything``, else 0.

    Raises:
        ValueError: If an argument is out of its range, ``local_epochs`` and ``local_steps`` are both given, or parts
            do not fit together.
    """

    def __init__(
        self,
        clients_per_round: int | float = 0.1,
        *,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        sampler: ClientSampler | None = None,
        participation: Participation | None = None,
        buffers: Buffers = "average",
        invalid_updates: Invalid = "skip",
        state_dir: str | os.PathLike[str] | None = None,
        executor: ExecutorName = "auto",
        clients_at_once: int | None = None,
        seed: int | None = None,
    ) -> None:
        check_choice("executor", executor, ("auto", "sequential", "vectorized"))
        if clients_at_once is not None:
            check_count("clients_at_once", clients_at_once)
        if local_epochs is not None and local_steps is not None:
            raise ValueError(
                f"Give `local_epochs` or `local_steps`, not both; got {local_epochs} and {local_steps}. "
                "A client trains for whole passes over its data, or for a fixed number of optimizer steps."
            )
        check_count("local_epochs", 1 if local_epochs is None else local_epochs)
        check_count("local_steps", 1 if local_steps is None else local_steps)
        if seed is not None:
            check_count("seed", seed, 0)
        self.clients_per_round = clients_per_round
        self.sampler = sampler or UniformSampler(clients_per_round)
        self.local_epochs = local_epochs or 1
        self.local_steps = local_steps
        self.state_dir = None if state_dir is None else Path(state_dir)
        self.executor = executor
        self.clients_at_once = clients_at_once
        #: What ``executor="auto"`` chose.
        self.choice: ExecutorChoice | None = None
        self._seed = seed
        self.algorithm = self.configure_algorithm()
        self.algorithm.configure(participation, BufferPolicy(buffers), invalid_updates)
        self._loop: FederatedLoop | None = None
        self._fitting = False
        self._threads = torch.get_num_threads()
        #: Optimizers' settings of earlier rounds on whose models clients still train.
        self.past_settings: dict[int, Any] = {}
        self._client = ClientCorrection()

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
        self._threads = torch.get_num_threads()
        loop = FederatedLoop(trainer, self)
        loop.check()
        install_loop(trainer, loop)
        self._loop = loop
        self.check_rounds(trainer.max_epochs)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give torch back the threads that ``executor="auto"`` may have changed."""
        if stage == "fit" and self.choice is not None and self.choice.threads is not None:
            torch.set_num_threads(self._threads)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Give the threads back: no teardown follows an exception."""
        self.teardown(trainer, pl_module, "fit" if self._fitting else "")

    def check_rounds(self, max_epochs: int | None) -> None:
        """Warn when the number of rounds does not suit the algorithm."""

    # ---- a client ----

    def begin_client(self, client: ClientAtWork, vector: StateVector) -> None:
        """Take what the local objective adds for the client."""
        self._client = ClientCorrection(self.correction(client), vector, client.start)
        self._client.set_weight_decay(client.loop.trainer.optimizers)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Correct the gradients by the local objective."""
        self._client.correct(optimizer)
        if self.algorithm.objective.needs_summed_lr:
            self._client.count_lr(optimizer)

    def end_client(self, client: ClientAtWork, vector: Tensor, num_steps: int) -> ClientResult:
        """Return what the client hands back; the module still holds its model."""
        summed_lr, self._client = self._client.summed_lr, ClientCorrection()
        return self.finish_client(client, vector, num_steps, summed_lr)

    def correction(self, client: ClientAtWork) -> Correction | None:
        """Return what the local objective adds for a client; the module holds the model that it received."""
        self._notify(client.loop.trainer, "on_client_start", client)
        return self.algorithm.correction(client)

    def finish_client(
        self, client: ClientAtWork, vector: Tensor, num_steps: int, summed_lr: Sequence[float]
    ) -> ClientResult:
        """Return what a client hands back; the module holds its model if :meth:`watches_clients`."""
        sampler = self.algorithm.sampler
        score = sampler.score(client) if sampler.needs_scores and bool(vector.isfinite().all()) else None
        result = ClientResult(client.task, client.start, vector, num_steps, summed_lr, score)
        self._notify(client.loop.trainer, "on_client_end", result)
        return result

    def watches_clients(self, trainer: pl.Trainer) -> bool:
        """Whether anything looks at the module when a client starts or ends."""
        hooks = ("on_client_start", "on_client_end")
        watched = any(hasattr(callback, hook) for callback in trainer.callbacks for hook in hooks)
        return watched or self.algorithm.sampler.needs_scores

    def end_round(self, trainer: pl.Trainer) -> None:
        """Tell what became of the round's clients; the module holds the model that the user sees."""
        report = self.algorithm.report
        if report.left_out:
            rank_zero_warn(
                f"Round {trainer.current_epoch}: left out client(s) {report.left_out}, whose models have NaN or "
                "infinite values. Lower the learning rate or clip gradients."
            )
        elif not report.reported:
            rank_zero_info(f"Round {trainer.current_epoch} is empty: no client reported, so the model stays.")
        self._notify(trainer, "on_round_end")

    def _notify(self, trainer: pl.Trainer, hook: str, *args: Any) -> None:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if (function := getattr(callback, hook, None)) is not None:
                function(trainer, trainer.lightning_module, *args)

    # ---- logs and checkpoints ----

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the round's clients and the cost so far.

        ``fed/clients`` reported and were used, ``fed/dropped`` received a model and did not report, ``fed/left_out``
        handed back invalid values; ``fed/aggregations`` and ``fed/models_sent`` (up and down) count from the start.
        """
        report = self.algorithm.report
        values = {
            "fed/clients": len(report.reported),
            "fed/dropped": report.dropped,
            "fed/left_out": len(report.left_out),
            "fed/aggregations": self.algorithm.server.aggregations,
            "fed/models_sent": self.algorithm.models_sent,
            **self.algorithm.values(),
        }
        log_round(trainer, pl_module, values)

    def state_dict(self) -> dict[str, Any]:
        """Return the server's state at the last round's end, with every circulating model."""
        if self._loop is None:
            return {}
        state = self.algorithm.state_dict()
        about = {"seed": self.seed, "federation": self._loop.federation_fingerprint(), "past": self.past_settings}
        choice = None if self.choice is None else vars(self.choice).copy()
        return {**state, **about, "choice": choice} if state else {}

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
        self._seed, self.past_settings = state_dict["seed"], state_dict["past"]
        self.choice = None if state_dict["choice"] is None else ExecutorChoice(**state_dict["choice"])
        self.algorithm.load_state_dict(state_dict)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep a client's optimizers out of a checkpoint that is written inside a round."""
        if self._loop is not None:
            self._loop.patch_checkpoint(checkpoint)
