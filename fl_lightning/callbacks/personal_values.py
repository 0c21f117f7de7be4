"""The models of single clients, for evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning._lightning.evaluation.predictions import called, compared, read_batch
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.processes import ends_with_fit
from fl_lightning.callbacks.checkpoint import FederatedCheckpoint
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.targets import gives_targets, inputs_of
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.layout import Layout, find_shared_names, tensors_by_name
from fl_lightning.parts.messages import same_values
from fl_lightning.parts.part import Part, by_key, personal_model, walk
from fl_lightning.words import short_repr


class PersonalModels:
    """The models by which clients are evaluated, where an algorithm has other ones than the server's.

    Args:
        parts: The parts that have them.
        module: Holds the model that all clients share.
        client_ids: The training clients.
    """

    def __init__(self, parts: Sequence[Part], module: pl.LightningModule, client_ids: Sequence[int]) -> None:
        self._parts = parts
        #: Where each client is in the order of the parts.
        self._places = {int(client): place for place, client in enumerate(client_ids)}
        federation = parts[0].federation
        held = tensors_by_name(module)
        pieces = [held[name].detach().flatten().to(federation.model) for name in federation.names]
        #: The model that all clients share, as a flat vector.
        self._shared = torch.cat(pieces)

    @property
    def are_current(self) -> bool:
        """Whether they were made in the round that is evaluated."""
        return all(part.personal_is_current for part in self._parts)

    def belong_to(self, shown: Tensor) -> bool:
        """Return whether the module holds the model that a fit has shown last."""
        return same_values(self._shared, shown)

    def tensors_of(self, client: int) -> dict[str, Tensor]:
        """Return a client's own tensors by name; none if it has not trained."""
        if client not in self._places:
            return {}
        model = personal_model(self._parts, self._places[client], self._shared)
        if model is self._shared:
            return {}
        return self._parts[0].federation.tensors(model)


def personal_parts(trainer: pl.Trainer) -> dict[str, Part]:
    """Return the parts of the trainer's algorithm that have models of clients, by their keys in checkpoints."""
    algorithm = _algorithm_of(trainer)
    if algorithm is None:
        return {}
    parts = by_key(walk(*algorithm.parts.values()))
    return {key: part for key, part in parts.items() if part.has_personal}


def personal_models(trainer: pl.Trainer, loaded: Mapping[str, Any] | None) -> PersonalModels | None:
    """Return the clients' models; ``None`` if there are none of the round that is evaluated.

    Outside of a fit a warning says why. Call it on all processes.

    Args:
        trainer: The trainer.
        loaded: The algorithm's state in the checkpoint that is evaluated; ``None`` if the fit's is.
    """
    algorithm = _algorithm_of(trainer)
    parts = personal_parts(trainer)
    if algorithm is None or not parts:
        return None
    module = trainer.lightning_module
    data = fit_trainer(trainer).datamodule
    assert isinstance(data, FederatedDataModule)
    is_fit = trainer.state.fn == "fit"
    if loaded is not None:
        of_checkpoint = _federation_of(loaded, module, data)
        models = PersonalModels(_restored(parts, of_checkpoint, loaded["parts"]), module, data.client_ids)
    else:
        if not is_fit and trainer.ckpt_path is not None:
            _warn(f"{trainer.ckpt_path} holds none, as with `save_weights_only=True`. Evaluate a whole checkpoint.")
            return None
        if not algorithm.has_begun:
            if ends_with_fit(trainer):
                _warn('a fit has made them in processes that have ended. Give `strategy="ddp"`, with which they stay.')
            return None
        having = list(parts.values())
        if trainer.world_size > 1:
            # The state has the clients of all processes.
            states = {key: part.state_dict() for key, part in parts.items()}
            having = _restored(parts, having[0].federation, states)
        models = PersonalModels(having, module, data.client_ids)
        if not is_fit and not models.belong_to(algorithm.run.shown):
            _warn(
                "they belong to the model that the fit left, and the module has other weights. Give `ckpt_path` the "
                "checkpoint of these weights, or evaluate the module that was fitted."
            )
            return None
    if models.are_current:
        return models
    if not is_fit:
        names = ", ".join(map(repr, parts.values()))
        _warn(
            f"{names} made the last ones in an earlier round. A fit that goes on from a checkpoint of this round, with "
            "`max_epochs` the number of its rounds, trains none, and makes them: trainer.fit(module, datamodule=data, "
            "ckpt_path=...). Then call trainer.test(module, datamodule=data)."
        )
    return None


