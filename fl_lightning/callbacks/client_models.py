"""The models of single clients: for evaluations, and as files for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fl_lightning._lightning.checkpoint_files import read_checkpoint
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.processes import ends_with_fit
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.preprocessing import Preprocessing, choose
from fl_lightning.functional import tensors_by_name
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.kept import by_key
from fl_lightning.parts.layout import Layout
from fl_lightning.parts.messages import same_values
from fl_lightning.parts.part import Part, personal_model, walk


class NoClientModelsError(ValueError):
    """Clients have models of their own by the algorithm, but those that are asked for are not there."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"There are no models of single clients: {reason}")
        self.reason = reason


class PersonalModels:
    """The models by which clients are evaluated, where an algorithm has other ones than the server's.

    Args:
        parts: The parts that have them.
        shared: The tensors of the model that all clients share, by name.
        client_ids: The training clients.
    """

    def __init__(self, parts: Sequence[Part], shared: Mapping[str, Tensor], client_ids: Sequence[int]) -> None:
        self._parts = parts
        #: Where each client is in the order of the parts.
        self._places = {int(client): place for place, client in enumerate(client_ids)}
        federation = parts[0].federation
        pieces = [shared[name].detach().flatten().to(federation.model) for name in federation.names]
        #: The model that all clients share, as a flat vector.
        self._shared = torch.cat(pieces)

    def check_current(self) -> None:
        """Raise ``NoClientModelsError`` if they were made in an earlier round than the one that is evaluated."""
        if all(part.personal_is_current for part in self._parts):
            return
        names = ", ".join(map(repr, self._parts))
        raise NoClientModelsError(
            f"{names} made the last ones in an earlier round. A fit that goes on from a checkpoint of this round, with "
            "`max_epochs` the number of its rounds, trains none, and makes them: trainer.fit(module, datamodule=data, "
            "ckpt_path=...). Then evaluate or export them."
        )

    def belong_to(self, shown: Tensor) -> bool:
        """Return whether the shared model is the one that a fit has shown last."""
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


def client_model(
    trainer: pl.Trainer,
    client: int,
    *,
    ckpt_path: str | Path | None = None,
    module: pl.LightningModule | None = None,
    datamodule: FederatedDataModule | None = None,
) -> dict[str, Tensor]:
    """Return the model by which a client is evaluated, as a ``state_dict`` of the user's module.

    It is the client's own model, or the server's with the client's own parameters, or that of its cluster, as the
    algorithm has it; where clients have nothing of their own, and for a client that has not trained yet, it is the
    server's. ``module.load_state_dict`` takes it, and so does the same module in a program without this library.

    With several processes, call it on all of them.

    Args:
        trainer: The trainer whose callbacks have the algorithm.
        client: The client, by its number in the data module.
        ckpt_path: The checkpoint that holds the model; by default the model is that of the trainer's last fit.
        module: The module, of which the checkpoint is; by default the trainer's. Its weights stay as they are.
        datamodule: The data module; by default the trainer's.

    Returns:
        Copies of the tensors, by their names in ``module.state_dict()``.

    Raises:
        ValueError: If there is no such client, no fit and no checkpoint, or if clients' own models are not there.

    Example:
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[FedPer("head", clients_per_round=2)])
        >>> trainer.fit(module, datamodule=data)
        >>> state = client_model(trainer, 1)
        >>> module.load_state_dict(state)
    """
    algorithm = _algorithm_of(trainer)
    if algorithm is None:
        raise ValueError("`trainer` must have an aggregation callback, such as FedAvg().")
    if ckpt_path is None and (module is not None or datamodule is not None):
        raise ValueError(
            "`module` and `datamodule` are those of a checkpoint: give `ckpt_path` too, or leave them out."
        )
    module = module or getattr(trainer, "lightning_module", None)
    data = datamodule or getattr(trainer, "datamodule", None)
    if module is None or not isinstance(data, FederatedDataModule):
        raise ValueError("`trainer` has fitted nothing yet. Give `ckpt_path`, `module` and `datamodule`.")
    if datamodule is not None:
        datamodule.prepare_data()
        datamodule.setup("fit")
    if client not in data.client_ids:
        raise ValueError(f"`client` must be one of the {len(data.client_ids)} clients that train, got {client!r}.")

    shared: Mapping[str, Any]
    if ckpt_path is None:
        shared = tensors_by_name(module)
        models = _models_of_fit(trainer, module, data)
    else:
        checkpoint = read_checkpoint(Path(ckpt_path))
        # A checkpoint has no buffers that are not persistent.
        shared = {**tensors_by_name(module), **checkpoint["state_dict"]}
        models = None
        if personal_parts(trainer):
            state = state_in(trainer, checkpoint)
            if state is None:
                raise NoClientModelsError(_holds_none(ckpt_path))
            models = _models_of_checkpoint(trainer, state, shared, module, data)
    if models is not None:
        models.check_current()
    own = {} if models is None else models.tensors_of(int(client))

    # A tensor that several layers share has one name for the algorithm, and several in a `state_dict`.
    names = {id(tensor): name for name, tensor in tensors_by_name(module).items()}
    found: dict[str, Any] = {}
    for key, held in module.state_dict(keep_vars=True).items():
        name = names.get(id(held), key)
        value = own.get(name, shared.get(name, held))
        found[key] = as_held(value, held).detach().clone() if isinstance(held, Tensor) else value
    return found


