"""Unsupported Trainer features raise an error before training."""

from __future__ import annotations

from datetime import timedelta
from inspect import signature

import lightning.pytorch as pl
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.checks import counted
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.datamodule import check_lightning


class UnsupportedError(ValueError):
    """A trainer setting that cannot work with federated training."""


def refuse_unsupported(trainer: pl.Trainer, aggregation: Callback) -> None:
    """Raise ``UnsupportedError`` (a ``ValueError``) for the first setting that cannot work.

    A callback of the package ``pytorch_lightning`` is a ``TypeError``.

    Args:
        trainer: The trainer, in ``setup("fit")``.
        aggregation: The aggregation callback; a second one of its kind is refused.
    """
    _refuse_data(trainer, type(aggregation).__name__)
    refuse_settings(trainer, aggregation)
    refuse_steps(trainer.lightning_module)


def refuse_settings(trainer: pl.Trainer, aggregation: Callback) -> None:
    """Raise as :func:`refuse_unsupported` for settings of a trainer that need not have a module or data yet."""
    name = type(aggregation).__name__
    _refuse_validation_inside_rounds(trainer)
    if trainer.accumulate_grad_batches < 1:
        raise UnsupportedError(f"`accumulate_grad_batches` must be at least 1, got {trainer.accumulate_grad_batches}.")
    for callback in trainer.callbacks:
        _refuse_callback(callback)
        _refuse_unfreezing(callback, trainer.max_epochs)
    strategy = trainer.strategy
    if not isinstance(strategy, (SingleDeviceStrategy, DDPStrategy)):
        raise UnsupportedError(
            f"{name} cannot run under {type(strategy).__name__}: a client's model must be whole on one device. "
            'Use strategy="auto" or strategy="ddp".'
        )
    if trainer.world_size > 1 and getattr(strategy, "_layer_sync", None) is not None:
        raise UnsupportedError(
            "`Trainer(sync_batchnorm=True)` would mix the batches of clients that train on different processes. "
            "Leave it off; the running statistics are averaged when the server aggregates."
        )


def refuse_steps(module: pl.LightningModule) -> None:
    """Raise ``UnsupportedError`` for a ``training_step`` that cannot work."""
    if "dataloader_iter" in signature(module.training_step).parameters:
        raise UnsupportedError(
            "`training_step(self, dataloader_iter)` cannot run federatedly: a round has no single data loader. "
            "Use `training_step(self, batch, batch_idx)`."
        )


def refuse_step_plateau(trainer: pl.Trainer) -> None:
    """Raise ``UnsupportedError`` for a step-wise ``ReduceLROnPlateau``, once the schedules are set up."""
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.interval == "step":
            raise UnsupportedError(
                "`ReduceLROnPlateau` with interval='step' cannot run federatedly: what it monitors is known once a "
                "round. Give interval='epoch' in `configure_optimizers`; an epoch is a round."
            )


def refuse_foreign_parameters(trainer: pl.Trainer) -> None:
    """Raise ``UnsupportedError`` if optimizers, once they are set up, train what is no parameter of the module."""
    module = trainer.lightning_module
    own = {id(parameter) for parameter in module.parameters()}
    for optimizer in trainer.optimizers:
        given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        foreign = [tuple(parameter.shape) for parameter in given if id(parameter) not in own]
        if foreign:
            raise UnsupportedError(
                f"{type(optimizer).__name__} trains {counted(len(foreign), 'tensor')} (shape {foreign[0]}"
                f"{' and others' if len(foreign) > 1 else ''}) that {type(module).__name__} does not have among its "
                "parameters, so they would go from client to client, and the server would never see them. Assign "
                "what holds them to an attribute of the module; several in an `nn.ModuleList`, not in a list."
            )


def _refuse_data(trainer: pl.Trainer, name: str) -> None:
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        given = trainer.fit_loop._data_source.instance if data is None else data
        raise UnsupportedError(
            f"{name} needs to know which client holds which data, but got a {type(given).__name__}. Call "
            "trainer.fit(module, datamodule=...) with a FederatedDataModule. To distribute one data set among clients: "
            "fl_lightning.datamodules.TorchDatasetDataModule(loader.dataset, partitioner). For data that clients "
            "already hold: TensorDataModule(clients=[(x, y), ...]) or ClientDatasetsModule(clients=[dataset, ...])."
        )


def warn_of_unused_loader(data: FederatedDataModule) -> None:
    """Warn if a data module overrides ``train_dataloader``, which no federated fit calls."""
    if type(data).train_dataloader is not FederatedDataModule.train_dataloader:
        rank_zero_warn(
            f"`{type(data).__name__}.train_dataloader` is not called in a federated fit: clients' batches come from "
            "`client_batches`. Change samples in `load` or by `train_transform`, their order by `sampler`, and batches "
            "in `client_batches`."
        )


def _refuse_validation_inside_rounds(trainer: pl.Trainer) -> None:
    seconds = getattr(trainer, "_val_check_time_interval", None)  # a time, in the place of the trainer's attribute
    interval = trainer.val_check_interval if seconds is None else timedelta(seconds=seconds)
    # 1 is one batch, 1.0 a whole round
    if trainer.check_val_every_n_epoch is None or isinstance(interval, int) or interval != 1.0:
        raise UnsupportedError(
            "Validation inside a round would see one client's weights, got "
            f"`val_check_interval={interval!r}` and "
            f"`check_val_every_n_epoch={trainer.check_val_every_n_epoch!r}`. Leave `val_check_interval` at 1.0 and "
            "validate every n rounds with `check_val_every_n_epoch=n`."
        )


def _refuse_unfreezing(callback: Callback, max_epochs: int | None) -> None:
    if not isinstance(callback, BackboneFinetuning):
        return
    epoch = callback.unfreeze_backbone_at_epoch
    if max_epochs is None or max_epochs < 0 or epoch < max_epochs:
        raise UnsupportedError(
            f"BackboneFinetuning(unfreeze_backbone_at_epoch={epoch}) would train other parameters from round {epoch} "
            "on, and clients' models would no longer match the server's. Fit twice: first with the backbone frozen, "
            "then with `requires_grad=True` from those weights."
        )


def _refuse_callback(callback: Callback) -> None:
    check_lightning("A callback", callback)
    if isinstance(callback, ModelCheckpoint):
        if callback._every_n_train_steps >= 1 or callback._train_time_interval is not None:
            raise UnsupportedError(
                "ModelCheckpoint with `every_n_train_steps` or `train_time_interval` would save in the middle of a "
                "round. Save at the end of rounds with `every_n_epochs=n`; an epoch is a round."
            )
    elif isinstance(callback, (StochasticWeightAveraging, WeightAveraging)):
        raise UnsupportedError(
            f"{type(callback).__name__} puts a mean of its own in the place of the server's model, and takes weights "
            "in the middle of a round, which are one client's, or at its end. Average on the server instead: "
            "FedAvg(server_lr=...) below 1 smooths the server's steps. For a mean over rounds, call "
            "`update_parameters(pl_module)` of a `torch.optim.swa_utils.AveragedModel` in `on_round_end` of a "
            "callback, and evaluate its `module`."
        )
    elif isinstance(callback, (BatchSizeFinder, LearningRateFinder)):
        raise UnsupportedError(
            f"{type(callback).__name__} runs trial steps that would count as training of clients. Find the value "
            "centrally, without the aggregation callback, and pass it to the federated run."
        )
    elif isinstance(callback, ModelPruning):
        raise UnsupportedError(
            "ModelPruning replaces parameters during training, so clients and server would no longer hold the same "
            "ones. Prune before or after the federated run."
        )
