"""The common ground of a stack's clients beside their models, which hooks of clients may change."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.changes.circumstances import Circumstances
from fl_lightning.executors.stacked.changes.comparison import changed_name, same
from fl_lightning.executors.stacked.changes.identity_check import IdentityCheck
from fl_lightning.executors.stacked.changes.object_state import SharedSnapshotter, contents_of
from fl_lightning.parts.messages import Task

_NODES = 2_000  # objects of the data that are looked at, for each client


class SharedState:
    """Module, trainer and data as they were when a stack's clients were trained.

    A hook of one client that changes any of it gives this client or the next ones something else to train on. A look
    costs about as much as a training step, so it is taken only where callbacks have hooks of clients.

    Args:
        training: Trains clients.
        tasks: The clients' tasks.
    """

    def __init__(self, training: LocalTraining, tasks: Sequence[Task]) -> None:
        self._training = training
        self._circumstances = Circumstances(training, of_client=True)
        self._held, snapshotter = _by_name(training), _snapshotter()
        self._shared = _snapshots(self._held, snapshotter)
        self._quick = IdentityCheck(snapshotter, _snapshotter)
        self._own = {task.client: self._look_at_data_of(task) for task in tasks}

    def changed(self, task: Task | None = None) -> str | None:
        """Return the name of something that is another now, ``None`` if nothing is.

        Args:
            task: The client whose samples are looked at, too.
        """
        if found := self._circumstances.difference(Circumstances(self._training, of_client=True)):
            return found
        if found := self._changed_of_data():
            return found
        if task is not None and not same(self._own[task.client], self._look_at_data_of(task)):
            return "a client's samples"
        return None

    def _changed_of_data(self) -> str | None:
        held = _by_name(self._training)
        if list(held) == list(self._held) and all(map(is_, held.values(), self._held.values())) and self._quick.same():
            return None
        return changed_name(self._shared, _snapshots(held, _snapshotter()))

    def _look_at_data_of(self, task: Task) -> Any:
        return _snapshotter().snapshot(self._training.data.client_dataset(task.client))


def _by_name(training: LocalTraining) -> dict[str, Any]:
    """Return what belongs to all clients' data, by name."""
    held, prefix = contents_of(training.data), "trainer.datamodule"
    names = sorted(held, key=lambda name: name.startswith("_"))  # a name of the user's own tells more
    return {
        "the collate function": training.data.source_collate_fn,
        **{f"{prefix}.{name}": held[name] for name in names},
    }


def _snapshots(held: dict[str, Any], snapshotter: SharedSnapshotter) -> dict[str, Any]:
    return {name: snapshotter.snapshot(value) for name, value in held.items()}


def _snapshotter() -> SharedSnapshotter:
    return SharedSnapshotter(set(), brief=True, nodes=_NODES, samples=True)
