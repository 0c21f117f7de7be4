"""Fits an entry with the library, and compares fits with stacks and without."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
from helpers.toys import quiet_trainer

from fl_lightning import FederatedDataModule, TensorDataModule
from fl_lightning.data import Source
from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.partitioners import Partition
from zoo.entry import Data, Entry
from zoo.outcome import CallRecorder, Outcome, compare, notes, outcome, parts_of
from zoo.reference import BATCH_SIZE, ROUNDS


class SampleModule(FederatedDataModule):
    """Serves lists of samples that a function of the user's makes batches of."""

    def __init__(self, data: Data) -> None:
        super().__init__(batch_size=BATCH_SIZE)
        self.data = data

    def load(self) -> Source:
        return Source([sample for held in self.data.clients for sample in held], None, collate_fn=self.data.collate)  # type: ignore[arg-type]

    def federate(self, source: Source) -> FederatedSplit:
        ends = np.cumsum(self.data.sizes())
        stretches = np.split(np.arange(ends[-1]), ends[:-1])
        return FederatedSplit(dict(enumerate(stretches)), {}, {}, Partition(tuple(stretches)))


@dataclass
class Fit:
    """A fit with one of the executors.

    Attributes:
        outcome: What it left behind, without what the hand-written loop leaves out.
        everything: What it left behind.
        cause: Why clients were trained one after the other; ``None`` if they were stacked.
        seconds: Processor time of ``Trainer.fit``.
    """

    outcome: Outcome
    everything: Outcome
    cause: str | None
    seconds: float


def fit(entry: Entry, executor: str) -> Fit:
    """Train an entry with an executor."""
    module = entry.make()
    loggers = [CallRecorder() for _ in range(entry.loggers)]
    callbacks = entry.callbacks()
    printed = io.StringIO()
    federation = entry.datamodule() if entry.datamodule else data_module(entry)
    leave_out = {"clients_at_once"} if executor == "sequential" else set()
    federated = {name: value for name, value in entry.federated.items() if name not in leave_out}
    aggregation = entry.algorithm(executor=executor, seed=0, **federated)
    options = {"max_epochs": ROUNDS, "logger": loggers, "log_every_n_steps": 1, **entry.trainer}
    trainer = quiet_trainer(callbacks=[*callbacks, aggregation], **options)
    with warnings.catch_warnings(), redirect_stdout(printed):
        warnings.simplefilter("ignore")
        begun = time.process_time()
        trainer.fit(module, datamodule=federation)
        seconds = time.process_time() - begun
    values = {**trainer.callback_metrics, "global_step": trainer.global_step, "rounds": trainer.current_epoch}
    outside = [entry.outside(), notes(callbacks), parts_of(printed.getvalue())]
    seen = [module, outside, [call for logger in loggers for call in logger.calls], values]
    everything = outcome(*seen, leave_out=[])
    everything.values |= {f"type of {name}": str(value.dtype) for name, value in trainer.callback_metrics.items()}
    return Fit(
        outcome=outcome(*seen, leave_out=["fed/", *entry.not_by_hand]),
        everything=everything,
        cause=trainer.fit_loop.executor.state_dict().get("cause", "asked for"),
        seconds=seconds,
    )


def data_module(entry: Entry) -> FederatedDataModule:
    """Return a data module of an entry's clients."""
    data = entry.data(entry.sizes, entry.dtype)
    if data.collate:
        return SampleModule(data)
    return TensorDataModule(data.clients, val=data.clients[0] if entry.validates else None, batch_size=BATCH_SIZE)


def ends_alike(module: Callable[[], L.LightningModule], tolerance: float = 1e-9, **options: Any) -> str | None:
    """Compare all that fits with stacks and without leave behind; return why clients were not stacked.

    Args:
        module: Makes the module.
        tolerance: Relative, of weights and values.
        **options: Of the entry. Its three clients have only batches of four samples unless others are given.
    """
    entry = Entry("", module, tolerance=tolerance, **{"sizes": (8, 12, 8), **options})
    alone, stacked = fit(entry, "sequential"), fit(entry, "vectorized")
    assert not (lines := compare(alone.everything, stacked.everything, tolerance)), lines
    return stacked.cause
