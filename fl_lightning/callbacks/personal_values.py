"""The scores of clients by models of their own, and what monitors them."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning._lightning.evaluation.predictions import called, compared, read_batch
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning.callbacks.checkpoint import FederatedCheckpoint
from fl_lightning.callbacks.client_models import PersonalModels, as_held, personal_parts
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.targets import gives_targets, inputs_of
from fl_lightning.functional import tensors_by_name
from fl_lightning.words import short_repr


def check_scores(trainer: pl.Trainer, module: pl.LightningModule, batch: Any, outputs: Any) -> None:
    """Raise an error if the module cannot be called for a batch's predictions, or a step returned other ``"preds"``.

    Raises:
        TypeError: If the batch has several inputs.
        ValueError: If they differ.
    """
    try:
        inputs_of(batch)
    except TypeError as error:
        raise TypeError(
            "ClientMetrics calls the module with the input of a batch to evaluate each client with its own model, so a "
            f"batch must be (input, ..., target), or a dict of one input and a target, got {short_repr(batch)}."
        ) from error
    if not gives_targets(outputs):
        return
    given = read_batch(trainer, module, batch, outputs)[0]
    own = compared(trainer, batch, called(module, inputs_of(batch)), outputs)[0]
    if given.shape != own.shape or not torch.allclose(given, own, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise ValueError(
            "The evaluation step returned other `preds` than the module's `forward` does for the batch's inputs. "
            "ClientMetrics calls `forward` to evaluate each client with its own model. Let `forward` "
            "return the scores."
        )


def scores_of_clients(
    trainer: pl.Trainer, module: pl.LightningModule, batch: Any, outputs: Any, owners: Tensor, models: PersonalModels
) -> tuple[Tensor, Tensor]:
    """Return the module's predictions for a batch, each sample's by the model of its own client, and the targets.

    Args:
        trainer: The trainer; its data module says which element is the target.
        module: Its weights stay as they are.
        batch: Its inputs are a tensor of shape (n, ...).
        outputs: What a step returned for it; its targets are taken if it has some.
        owners: The client of each sample, shape (n,).
        models: The clients' own models. A client without one is given the module's.

    Raises:
        TypeError: If the inputs are no tensor of n rows.
    """
    x = inputs_of(batch)
    if not isinstance(x, Tensor) or x.shape[:1] != owners.shape:
        raise TypeError(
            f"ClientMetrics evaluates each client with its own model, so a batch's inputs must be a "
            f"tensor whose first dimension counts the {len(owners)} samples, got {short_repr(x)}."
        )
    held = tensors_by_name(module)
    rows = []
    predictions = []
    for client in owners.unique():
        is_own: Tensor = owners == client
        own_rows = is_own.nonzero().squeeze(1).to(x.device)
        own_tensors = {name: as_held(tensor, held[name]) for name, tensor in models.tensors_of(int(client)).items()}
        own_predictions, target = compared(trainer, batch, called(module, x[own_rows], own_tensors), outputs)
        rows.append(own_rows)
        predictions.append(own_predictions)
    order = torch.cat(rows).argsort()
    return torch.cat(predictions)[order], target


def check_monitors(trainer: pl.Trainer, prefix: str, always_personal: bool) -> None:
    """Raise an error if a callback of the fit looks at a score of clients' models that is not logged.

    Args:
        trainer: The trainer.
        prefix: How the names of these scores begin.
        always_personal: Whether they are logged where clients have no models of their own, too.

    Raises:
        ValueError: If the algorithm has no models of clients, or makes them in other rounds than those validated.
    """
    parts = personal_parts(trainer)
    every = max((part.personal_every for part in parts.values()), default=1)
    validated = trainer.check_val_every_n_epoch or 1
    for callback in fit_trainer(trainer).callbacks:
        if not isinstance(callback, (EarlyStopping, ModelCheckpoint)):
            continue
        if not (callback.monitor or "").startswith(prefix):
            continue
        name = f"`monitor={callback.monitor!r}` of {type(callback).__name__}"
        if not parts and not always_personal:
            raise ValueError(
                f"{name} needs models of single clients, and the algorithm has none. Give "
                "`ClientMetrics(always_personal=True)`, which logs the server's model under this name too."
            )
        # FederatedCheckpoint passes over the other rounds.
        if validated % every and not isinstance(callback, FederatedCheckpoint):
            raise ValueError(
                f"{name} needs clients' own models in every round "
                f"that is validated, but they are made in every {every}th round, and every {validated}th is validated. "
                f"Give the algorithm `every={validated}`, or `Trainer(check_val_every_n_epoch={every})`."
            )


def warn_of_clients_without_values(trainer: pl.Trainer, reader: object) -> None:
    """Warn if there are personal parameters, and validation or test clients that do not train, so that have none."""
    parts = personal_parts(trainer)
    data = getattr(trainer, "datamodule", None)
    if not parts or not isinstance(data, FederatedDataModule):
        return
    trained = set(data.client_ids)
    stages = {"validation": data.eval_client_ids("val"), "test": data.eval_client_ids("test")}
    without = []
    for name, ids in stages.items():
        if ids is not None and len(ids) and trained.isdisjoint(ids.tolist()):
            without.append(name)
    if without:
        names = ", ".join(map(repr, parts.values()))
        rank_zero_warn(
            f"{type(reader).__name__} evaluates each client with its own model ({names}), but the "
            f"{' and '.join(without)} clients do not train, so they have none: they are evaluated with the model that "
            "all share. Give the data module `split=WithinClientSplit(...)` to evaluate the clients that train."
        )
