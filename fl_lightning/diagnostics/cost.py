"""The cost of a federated fit: models and bytes sent, local steps and samples."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.diagnostics.observer import RoundObserver, aggregation_of, loop_of
from fl_lightning.metrics import suitable_mode
from fl_lightning.parts.messages import ClientResult
from fl_lightning.settings import Finite, check_arguments


class Communication(RoundObserver):
    """Logs the traffic so far, and the cost of reaching a target.

    ``fed/models_down`` and ``fed/models_up`` count vectors of the model's length, so SCAFFOLD's control variate counts
    as a second one. ``fed/bytes_down`` and ``fed/bytes_up`` count every number that travels, with the bits that it
    takes: each tensor in its own type, or as an exchange compresses it. Where groups of clients have edges, these
    are the messages between clients and edges; ``fed/edge_models_down`` and the like count those between edges and the
    server. When the target is reached,
    ``fed/rounds_to_target`` and ``fed/cost_to_target`` are logged from then on; the cost is in rounds of FedAvg,
    ``rounds x vectors`` (Acar et al. 2021: twice the rounds for SCAFFOLD).

    Args:
        target: Value to be reached by ``monitor``; none if ``None``.
        monitor: Name of a validation metric.
        mode: Whether larger (``"max"``) or smaller (``"min"``) values are better.

    Attributes:
        rounds_to_target: Rounds after which the target was first reached; ``None`` if it was not.
        cost_to_target: The same in rounds of FedAvg.

    Raises:
        TypeError: If ``monitor`` is not a string.
        ValueError: If ``mode`` is unknown, or ``target`` is not a finite number; in a fit, if the validation does not
            log ``monitor``.
    """

    def __init__(
        self, target: Finite | None = None, monitor: str = "val_acc", mode: Literal["max", "min"] = "max"
    ) -> None:
        self.target = target
        self.monitor = monitor
        self.mode = mode
        check_arguments(self)
        self.reset()

    def reset(self) -> None:
        """Start with a target that is not reached."""
        self.rounds_to_target: int | None = None
        self.cost_to_target: int | None = None
        self._rounds = 0
        self._validated = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that clients train, and warn of a loss that would have to rise to the target."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit" or self.target is None:
            return
        suitable = suitable_mode(self.monitor, self.mode)
        if suitable is not None:
            moves = "rises" if self.mode == "max" else "falls"
            rank_zero_warn(
                f"Communication(monitor={self.monitor!r}) takes the target as reached when {self.monitor} {moves} "
                f'to it, because its `mode` is "{self.mode}". Give `mode="{suitable}"`.'
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that the validation metrics are known."""
        self._validated |= not trainer.sanity_checking

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count what was sent."""
        traffic = aggregation_of(trainer, self).algorithm.traffic
        self._rounds = trainer.current_epoch + 1
        self.values = {
            "fed/models_down": traffic.models_down,
            "fed/models_up": traffic.models_up,
            "fed/bytes_down": traffic.bits_down / 8,
            "fed/bytes_up": traffic.bits_up / 8,
        }
        if traffic.edge_models_down:
            self.values |= {
                "fed/edge_models_down": traffic.edge_models_down,
                "fed/edge_models_up": traffic.edge_models_up,
                "fed/edge_bytes_down": traffic.edge_bits_down / 8,
                "fed/edge_bytes_up": traffic.edge_bits_up / 8,
            }

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the validation metric with the target, and log.

        Raises:
            ValueError: If a validation did not log the metric.
        """
        if self.target is not None and self.rounds_to_target is None:
            self._compare(trainer, self.target)
        if self.rounds_to_target is not None and self.cost_to_target is not None:
            self.values["fed/rounds_to_target"] = self.rounds_to_target
            self.values["fed/cost_to_target"] = self.cost_to_target
        super().on_train_epoch_end(trainer, pl_module)

    def _compare(self, trainer: pl.Trainer, target: float) -> None:
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            if self._validated:
                raise ValueError(
                    f"`monitor` must be a metric that the module logs, got {self.monitor!r}; there are "
                    f"{', '.join(sorted(metrics)) or 'none'}."
                )
            return
        value = float(metrics[self.monitor])
        is_reached = value >= target if self.mode == "max" else value <= target
        if is_reached:
            vectors = aggregation_of(trainer, self).algorithm.objective.vectors_sent
            self.rounds_to_target = self._rounds
            self.cost_to_target = self._rounds * vectors

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Warn of a target with which nothing was ever compared."""
        if self.target is not None and self.monitor not in trainer.callback_metrics:
            rank_zero_warn(
                f"Communication: there was no validation, so {self.monitor!r} was never logged and never compared with "
                f"`target={self.target!r}`. Give validation data, or leave `target` out."
            )

    def __str__(self) -> str:
        """Return the rounds to the target, ``"R+"`` if it was not reached in R rounds."""
        return f"{self._rounds}+" if self.rounds_to_target is None else str(self.rounds_to_target)

    def state_dict(self) -> dict[str, Any]:
        """Return when the target was reached."""
        return {"rounds": self.rounds_to_target, "cost": self.cost_to_target, "seen": self._rounds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what a checkpoint's run had reached."""
        self.rounds_to_target = state_dict["rounds"]
        self.cost_to_target = state_dict["cost"]
        self._rounds = state_dict["seen"]


class LocalCompute(RoundObserver):
    """Logs the clients' work so far: ``fed/local_steps`` of the optimizer and ``fed/local_samples`` gone through.

    Attributes:
        rounds_of_client: How often each client trained, by client.
    """

    #: Client, steps and samples of each result of the round, on this process.
    _results: list[tuple[int, int, int]]

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start to count."""
        self.rounds_of_client: Counter[int] = Counter()
        self._steps = 0
        self._samples = 0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin a round."""
        self._results = []

    def on_client_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, result: ClientResult) -> None:
        """Note the client's work."""
        samples = loop_of(trainer).training.batches.num_samples(result.task)
        self._results.append((result.task.client, result.num_steps, samples))

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add up the round's work."""
        for of_process in loop_of(trainer).gather_objects(self._results):
            for client, steps, samples in of_process:
                self.rounds_of_client[client] += 1
                self._steps += steps
                self._samples += samples
        self.values = {"fed/local_steps": self._steps, "fed/local_samples": self._samples}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"clients": dict(self.rounds_of_client), "steps": self._steps, "samples": self._samples}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the counts of a checkpoint."""
        self.rounds_of_client = Counter(state_dict["clients"])
        self._steps = state_dict["steps"]
        self._samples = state_dict["samples"]