def load_preprocessing(ckpt_path: str | Path, client: int | None = None) -> Preprocessing:
    """Return what a fit's data module did to inputs (``standardize``, ``impute``), from a checkpoint of the fit.

    Args:
        ckpt_path: The checkpoint.
        client: The client, if each has statistics of its own (``"local"``).

    Raises:
        ValueError: If the checkpoint holds none; if a client must be named, or this one does not train.

    Example:
        >>> preprocessing = load_preprocessing("last.ckpt")  # doctest: +SKIP
        >>> deployed = nn.Sequential(preprocessing, module)  # doctest: +SKIP
    """
    for state in read_checkpoint(Path(ckpt_path)).values():
        if isinstance(state, Mapping) and "preprocessing" in state:
            return choose(state["preprocessing"], client)
    raise ValueError(f"{ckpt_path} holds no preprocessing: its data module had neither `standardize` nor `impute`.")


def personal_models(trainer: pl.Trainer, loaded: Mapping[str, Any] | None) -> PersonalModels | None:
    """Return the models of the clients that the trainer evaluates; ``None`` if the algorithm has none.

    Call it on all processes.

    Args:
        trainer: The trainer.
        loaded: The algorithm's state in the checkpoint that is evaluated; ``None`` if the fit's is.

    Raises:
        NoClientModelsError: If there are none of the round that is evaluated.
    """
    if not personal_parts(trainer):
        return None
    module = trainer.lightning_module
    data = fit_trainer(trainer).datamodule
    assert isinstance(data, FederatedDataModule)
    models: PersonalModels | None
    if loaded is not None:
        models = _models_of_checkpoint(trainer, loaded, tensors_by_name(module), module, data)
    else:
        if trainer.state.fn != "fit" and trainer.ckpt_path is not None:
            raise NoClientModelsError(_holds_none(trainer.ckpt_path))
        models = _models_of_fit(trainer, module, data)
    if models is not None:
        models.check_current()
    return models


def _models_of_checkpoint(
    trainer: pl.Trainer,
    state: Mapping[str, Any],
    shared: Mapping[str, Tensor],
    module: pl.LightningModule,
    data: FederatedDataModule,
) -> PersonalModels:
    """Return the models of the clients in the algorithm's state of a checkpoint, with its shared model."""
    federation = _federation_of(state, module, data)
    parts = _restored(personal_parts(trainer), federation, state["parts"])
    return PersonalModels(parts, shared, data.client_ids)


def _models_of_fit(trainer: pl.Trainer, module: pl.LightningModule, data: FederatedDataModule) -> PersonalModels | None:
    """Return the models of the clients in the fit that goes on or was the last one; ``None`` if it has none."""
    algorithm = _algorithm_of(trainer)
    parts = personal_parts(trainer)
    if algorithm is None or not parts:
        return None
    if not algorithm.has_begun:
        if ends_with_fit(trainer):
            raise NoClientModelsError(
                'a fit has made them in processes that have ended. Give `strategy="ddp"`, with which they stay.'
            )
        # Before the first fit all clients have the module as it is.
        return None
    having = list(parts.values())
    if trainer.world_size > 1:
        # The state has the clients of all processes.
        states = {key: part.state_dict() for key, part in parts.items()}
        having = _restored(parts, having[0].federation, states)
    models = PersonalModels(having, tensors_by_name(module), data.client_ids)
    if not _is_fitting(trainer) and not models.belong_to(algorithm.run.shown):
        raise NoClientModelsError(
            "they belong to the model that the fit left, and the module has other weights. Give `ckpt_path` the "
            "checkpoint of these weights, or take the module that was fitted."
        )
    return models


def _is_fitting(trainer: pl.Trainer) -> bool:
    return trainer.state.fn == "fit" and trainer.state.status == "running"


def _holds_none(path: object) -> str:
    return f"{path} holds none. Give a whole checkpoint of this algorithm, not one of `save_weights_only=True`."


def _restored(parts: Mapping[str, Part], federation: Federation, states: Mapping[str, Any]) -> list[Part]:
    """Return copies of parts that have the clients of all processes in this one, with their states."""
    copies = []
    for key, part in parts.items():
        restored = copy(part)
        restored.begin_fit(replace(federation, rank=0, num_ranks=1, state_dir=None))
        restored.load_state_dict(states[key])
        copies.append(restored)
    return copies


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
    tensors = {name: held[name] for name in state["names"]}
    layout = Layout.of_module(module, tensors, len(state["lengths"]))
    return Federation(data.client_sizes, state["first"].to(module.device), layout)


def as_held(tensor: Tensor, held: Tensor) -> Tensor:
    """Return a tensor with the device and the type of the module's own."""
    tensor = tensor.to(held.device)
    if not held.is_floating_point():
        tensor = tensor.round()
    return tensor.to(held.dtype)
