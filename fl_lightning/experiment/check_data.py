"""Checks of a table that need its data: whether enough clients train, and whether the model takes their batches."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning._lightning.refusals import refuse_steps
from fl_lightning.data import FederatedDataModule
from fl_lightning.experiment.table import DataSet
from fl_lightning.models.classifier import Classifier

#: Names of the metrics of clients.
OF_CLIENTS = re.compile(r"(?:val|test)_(\w+?)_clients(?:_std|_min|_left_out)?")


class NoDataError(Exception):
    """The data of a table cannot be read, because they are not on this machine yet, for instance."""


@dataclass(frozen=True)
class Sample:
    """The facts about a data set that the checks need.

    Attributes:
        num_clients: Number of training clients.
        evaluated: The stages, ``"val"`` and ``"test"``, of which there are samples.
        with_clients: Those of them whose samples belong to clients.
        batch: A batch ``(x, y)`` of the first one, as a model gets it; ``None`` for a data module of one's own, which
            may need its trainer to make one.
    """

    num_clients: int
    evaluated: frozenset[str]
    with_clients: frozenset[str]
    batch: Any


def read_sample(data: FederatedDataModule) -> Sample:
    """Read the data of a cell, without downloading them.

    Raises:
        NoDataError: If they cannot be read.
        ValueError: If they cannot be shared out as the cell asks.
    """
    try:
        data.setup()
    except (OSError, RuntimeError, ImportError) as error:
        raise NoDataError(f"{type(error).__name__}: {error}") from error
    stages: tuple[Literal["val", "test"], ...] = ("val", "test")
    loaders = {"val": data.val_dataloader, "test": data.test_dataloader}
    evaluated = frozenset(stage for stage, loader in loaders.items() if loader())
    with_clients = frozenset(stage for stage in stages if data.eval_client_ids(stage) is not None)
    if type(data).__module__.partition(".")[0] != "fl_lightning":
        return Sample(data.num_clients, evaluated, with_clients, None)
    batch = next(iter(data.pooled_batches([0], generator=torch.Generator())))
    taken = data.on_after_batch_transfer(data.on_before_batch_transfer(batch, 0), 0)
    return Sample(data.num_clients, evaluated, with_clients, taken)


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


def check_evaluation(data: DataSet, sample: Sample, *, chooses: bool) -> bool:
    """Raise ``ValueError`` if no sample gives a metric: there is none, or none of a client for a metric of clients.

    Args:
        data: The entry of the table.
        sample: The facts about the data.
        chooses: Whether models or hyper-parameters are chosen by ``monitor``, so that it cannot be missing.
    """
    wrong = []
    for entry, name, kind in (("monitor", data.monitor, "validation"), ("score", data.score, "test")):
        stage = "val" if entry == "monitor" else "test"
        if name.startswith(stage) and stage not in sample.evaluated and (chooses or stage == "test"):
            hint = ", or choose nothing by validation: `select: last`, and no `tune`" if stage == "val" else ""
            wrong.append(f"`{entry}` is {name!r}, and this data set has no {kind} samples. Give it some{hint}.")
        if OF_CLIENTS.fullmatch(name) and name.startswith(stage) and stage in sample.evaluated - sample.with_clients:
            wrong.append(
                f"`{entry}` is {name!r}, a metric of clients, and the {kind} samples of this data set belong to no "
                f"client. Write a metric that the model logs, such as `{entry}: {stage}_acc`, or use a split that "
                "gives evaluation samples to clients, such as ClientSplit or WithinClientSplit."
            )
    if wrong:
        raise ValueError(" ".join(wrong))
    return True


def check_batch(model: L.LightningModule, sample: Sample) -> bool:
    """Raise ``ValueError`` if a model of the package cannot train on a batch; another one may need its trainer."""
    batch = sample.batch
    is_pair = isinstance(batch, (list, tuple)) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)
    if not isinstance(model, Classifier) or not is_pair:
        return True
    x, y = batch
    with torch.no_grad():
        try:
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
