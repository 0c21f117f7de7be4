"""Buffers that travel, stay on the client, or are the server's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, Task

Buffers = Literal["average", "local", "server"]


@dataclass(eq=False)
class BufferExchange(Exchange):
    """Decides which buffers a client starts from and which it hands back.

    Args:
        buffers: ``"average"``: they travel with the model and are averaged as parameters are. ``"local"``: each client
            keeps its own and starts from them; the server's model holds the average, for evaluation only.
            ``"server"``: every client starts from the server's, and its changes to them are dropped.

    Raises:
        ValueError: If ``buffers`` is unknown.
    """

    runs_at = "client"
    buffers: Buffers = "average"

    @override
    def setup(self, federation: Federation) -> None:
        """Give every client the first model's buffers."""
        _, first = federation.layout.split(federation.model)
        self._names = set(federation.layout.buffers)
        self._are_local = self.buffers == "local" and len(first) > 0
        if self._are_local:
            self.own: ClientVectors
            self.add_client_vectors("own", first)

    @override
    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model that is sent, with the client's own buffers if they are local."""
        if not self._are_local:
            return model
        parameters, _ = self.federation.layout.split(model)
        return self.federation.layout.joined(parameters, self.own[task.client])

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result with the buffers that the server sees."""
        if self._are_local:
            self.own[result.client] = result.buffers
        elif self.buffers == "server" and len(result.buffers):
            return result.with_buffers(result.received_buffers)
        return result

    @property
    @override
    def changes_updates(self) -> bool:
        return type(self).upload is not BufferExchange.upload

    @property
    @override
    def has_personal(self) -> bool:
        """Whether clients have buffers of their own."""
        return self.buffers == "local"

    @override
    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the model with the client's own buffers."""
        own = self.own.get(client) if self._are_local else None
        if own is None:
            return None
        parameters, _ = self.federation.layout.split(model)
        return self.federation.layout.joined(parameters, own.to(model.device))

    @override
    def travels(self, name: str) -> bool:
        """Return false for buffers that do not leave the client, or the server."""
        return self.buffers == "average" or name not in self._names
