"""Unsupported Trainer features raise an error before training."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

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
from torch import Tensor

from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning.data import FederatedDataModule
from fl_lightning.settings import check_lightning
from fl_lightning.words import quantity

_AVERAGES = (
    "puts a mean of its own in the place of the server's model, and takes weights in the middle of a round, which are "
    "one client's, or at its end. Average on the server instead: FedAvg(server_lr=...) below 1 smooths the server's "
    "steps. For a mean over rounds, call `update_parameters(pl_module)` of a `torch.optim.swa_utils.AveragedModel` in "
    "`on_round_end` of a callback, and evaluate its `module`."
)
_TRIES = (
    "runs trial steps that would count as training of clients. Find the value centrally, without the aggregation "
    "callback, and pass it to the federated run."
)
#: Lightning's callbacks that cannot work, and why.
_CALLBACKS: dict[type[Callback], str] = {
    StochasticWeightAveraging: _AVERAGES,
    WeightAveraging: _AVERAGES,
    BatchSizeFinder: _TRIES,
    LearningRateFinder: _TRIES,
    ModelPruning: "replaces parameters during training, so clients and server would no longer hold the same ones. "
    "Prune before or after the federated run.",
}


def refuse_unsupported(trainer: pl.Trainer, aggregation: Callback) -> None:
    """Raise ``ValueError`` for the first setting that cannot work, before the fit; ``TypeError`` for other packages'.

    Args:
        trainer: The trainer, in ``setup("fit")``.
        aggregation: The aggregation callback.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        given = trainer.fit_loop._data_source.instance if data is None else data
        raise ValueError(
            f"{type(aggregation).__name__} needs to know which client holds which data, but got a "
            f"{type(given).__name__}. Call trainer.fit(module, datamodule=...) with a FederatedDataModule. To "
            "distribute one data set among clients: "
            "fl_lightning.datamodules.TorchDatasetDataModule(loader.dataset, partitioner). For data that clients "
            "already hold: TensorDataModule(clients=[(x, y), ...]) or ClientDatasetsModule(clients=[dataset, ...])."
        )
    if type(data).train_dataloader is not FederatedDataModule.train_dataloader:
        rank_zero_warn(
            f"`{type(data).__name__}.train_dataloader` is not called in a federated fit: clients' batches come from "
            "`client_batches`. Change samples in `load` or by `train_transform`, their order by `sampler`, and batches "
            "in `client_batches`."
        )
    refuse_settings(trainer, aggregation)


def refuse_settings(trainer: pl.Trainer, aggregation: Callback) -> None:
    """Raise as :func:`refuse_unsupported` for settings of a trainer that need not have a module or data yet."""
    for callback in fit_trainer(trainer).callbacks:
        check_lightning("A callback", callback)
    _refuse(_in_settings(trainer, type(aggregation).__name__))


def refuse_optimizers(trainer: pl.Trainer) -> None:
    """Raise ``ValueError`` for optimizers and schedules that cannot work, once they are set up."""
    _refuse(_in_optimizers(trainer))


def _refuse(problems: Iterator[str]) -> None:
    if (problem := next(problems, None)) is not None:
        raise ValueError(problem)


def _in_settings(trainer: pl.Trainer, name: str) -> Iterator[str]:
    seconds = getattr(trainer, "_val_check_time_interval", None)  # a time, in the place of the trainer's attribute
    interval = trainer.val_check_interval if seconds is None else timedelta(seconds=seconds)
    # 1 is one batch, 1.0 a whole round
    if trainer.check_val_every_n_epoch is None or isinstance(interval, int) or interval != 1.0:
        yield (
            f"Validation inside a round would see one client's weights, got `val_check_interval={interval!r}` and "
            f"`check_val_every_n_epoch={trainer.check_val_every_n_epoch!r}`. Leave `val_check_interval` at 1.0 and "
            "validate every n rounds with `check_val_every_n_epoch=n`."
        )
    strategy, rounds = trainer.strategy, trainer.max_epochs
    for callback in fit_trainer(trainer).callbacks:
        for kind, why in _CALLBACKS.items():
            if isinstance(callback, kind):
                yield f"{type(callback).__name__} {why}"
        if isinstance(callback, ModelCheckpoint) and (
            callback._every_n_train_steps >= 1 or callback._train_time_interval is not None
        ):
            yield (
                "ModelCheckpoint with `every_n_train_steps` or `train_time_interval` would save in the middle of a "
                "round. Save at the end of rounds with `every_n_epochs=n`; an epoch is a round."
            )
        epoch = callback.unfreeze_backbone_at_epoch if isinstance(callback, BackboneFinetuning) else None
        if epoch is not None and (rounds is None or rounds < 0 or epoch < rounds):
            yield (
                f"BackboneFinetuning(unfreeze_backbone_at_epoch={epoch}) would train other parameters from round "
                f"{epoch} on, and clients' models would no longer match the server's. Fit twice: first with the "
                "backbone frozen, then with `requires_grad=True` from those weights."
            )
    if not isinstance(strategy, (SingleDeviceStrategy, DDPStrategy)):
        yield (
            f"{name} cannot run under {type(strategy).__name__}: a client's model must be whole on one device. "
            'Use strategy="auto" or strategy="ddp".'
        )
    if trainer.world_size > 1 and getattr(strategy, "_layer_sync", None) is not None:
        yield (
            "`Trainer(sync_batchnorm=True)` would mix the batches of clients that train on different processes. "
            "Leave it off; the running statistics are averaged when the server aggregates."
        )


def _in_optimizers(trainer: pl.Trainer) -> Iterator[str]:
    module = trainer.lightning_module
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.interval == "step":
            yield (
                "`ReduceLROnPlateau` with interval='step' cannot run federatedly: what it monitors is known once a "
                "round. Give interval='epoch' in `configure_optimizers`; an epoch is a round."
            )
    own = {id(parameter) for parameter in module.parameters()}
    for optimizer in trainer.optimizers:
        given: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        foreign = [tuple(parameter.shape) for parameter in given if id(parameter) not in own]
        if foreign:
            yield (
                f"{type(optimizer).__name__} trains {quantity(len(foreign), 'tensor')} (shape {foreign[0]}"
                f"{' and others' if len(foreign) > 1 else ''}) that {type(module).__name__} does not have among its "
                "parameters, so they would go from client to client, and the server would never see them. Assign "
                "what holds them to an attribute of the module; several in an `nn.ModuleList`, not in a list."
            )