def _restored(parts: Mapping[str, Part], federation: Federation, states: Mapping[str, Any]) -> list[Part]:
    """Return copies of parts that have the clients of all processes in this one, with their states."""
    copies = []
    for key, part in parts.items():
        restored = copy(part)
        restored.begin_fit(replace(federation, rank=0, num_ranks=1, state_dir=None))
        restored.load_state_dict(states[key])
        copies.append(restored)
    return copies


def _warn(reason: str) -> None:
    rank_zero_warn(f"ClientMetrics scores no models of single clients: {reason}")


def state_in(trainer: pl.Trainer, checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the state of the trainer's algorithm in a checkpoint, if it has models of clients."""
    aggregation = _aggregation(trainer)
    if aggregation is None:
        return None
    states = checkpoint.get("callbacks", {})
    state = states.get(aggregation.state_key, {})
    has_models = personal_parts(trainer).keys() <= state.get("parts", {}).keys()
    return state if has_models else None


def _aggregation(trainer: pl.Trainer) -> Callback | None:
    """Return the callback that has the algorithm."""
    for callback in fit_trainer(trainer).callbacks:
        if isinstance(getattr(callback, "algorithm", None), Algorithm):
            return callback
    return None


def _algorithm_of(trainer: pl.Trainer) -> Algorithm | None:
    algorithm = getattr(_aggregation(trainer), "algorithm", None)
    return algorithm if isinstance(algorithm, Algorithm) else None


def _federation_of(state: Mapping[str, Any], module: pl.LightningModule, data: FederatedDataModule) -> Federation:
    """Return the run of a checkpoint, as far as parts that only return models must know it."""
    held = tensors_by_name(module)
    names = state["names"]
    shared = find_shared_names(module, names)
    layout = Layout.of({name: held[name] for name in names}, len(state["lengths"]), shared)
    return Federation(data.client_sizes, state["first"].to(module.device), layout)


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
        own_rows = (owners == client).nonzero().squeeze(1).to(x.device)
        own_tensors = {name: _as(tensor, held[name]) for name, tensor in models.tensors_of(int(client)).items()}
        own_predictions, target = compared(trainer, batch, called(module, x[own_rows], own_tensors), outputs)
        rows.append(own_rows)
        predictions.append(own_predictions)
    order = torch.cat(rows).argsort()
    return torch.cat(predictions)[order], target


def _as(tensor: Tensor, held: Tensor) -> Tensor:
    """Return a tensor with the device and the type of the module's own."""
    tensor = tensor.to(held.device)
    if not held.is_floating_point():
        tensor = tensor.round()
    return tensor.to(held.dtype)


def check_monitors(trainer: pl.Trainer, prefix: str) -> None:
    """Raise an error if a callback of the fit looks at a score of clients' models in rounds that have none.

    Args:
        trainer: The trainer.
        prefix: How the names of these scores begin.

    Raises:
        ValueError: If there is such a callback.
    """
    every = max((part.personal_every for part in personal_parts(trainer).values()), default=1)
    validated = trainer.check_val_every_n_epoch or 1
    for callback in fit_trainer(trainer).callbacks:
        # FederatedCheckpoint passes over the other rounds.
        if not isinstance(callback, (EarlyStopping, ModelCheckpoint)) or isinstance(callback, FederatedCheckpoint):
            continue
        monitor = callback.monitor or ""
        if monitor.startswith(prefix) and validated % every:
            raise ValueError(
                f"`monitor={callback.monitor!r}` of {type(callback).__name__} needs clients' own models in every round "
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
