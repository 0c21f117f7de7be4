"""Each client's own values of personal parameters, for evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning._lightning.predictions import called, compared, read_batch
from fl_lightning._lightning.processes import ends_with_fit
from fl_lightning.checks import short
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.targets import gives_targets, inputs_of
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.exchange import PersonalParameters
from fl_lightning.parts.part import walk

OwnValues = dict[int, dict[str, Tensor]]  # by client id and by the tensor's name


def personal_exchanges(trainer: pl.Trainer) -> dict[str, PersonalParameters]:
    """Return the exchanges of the trainer's algorithm that keep parameters on clients, by their keys in checkpoints."""
    algorithms = (getattr(callback, "algorithm", None) for callback in trainer.callbacks)
    algorithm = next((each for each in algorithms if isinstance(each, Algorithm)), None)
    if algorithm is None:
        return {}
    exchanges = [part for part in walk(algorithm.exchange) if isinstance(part, PersonalParameters)]
    return {f"{place}": exchange for place, exchange in enumerate(exchanges)}


def own_values(trainer: pl.Trainer, loaded: Mapping[str, Any] | None) -> OwnValues:
    """Return the personal tensors of all clients that have trained; call it on all processes.

    Args:
        trainer: The trainer.
        loaded: The exchanges' vectors in the checkpoint that is evaluated; ``None`` if the fit's are.
    """
    data, found = trainer.datamodule, OwnValues()
    for key, exchange in personal_exchanges(trainer).items():
        if not exchange.client_vectors:  # no fit has begun in this process
            if loaded is None and ends_with_fit(trainer):
                rank_zero_warn(
                    "All clients are evaluated with the mean of their personal parameters: if a fit has trained them, "
                    'it was in processes that have ended. Give `strategy="ddp"`, with which they stay.'
                )
            continue
        state = exchange.own.state_dict() if loaded is None else loaded.get(key, {"clients": {}})
        shapes = dict(zip(exchange.federation.names, exchange.federation.shapes, strict=True))
        names = exchange.federation.matching(exchange.pattern)
        for client, vector in state["clients"].items():
            parts = vector.split([shapes[name].numel() for name in names])
            tensors = {name: part.view(shapes[name]) for name, part in zip(names, parts, strict=True)}
            found.setdefault(data.client_ids[client], {}).update(tensors)
    return found


def states_in(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the clients' vectors in a checkpoint of the exchanges that keep parameters on clients, by their keys."""
    states = (state for state in checkpoint.get("callbacks", {}).values() if isinstance(state, Mapping))
    parts = (part for state in states for part in state.get("parts", {}).items())
    kept = [part["own"] for key, part in parts if key.endswith(f"-{PersonalParameters.__name__}")]
    return {f"{place}": own for place, own in enumerate(kept)}


def check_scores(trainer: pl.Trainer, module: pl.LightningModule, batch: Any, outputs: Any) -> None:
    """Raise ``ValueError`` if a step returned ``"preds"`` that are not what the module returns for the inputs."""
    if not gives_targets(outputs):
        return
    given, own = (read_batch(trainer, module, batch, each)[0] for each in (outputs, None))
    if given.shape != own.shape or not torch.allclose(given, own, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise ValueError(
            "The evaluation step returned other `preds` than the module's `forward` does for the batch's inputs. "
            "ClientMetrics calls `forward` to evaluate each client with its own personal parameters. Let `forward` "
            "return the scores."
        )


def scores_of_clients(
    trainer: pl.Trainer, module: pl.LightningModule, batch: Any, outputs: Any, owners: Tensor, values: OwnValues
) -> tuple[Tensor, Tensor]:
    """Return the module's predictions for a batch, each sample's by the model of its own client, and the targets.

    Args:
        trainer: The trainer; its data module says which element is the target.
        module: Its weights stay as they are.
        batch: Its inputs are a tensor of shape (n, ...).
        outputs: What a step returned for it; its targets are taken if it has some.
        owners: The client of each sample, shape (n,).
        values: The clients' own values. A client without any is given the module's.

    Raises:
        TypeError: If the inputs are no tensor of n rows.
    """
    x = inputs_of(batch)
    if not isinstance(x, Tensor) or x.shape[:1] != owners.shape:
        raise TypeError(
            f"ClientMetrics evaluates each client with its own personal parameters, so a batch's inputs must be a "
            f"tensor whose first dimension counts the {len(owners)} samples, got {short(x)}."
        )
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    rows, parts = [], []
    for client in owners.unique():
        rows.append((owners == client).nonzero().squeeze(1).to(x.device))
        own = {name: _as(tensor, held[name]) for name, tensor in values.get(int(client), {}).items()}
        part, target = compared(trainer, batch, called(module, x[rows[-1]], own), outputs)
        parts.append(part)
    return torch.cat(parts)[torch.cat(rows).argsort()], target


def _as(tensor: Tensor, held: Tensor) -> Tensor:
    tensor = tensor.to(held.device)
    return (tensor if held.is_floating_point() else tensor.round()).to(held.dtype)


def warn_of_clients_without_values(trainer: pl.Trainer, reader: object) -> None:
    """Warn if there are personal parameters, and validation or test clients that do not train, so that have none."""
    exchanges, data = personal_exchanges(trainer), getattr(trainer, "datamodule", None)
    if not exchanges or not isinstance(data, FederatedDataModule):
        return
    stages = {"validation": data.eval_client_ids("val"), "test": data.eval_client_ids("test")}
    without = [
        name
        for name, ids in stages.items()
        if ids is not None and len(ids) and not {*ids.tolist()} & {*data.client_ids}
    ]
    if without:
        patterns = [pattern for exchange in exchanges.values() for pattern in exchange.pattern]
        rank_zero_warn(
            f"{type(reader).__name__} evaluates each client with its own personal parameters ({', '.join(patterns)}), "
            f"but the {' and '.join(without)} clients do not train, so they have none: they are evaluated with the "
            "mean over the training clients. Give the data module `split=WithinClientSplit(...)` to evaluate the "
            "clients that train."
        )


def warn_of_unknown_values(reader: object) -> None:
    """Warn that a checkpoint's personal parameters cannot be told from its other weights."""
    rank_zero_warn(
        f"The checkpoint holds personal parameters, but this trainer has not trained, so {type(reader).__name__} "
        "evaluates all clients with their mean. Call `trainer.test(ckpt_path=...)` with the trainer that has trained."
    )
