"""Fits of the library, with all that the referee needs to train the same batches, and all that it compares."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from contracts.referee.module import BATCH_SIZE, TRAIN, VAL, Kind, Net, State, fingerprint
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

import fl_lightning as fl
from fl_lightning.diagnostics import Communication

Batches = list[list[int]]


@dataclass
class Training:
    """One training of one client: which it was, and the samples of each batch that ``training_step`` saw."""

    round: int
    client: int
    phase: int
    slot: int
    repetition: int
    batches: Batches = field(default_factory=list)


@dataclass
class Fitted:
    """What a fit shows: the server's model, scores of the clients' own models and of the shared one, and bytes."""

    first: State
    server: State
    own: dict[int, float]
    shared: dict[int, float]
    sent: dict[str, float]
    trainings: list[Training]
    rounds: int
    callback: Any
    clusters: list[State] = field(default_factory=list)


class Recorder(Callback):
    """Notes the batches of each training, in the order in which clients train."""

    def __init__(self) -> None:
        self.trainings: list[Training] = []
        self.clusters: list[State] = []
        self.places = [{float(value): place for place, value in enumerate(x[:, 0])} for x, _ in TRAIN]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        algorithm = trainer.callbacks[0].algorithm
        tensors = algorithm.federation.tensors
        self.clusters = [tensors(model) for model in getattr(algorithm.schedule, "models", [])]

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        task = client.task
        self.trainings.append(Training(task.round, task.client, task.phase, task.slot, task.repetition))
        pl_module.note = []

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        training = self.trainings[-1]
        places = self.places[training.client]
        training.batches = [[places[value] for value in batch] for batch in pl_module.note]
        pl_module.note = None


class Sighted(Callback):
    """Notes whether a training step was made."""

    def __init__(self) -> None:
        self.trained = False

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.trained = True


class Refused(Exception):
    """The library refused a combination before training; the text is its message."""


def tensors_of(module: Net) -> State:
    """Return copies of all parameters and buffers; a shared tensor has its first name."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def fit(
    make: Callable[[], fl.AggregationCallback],
    kind: Kind,
    rounds: int,
    *others: Callback,
    record: bool = True,
    ckpt_path: Path | None = None,
    **trainer_options: Any,
) -> Fitted:
    """Fit the small network, and evaluate the clients' models after the fit.

    Raises:
        Refused: If the library raises ``ValueError`` or ``TypeError`` before the first training step.
    """
    sighted = Sighted()
    recorder = Recorder()
    module = Net(kind)
    first = tensors_of(module)
    metrics = fl.ClientMetrics(fingerprint, "mark", always_personal=True)
    traffic = Communication()
    callbacks = [metrics, traffic, sighted, *others]
    if record:
        callbacks.append(recorder)
    with quiet():
        try:
            callback = make()
            data = fl.TensorDataModule(TRAIN, val=VAL, batch_size=BATCH_SIZE, eval_batch_size=16)
            # the clients' models are evaluated after the fit; early stopping looks at each round
            if not others:
                trainer_options = {"check_val_every_n_epoch": rounds + 1, **trainer_options}
            trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *callbacks], **trainer_options)
            trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
        except (ValueError, TypeError) as error:
            if sighted.trained or not str(error):
                raise
            raise Refused(f"{type(error).__name__}: {error}") from error
        server = tensors_of(module)
        ended_after = trainer.current_epoch
        sent = {key: float(value) for key, value in traffic.values.items() if "bytes" in key or "models" in key}
        trainer.validate(module, datamodule=data, verbose=False)
    own = {client: float(value) for client, value in metrics.values["val"].items()}
    shared = {client: float(value) for client, value in metrics.shared_values.get("val", own).items()}
    return Fitted(first, server, own, shared, sent, recorder.trainings, ended_after, callback, recorder.clusters)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings and Lightning's lines off the screen."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def rows(client: int, places: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return a client's samples at some places."""
    x, y = TRAIN[client]
    index = torch.tensor(places)
    return x[index], y[index]
