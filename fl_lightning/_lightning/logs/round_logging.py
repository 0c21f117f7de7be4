"""Loggers count rounds: what a round or an evaluation logs has the round as its x axis, in every logger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import lightning.pytorch as pl
from lightning.fabric.utilities.apply_func import convert_tensors_to_scalars
from lightning.pytorch.loggers import Logger, WandbLogger

from fl_lightning._lightning.fit_trainer import fit_trainer

#: The names that each W&B logger draws over rounds.
_over_rounds: WeakKeyDictionary[Logger, set[str]] = WeakKeyDictionary()


class RoundLog:
    """Stands in for the logger connector's ``log_metrics``: hands values to the loggers with the round as their step.

    Values that are logged with a step of their own, as those of training batches are, go Lightning's way.

    Args:
        trainer: The trainer.
        round_number: Rounds that the model has behind it.
        final: Whether the values are those of an evaluation after the fit. Weights & Biases gets them as a summary, so
            that a curve does not end with the value of an earlier model.
    """

    def __init__(self, trainer: pl.Trainer, round_number: int, *, final: bool = False) -> None:
        self._trainer = trainer
        self._round = round_number
        self._final = final
        self._connector = trainer._logger_connector
        self._stock = type(self._connector).log_metrics

    def install(self) -> None:
        """Take the place of Lightning's method."""
        self._connector.__dict__["log_metrics"] = self

    @staticmethod
    def remove(trainer: pl.Trainer) -> None:
        """Give the connector its own method back, if it lacks it."""
        trainer._logger_connector.__dict__.pop("log_metrics", None)

    def __call__(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Log values as ``log_metrics`` does; same arguments."""
        if step is not None or "step" in metrics or not metrics or not self._trainer.loggers:
            self._stock(self._connector, metrics, step)
            return
        self._connector._logged_metrics.update(metrics)
        values: dict[str, Any] = convert_tensors_to_scalars(metrics)
        values.setdefault("epoch", max(self._round - 1, 0))
        values.setdefault("round", self._round)
        for logger in self._trainer.loggers:
            if isinstance(logger, WandbLogger):
                self._log_to_wandb(logger, values)
            else:
                logger.log_metrics(metrics=values, step=self._round)
            logger.save()

    def _log_to_wandb(self, logger: WandbLogger, values: Mapping[str, Any]) -> None:
        if not self._trainer.is_global_zero:
            return
        prefix = f"{logger._prefix}{logger.LOGGER_JOIN_CHAR}" if logger._prefix else ""
        run = logger.experiment
        if self._final:
            own = {name: value for name, value in values.items() if name not in ("epoch", "round")}
            own["evaluated_round"] = values["round"]
            run.summary.update({f"{prefix}{name}": value for name, value in own.items()})
            return
        known = _over_rounds.setdefault(logger, set())
        for name in values.keys() - known:
            # W&B's own step counts calls, and Lightning's the optimizer steps of all clients.
            run.define_metric(f"{prefix}{name}", step_metric=None if name == "round" else f"{prefix}round")
            known.add(name)
        logger.log_metrics(values, step=self._trainer.fit_loop.epoch_loop._batches_that_stepped)


@contextmanager
def counting_rounds(trainer: pl.Trainer, round_number: int) -> Iterator[None]:
    """Let loggers count rounds for what is logged inside of the context."""
    RoundLog(trainer, round_number).install()
    try:
        yield
    finally:
        RoundLog.remove(trainer)


def log_run(trainer: pl.Trainer, module: pl.LightningModule, about: Mapping[str, Any]) -> None:
    """Give every logger what describes the run, with the hyperparameters that Lightning logs.

    TensorBoard shows the first hyperparameters that it is given, so that these are given together.
    """
    hyperparameters: dict[str, Any] = {}
    for source in (fit_trainer(trainer).datamodule, module):
        if source is not None and getattr(source, "_log_hyperparams", False):
            hyperparameters |= dict(source.hparams_initial)
    for logger in trainer.loggers:
        logger.log_hyperparams({**hyperparameters, "federated": dict(about)})


def rounds_of(checkpoint: Mapping[str, Any]) -> int | None:
    """Return the rounds that the model of a checkpoint has behind it; ``None`` if the checkpoint does not say."""
    try:
        return int(checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])
    except (KeyError, TypeError):
        return None


def wandb_run_ids(trainer: pl.Trainer) -> list[str]:
    """Return the ids of the runs of Weights & Biases that the trainer logs to."""
    return [str(logger.version) for logger in trainer.loggers if isinstance(logger, WandbLogger)]


def make_wandb_logger(**arguments: Any) -> WandbLogger:
    """Return a ``WandbLogger`` of some arguments, without Lightning's ``anonymous``, which W&B ignores and warns of."""
    logger = WandbLogger(**arguments)
    logger._wandb_init.pop("anonymous", None)
    return logger
