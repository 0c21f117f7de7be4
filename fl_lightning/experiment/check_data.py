"""Checks of a table that need its data: whether enough clients train, and whether the model takes their batches."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning._lightning.refusals import refuse_steps
from fl_lightning.checks import is_user_defined
from fl_lightning.data import FederatedDataModule
from fl_lightning.models.classifier import Classifier

#: Names of the metrics of clients.
OF_CLIENTS = re.compile(r"(?:val|test)_(\w+?)_(?:clients|personal)(?:_std|_min|_max|_weighted|_lowest10|_left_out)?")


class NoDataError(Exception):
    """The data of a table cannot be read, because they are not on this machine yet, for instance."""


def read_data(data: FederatedDataModule) -> FederatedDataModule:
    """Return the data module of a cell when its data are read, without downloading them.

    Raises:
        NoDataError: If they cannot be read.
        ValueError: If they cannot be shared out as the cell asks.
    """
    try:
        data.setup()
    except (OSError, RuntimeError, ImportError) as error:
        raise NoDataError(f"{type(error).__name__}: {error}") from error
    return data


def check_steps(model: L.LightningModule) -> L.LightningModule:
    """Return a model, if it has the methods that every fit of a table calls.

    Raises:
        ValueError: If it lacks one, or no federated fit can call one.
    """
    missing = [name for name in ("forward", "validation_step", "test_step") if not is_overridden(name, model)]
    if missing:
        raise ValueError(
            f"`model` {type(model).__name__} has no {' and no '.join(f'`{name}`' for name in missing)}. A fit of a "
            "table validates and tests, and computes `metric` from the scores that `forward(x)` returns."
        )
    refuse_steps(model)
    return model


def check_evaluation(
    data: FederatedDataModule, argument: str, name: str, stage: Literal["val", "test"], *, is_needed: bool
) -> bool:
    """Raise ``ValueError`` if no sample gives a metric: there is none, or none of a client for a metric of clients.

    Args:
        data: The data module.
        argument: ``"monitor"`` or ``"score"``.
        name: Name of the metric.
        stage: The stage of its samples.
        is_needed: Whether models or hyper-parameters are chosen by the metric, or compared.
    """
    if not name.startswith(stage):
        return True
    has_samples = bool(data.val_dataloader() if stage == "val" else data.test_dataloader())
    if is_needed and not has_samples:
        hint = " Give it some, or choose nothing by validation: `select: last`, and no `tune`." * (stage == "val")
        raise ValueError(f"`{argument}` is {name!r}, and this data set has no {stage} samples.{hint}")
    if OF_CLIENTS.fullmatch(name) and has_samples and data.eval_client_ids(stage) is None:
        raise ValueError(
            f"`{argument}` is {name!r}, a metric of clients, and the {stage} samples of this data set belong to no "
            f"client. Write a metric that the model logs, such as `{argument}: {stage}_acc`, or use a split that "
            "gives evaluation samples to clients, such as ClientSplit or WithinClientSplit."
        )
    return True


def check_batch(model: L.LightningModule, data: FederatedDataModule) -> bool:
    """Raise ``ValueError`` if a model of the package cannot train on a batch; others may need their trainer."""
    if not isinstance(model, Classifier) or is_user_defined(type(data)):
        return True
    batch = next(iter(data.pooled_batches([0], generator=torch.Generator())))
    taken = data.on_after_batch_transfer(data.on_before_batch_transfer(batch, 0), 0)
    if not isinstance(taken, (list, tuple)) or [type(each) for each in taken] != [Tensor, Tensor]:
        return True
    x, y = taken
    try:
        with torch.no_grad():
            model.training_step((x, y), 0)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"`model` {type(model).__name__} does not take the batches of `datamodule`, which are of shape "
            f"{tuple(x.shape)} with labels up to {int(y.max())}: {type(error).__name__}: {error}"
        ) from error
    return True


class DownloadError(Exception):
    """A file would have to be downloaded, which a check does not do."""


@contextmanager
def without_downloads() -> Iterator[None]:
    """Let ``torch.hub``, from which models get their weights, raise :class:`DownloadError` instead of a download."""

    def refuse(url: str, *args: Any, **options: Any) -> None:
        raise DownloadError(url)

    download = torch.hub.download_url_to_file
    torch.hub.download_url_to_file = refuse
    try:
        with redirect_stdout(io.StringIO()):  # `torch.hub` says that it downloads
            yield
    finally:
        torch.hub.download_url_to_file = download
