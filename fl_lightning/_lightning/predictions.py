"""Predictions and targets of batches, for all that compares the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from fl_lightning.data.targets import OutputsAndTargets, gives_targets, inputs_of, outputs_and_targets


def rule_of(trainer: pl.Trainer) -> OutputsAndTargets:
    """Return what says which element of a batch is the target: the data module, if it is a federated one."""
    rule: OutputsAndTargets = getattr(getattr(trainer, "datamodule", None), "outputs_and_targets", outputs_and_targets)
    return rule


def read_batch(
    trainer: pl.Trainer, module: pl.LightningModule, batch: Any, outputs: Any = None
) -> tuple[Tensor, Tensor]:
    """Return a batch's predictions and targets.

    Args:
        trainer: The trainer; its data module says which element is the target.
        module: It is called for the predictions unless a step has given them.
        batch: The batch, on the module's device.
        outputs: What a step returned for it.

    Raises:
        TypeError: If the batch does not say its inputs and targets, or predictions or targets are no tensors.
    """
    return compared(trainer, batch, outputs if gives_targets(outputs) else called(module, inputs_of(batch)))


def compared(trainer: pl.Trainer, batch: Any, outputs: Any, of_step: Any = None) -> tuple[Tensor, Tensor]:
    """Return the predictions of what a module or a step returned, and a batch's targets: the step's, if it gave some.

    Raises:
        TypeError: If the batch does not say its targets, or predictions or targets are no tensors.
    """
    preds, target = rule_of(trainer)(batch, outputs)
    if gives_targets(of_step):
        target = rule_of(trainer)(batch, of_step)[1]
    if not isinstance(preds, Tensor) or not isinstance(target, Tensor):
        raise TypeError(
            f"Predictions and targets must be tensors, got a {type(preds).__name__} and a {type(target).__name__}. "
            "Override `outputs_and_targets` of the data module, which takes them from a batch and its outputs."
        )
    return preds.detach(), target.detach()


def called(module: pl.LightningModule, inputs: Any, values: Mapping[str, Tensor] | None = None) -> Any:
    """Return what a module's ``forward`` returns for inputs, with other values of some parameters or buffers."""
    return torch.func.functional_call(module, dict(values), (inputs,)) if values else module(inputs)


@contextmanager
def preserved_modes(module: nn.Module) -> Iterator[None]:
    """Put every submodule back into the mode that it has."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def concatenated(batches: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Return the predictions, the targets and so on of several batches, each one after the other."""
    return [torch.cat(column) for column in zip(*batches, strict=True)]
