"""The way of a batch from a client's data to the module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities import move_data_to_device
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning._lightning.unmodified_classes import own_of_strategy


def batch_transfer(trainer: pl.Trainer) -> Callable[[Any], Any]:
    """Return how a batch gets from the client's data to the module: only the hooks that are overridden."""
    module, precision = trainer.lightning_module, trainer.precision_plugin
    device: torch.device = trainer.strategy.root_device
    if not is_plain_transfer(trainer):

        def with_hooks(batch: Any) -> Any:
            batch = precision.convert_input(batch)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
            return call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)

        return with_hooks
    if device.type == "cpu":  # a list of tensors is there already, and is made anew for each batch
        return lambda batch: batch if _is_of_tensors(batch) else move_data_to_device(batch, device)
    return lambda batch: move_data_to_device(batch, device)


def _is_of_tensors(batch: Any) -> bool:
    return type(batch) in (list, tuple) and all(type(part) is torch.Tensor and part.is_cpu for part in batch)


def is_plain_transfer(trainer: pl.Trainer) -> bool:
    """Whether a batch is only moved to the device."""
    module, data, precision = trainer.lightning_module, trainer.datamodule, trainer.precision_plugin
    names = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
    overridden = any(is_overridden(name, module) or (data is not None and is_overridden(name, data)) for name in names)
    plain = type(precision).convert_input is Precision.convert_input and "convert_input" not in vars(precision)
    return not overridden and plain and own_of_strategy(trainer.strategy) != "batch_to_device"


def takes_dataloader_iter(module: pl.LightningModule) -> bool:
    """Whether ``training_step`` asks for the data loader's iterator instead of a batch."""
    return "dataloader_iter" in inspect.signature(module.training_step).parameters
