"""The callbacks' hooks of clients, watched while a trial's clients train one after the other."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.metric_calls import AnyMetric
from fl_lightning.clients.hooks import StartedClient
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.changes.object_state import ObjectState
from fl_lightning.executors.stacked.changes.shared_state import SharedState
from fl_lightning.executors.stacked.surroundings import is_users
from fl_lightning.executors.stacked.trials.order import COUNTED, Readable, names_read
from fl_lightning.parts.messages import Task

_OF_ALL = "of which there is one for all clients"


class HookTrial:
    """Calls ``on_client_start`` for a trial's clients, and looks at what it and ``on_client_end`` change.

    Args:
        training: Trains clients.

    Attributes:
        prepares: Whether ``on_client_start`` sets weights or learning rates.
        names: The hooks that the callbacks have, and ``training_step``, in words.
    """

    def __init__(self, training: LocalTraining) -> None:
        self._training = training
        hooks = training.hooks
        self.prepares = False
        found = {"`on_client_start`": hooks.starts, "`on_client_end`": hooks.read_logged_values}
        self.names = " or ".join([*(name for name, own in found.items() if own), "`training_step`"])
        self._callbacks, self._read = ObjectState(*hooks.starters, samples=True), read_at_start(training)
        self._goes_on = False
        # what hooks changed of the callbacks, at a client's start and at its end, and of all else
        self._noted: str | None = None
        self._noted_at_end: str | None = None
        self._common: str | None = None

    def begin(self, task: Task, start: Tensor) -> StartedClient:
        """Begin a client."""
        training = self._training
        if not training.hooks.starts:
            return training.begin(task, start)
        ground = SharedState(training, [task])
        self._callbacks.look()
        with self._read.noticing(task.client):
            begun = training.begin(task, start)
        self._noted = self._noted or self._callbacks.changed()
        self._common = self._common or ground.changed(task)
        self.prepares = self.prepares or begun.is_prepared
        self._goes_on = self._goes_on or begun.progress is not None
        self._read.look()
        return begun

    def end(self, task: Task) -> None:
        """Look at what was changed when a client ended."""
        if self._training.hooks.starts:
            self._noted_at_end = self._noted_at_end or self._read.changed(task.client)

    def check(self) -> None:
        """Raise ``CannotVectorize`` if clients cannot train at once.

        ``on_client_start`` that prepares clients is called for all of a stack before any of them trains.
        """
        if self._common:
            raise CannotVectorize(f"`on_client_start` changes {self._common}, {_OF_ALL}")
        if self._goes_on:
            raise CannotVectorize(
                "`on_client_start` loads the state of the optimizer or of a schedule, and a stack starts without"
            )
        if self.prepares and self._noted:
            raise CannotVectorize(f"`on_client_start` changes `{self._noted}`, {_OF_ALL}")
        if self.prepares and self._noted_at_end:
            raise CannotVectorize(
                f"`on_client_end` changes `{self._noted_at_end}`, on which the weights or learning rates may depend "
                "that `on_client_start` sets for the next client"
            )
        if self.prepares and (counted := self._counted_by_clients()):
            raise CannotVectorize(
                f"`on_client_start` sets weights or learning rates and reads `{counted}`, which depends on the clients "
                "that trained before"
            )

    def _counted_by_clients(self) -> str | None:
        """Return what ``on_client_start`` reads of the trainer or the module that changes while clients train."""
        module = self._training.vector.module
        metrics = {name.rpartition(".")[2] for name, each in module.named_modules() if isinstance(each, AnyMetric)}
        return next(iter(sorted((self._read.names or set()) & (COUNTED | metrics))), None)


def read_at_start(training: LocalTraining) -> Readable:
    """Return what ``on_client_start`` may read of callbacks."""
    objects, names = training.hooks.starters, names_read(training.hooks.starts)
    if names is None or "callbacks" in names:
        trainer: Any = training.trainer
        others = [each for each in trainer.callbacks if is_users(type(each).__module__)]
        objects = [*objects, *(each for each in others if each not in objects)]
    return Readable(objects, names)
