"""What becomes of buffers, such as BatchNorm's running statistics, in a federation."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.arguments import check_choice
from fl_lightning.parts.client_states import ClientStates, StatefulPart
from fl_lightning.parts.federation import ClientResult, Federation, Task

Buffers = Literal["average", "local", "server"]


class BufferPolicy(StatefulPart):
    """Decides which buffers a client starts from and which it hands back.

    Args:
        buffers: ``"average"``: they travel with the model and are averaged as parameters are. ``"local"``: each client
            keeps its own and starts from them; the server's model holds the average, for evaluation only.
            ``"server"``: every client starts from the server's and what it makes of them is dropped.

    Raises:
        ValueError: If ``buffers`` is unknown.
    """

    def __init__(self, buffers: Buffers) -> None:
        check_choice("buffers", buffers, ("average", "local", "server"))
        self.buffers = buffers
        self._num_parameters = 0

    def begin(self, federation: Federation) -> None:
        """Give every client the first model's buffers."""
        self._num_parameters = federation.num_parameters
        first = federation.model[self._num_parameters :].clone()
        self.states = ClientStates(federation, first) if self.buffers == "local" and len(first) else None

    def start(self, task: Task, model: Tensor, server_model: Tensor) -> Tensor:
        """Return the model from which a client starts, given the one that it is sent."""
        n = self._num_parameters
        if self.states is not None:
            return torch.cat([model[:n], self.states[task.client]])
        if self.buffers == "server" and model is not server_model and len(model) > n:
            return torch.cat([model[:n], server_model[n:]])
        return model

    def receive(self, result: ClientResult, server_model: Tensor) -> ClientResult:
        """Return the result with the buffers that the server is to see."""
        n = self._num_parameters
        if self.states is not None:
            self.states.put(result.task.client, result.vector[n:])
        elif self.buffers == "server" and len(result.vector) > n:
            return replace(result, vector=torch.cat([result.vector[:n], server_model[n:]]))
        return result

    def close(self) -> None:
        """End a round."""
        if self.states is not None:
            self.states.close()
