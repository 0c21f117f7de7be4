"""Fits of the workloads by ``Trainer.fit``, without anything on the screen or on the disk but a CSV log."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import lightning as L
import torch
from federations import Clients, Workload, make_module
from lightning.pytorch.loggers import CSVLogger

from fl_lightning import TensorDataModule


def first_samples(clients: Clients, most_clients: int, most_samples: int | None = None) -> tuple[torch.Tensor, ...]:
    """Return the samples of the first clients, for validation."""
    return tuple(torch.cat(tensors)[:most_samples] for tensors in zip(*clients[:most_clients], strict=True))


def fit(
    name: str, work: Workload, clients: Clients, val: Any, eval_batch_size: int, callbacks: list[Any], **settings: Any
) -> L.Trainer:
    """Train a workload's network and return the trainer; its other settings are given."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = TensorDataModule(clients, val=val, batch_size=work.batch_size, eval_batch_size=eval_batch_size)
    settings = {"enable_progress_bar": False, **settings}
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            callbacks=callbacks,
            logger=CSVLogger(folder),
            enable_checkpointing=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            **settings,
        )
        trainer.fit(make_module(name, work.lr), datamodule=data)
    return trainer
