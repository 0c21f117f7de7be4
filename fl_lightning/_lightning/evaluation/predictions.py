"""Predictions and targets of batches, for all that compares the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from fl_lightning.data.targets import (
    OutputsAndTargets,
    UnknownTargetError,
    gives_targets,
    inputs_of,
    outputs_and_targets,
)
from fl_lightning.functional import called_with


def rule_of(trainer: pl.Trainer) -> OutputsAndTargets:
    """Return what says which element of a batch is the target: the data module, if it is a federated one."""
    data = getattr(trainer, "datamodule", None)
    rule: OutputsAndTargets = getattr(data, "outputs_and_targets", outputs_and_targets)
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
    rule = rule_of(trainer)
    if not gives_targets(of_step):
        preds, target = rule(batch, outputs)
    else:
        target = rule(batch, of_step)[1]
        try:
            preds = rule(batch, outputs)[0]
        except UnknownTargetError:
            # This is the default rule, which leaves outputs as they are.
            preds = outputs
    if not isinstance(preds, Tensor) or not isinstance(target, Tensor):
        raise TypeError(
            f"Predictions and targets must be tensors, got a {type(preds).__name__} and a {type(target).__name__}. "
            "Override `outputs_and_targets` of the data module, which takes them from a batch and its outputs."
        )
    return preds.detach(), target.detach()


def called(module: pl.LightningModule, inputs: Any, values: Mapping[str, Tensor] | None = None) -> Any:
    """Return what a module's ``forward`` returns for inputs, with other values of some parameters or buffers.

    An error of ``forward`` says who has called it, and how a step gives the predictions itself.
    """
    try:
        if values:
            return called_with(module, values, (inputs,))
        return module(inputs)
    except Exception as error:
        error.add_note(
            f"`{type(module).__name__}.forward` was called with the inputs of an evaluation batch, its first element, "
            "since predictions of single samples are needed. It must take them and return scores (n, C). Or, where "
            'clients have no models of their own, let `validation_step` and `test_step` return a dict with "preds" '
            '(n, C) and "target" (n,).'
        )
        raise


@contextmanager
def preserved_modes(module: nn.Module) -> Iterator[None]:
    """Put every submodule back into the mode that it has."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def joined(pieces: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the predictions and targets of several batches, one after the other.

    Where samples of one batch have another shape than those of the next, such as sentences that are padded batch by
    batch, or pictures of several sizes, there is a row for each token or pixel: scores (N, C) and targets (N,), or
    predictions (N,) where they have the targets' shape.

    Raises:
        ValueError: If the shapes differ, and those of predictions and targets do not say where the classes are.
    """
    preds = [piece[0] for piece in pieces]
    target = [piece[1] for piece in pieces]
    if len({(each.shape[1:], labels.shape[1:]) for each, labels in pieces}) > 1:
        rows = [_by_position(each, labels) for each, labels in pieces]
        if len({each.shape[1:] for each in rows}) > 1:
            shapes = ", ".join(str((tuple(each.shape), tuple(labels.shape))) for each, labels in pieces[:4])
            raise ValueError(
                "Where samples of several shapes are evaluated, targets must have the shape of the predictions, or it "
                f"without a dimension of classes, such as (n, T, C) and (n, T), got {shapes}. Override "
                "`outputs_and_targets` of the data module, or pad all samples to one shape."
            )
        preds = rows
        target = [labels.flatten() for labels in target]
    return torch.cat(preds), torch.cat(target)


def _by_position(preds: Tensor, target: Tensor) -> Tensor:
    """Return the predictions of a batch with one row for each of its targets, or as they are if they do not fit."""
    if preds.shape == target.shape:
        return preds.flatten()
    # Classes are last in three dimensions and second in more, as for `scores_and_classes`.
    for axis in (2, 1) if preds.ndim == 3 else (1, preds.ndim - 1):
        if preds.shape[:axis] + preds.shape[axis + 1 :] == target.shape:
            return preds.movedim(axis, -1).flatten(0, -2)
    return preds
