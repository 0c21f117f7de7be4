"""What the clients of a stack have in common beside their models, and hooks of clients may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.circumstances import Circumstances
from fl_lightning.executors.stacked.held_state import SharedCamera, contents_of
from fl_lightning.executors.stacked.module_state import same
from fl_lightning.parts.federation import Task

_NODES = 2_000  # objects of the data that are looked at, for each client


class CommonGround:
    """Module, trainer and data as they were when a stack's clients were trained.

    A hook of one client that changes any of it gives this client or the next ones something else to train on. A look
    costs about as much as a training step, so it is taken only where callbacks have hooks of clients.

    Args:
        clients: Trains clients.
        tasks: The clients' tasks.
    """

    def __init__(self, clients: LocalTraining, tasks: Sequence[Task]) -> None:
        self._clients = clients
        self._circumstances = Circumstances(clients, of_client=True)
        self._shared = self._look_at_shared()
        self._own = {task.client: self._look_at_data_of(task) for task in tasks}

    def changed(self, task: Task | None = None) -> str | None:
        """Return the name of something that is another now, ``None`` if nothing is.

        Args:
            task: The client whose samples are looked at, too.
        """
        if found := self._circumstances.difference(Circumstances(self._clients, of_client=True)):
            return found
        shared = self._look_at_shared()
        for name in [*(self._shared.keys() ^ shared.keys()), *shared]:
            if name not in shared or name not in self._shared or not same(self._shared[name], shared[name]):
                return f"`{name}`"
        if task is not None and not same(self._own[task.client], self._look_at_data_of(task)):
            return "a client's samples"
        return None

    def _look_at_shared(self) -> dict[str, Any]:
        """Return an image of what belongs to all clients' data, by name."""
        data, camera = self._clients.data, _camera()
        images = {"the collate function": camera.image(data.source_collate_fn)}
        held = contents_of(data)
        for key in sorted(held, key=lambda key: key.startswith("_")):  # a name of the user's own tells more
            images[f"trainer.datamodule.{key}"] = camera.image(held[key])
        return images

    def _look_at_data_of(self, task: Task) -> Any:
        return _camera().image(self._clients.data.client_dataset(task.client))


def _camera() -> SharedCamera:
    return SharedCamera(set(), brief=True, nodes=_NODES, samples=True)
