"""Checks of a table that need its data: whether enough clients train, and whether the model takes their batches."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal, TextIO

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning._lightning.refusals import refuse_steps
from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.experiment.assembly import build_datamodule, build_model
from fl_lightning.experiment.table import DataSet
from fl_lightning.models.classifier import Classifier

_OURS = ("fl_lightning", "datamodules")
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


def read_sample(config: dict[str, Any]) -> Sample:
    """Read the data of a cell, without downloading them.

    Raises:
        NoDataError: If they cannot be read.
        ValueError: If they cannot be shared out as the cell asks.
    """
    data = build_datamodule(config)
    try:
        data.setup()
    except (OSError, RuntimeError, ImportError) as error:
        raise NoDataError(f"{type(error).__name__}: {error}") from error
    stages: tuple[Literal["val", "test"], ...] = ("val", "test")
    loaders = {"val": data.val_dataloader, "test": data.test_dataloader}
    evaluated = frozenset(stage for stage, loader in loaders.items() if loader())
    with_clients = frozenset(stage for stage in stages if data.eval_client_ids(stage) is not None)
    if type(data).__module__.partition(".")[0] not in _OURS:
        return Sample(data.num_clients, evaluated, with_clients, None)
    batch = next(iter(data.pooled_batches([0], generator=torch.Generator())))
    taken = data.on_after_batch_transfer(data.on_before_batch_transfer(batch, 0), 0)
    return Sample(data.num_clients, evaluated, with_clients, taken)


def checked_model(config: dict[str, Any]) -> L.LightningModule:
    """Return the model of a cell.

    Raises:
        ValueError: If it lacks a method that every fit of a table calls, or no federated fit can call one.
    """
    model = build_model(config)
    missing = [name for name in ("forward", "validation_step", "test_step") if not is_overridden(name, model)]
    if missing:
        raise ValueError(
            f"`model` {config['model']['class_path']} has no {' and no '.join(f'`{name}`' for name in missing)}. A "
            "fit of a table validates and tests, and computes `metric` from the scores that `forward(x)` returns."
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


def check_cohort(method: AggregationCallback, sample: Sample) -> bool:
    """Raise ``ValueError`` if a method asks for more clients than train."""
    method.algorithm.sampler.cohort_size(sample.num_clients)
    return True


def check_batch(config: dict[str, Any], sample: Sample) -> bool:
    """Raise ``ValueError`` if a model of the package cannot train on a batch; another one may need its trainer."""
    model = build_model(config)
    if not isinstance(model, Classifier) or not _is_pair(sample.batch):
        return True
    x, y = sample.batch
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a model logs without a trainer
        try:
            model.training_step((x, y), 0)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise ValueError(
                f"`model` {config['model']['class_path']} does not take the batches of `datamodule`, which are of "
                f"shape {tuple(x.shape)} with labels up to {int(y.max())}: {type(error).__name__}: {error}"
            ) from error
    return True


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, (list, tuple)) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)


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
        with redirect_stdout(_WithoutHubLines(sys.stdout)):  # type: ignore[type-var]
            yield
    finally:
        torch.hub.download_url_to_file = download


class _WithoutHubLines:
    """Passes on what is written, but for ``torch.hub``'s line on a download, which it writes before it begins one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if text.startswith("Downloading: ") else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
