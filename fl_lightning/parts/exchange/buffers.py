"""How buffers, such as BatchNorm's running statistics, are exchanged."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.arguments import check_choice
from fl_lightning.parts.client_states import ClientStates
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import ClientResult, Federation, Task, same_values
from fl_lightning.parts.part import Part

Buffers = Literal["average", "local", "server"]


class BufferExchange(Exchange):
    """Decides which buffers a client starts from and which it hands back.

    Args:
        buffers: ``"average"``: they travel with the model and are averaged as parameters are. ``"local"``: each client
            keeps its own and starts from them; the server's model holds the average, for evaluation only.
            ``"server"``: every client starts from the server's, and its changes to them are dropped.

    Raises:
        ValueError: If ``buffers`` is unknown.
    """

    def __init__(self, buffers: Buffers = "average") -> None:
        check_choice("buffers", buffers, ("average", "local", "server"))
        self.buffers = buffers

    def on_fit_start(self, federation: Federation) -> None:
        """Give every client the first model's buffers."""
        first = federation.model[federation.num_parameters :].clone()
        self.states = ClientStates(federation, first) if self.buffers == "local" and len(first) else None
        self._names = set(federation.names[len(federation.lengths) :])

    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model that is sent, with the client's own buffers if they are local."""
        if self.states is None:
            return model
        return torch.cat([model[: self.federation.num_parameters], self.states[task.client]])

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result with the buffers that the server sees."""
        if self.states is not None:
            self.states.put(result.task.client, result.buffers)
        elif self.buffers == "server" and len(result.buffers):
            return result.with_buffers(result.start[len(result.parameters) :])
        return result

    def travels(self, name: str) -> bool:
        """Return false for buffers that do not leave the client, or the server."""
        return self.buffers == "average" or name not in self._names


class ChangingBuffers(Part):
    """Knows which buffers training changes; all others are constant: masks, tables of positions, integer tables.

    Constant buffers stay as they are on the server and in clients. They cost no traffic, and NaN or infinite values in
    them are no reason to leave a client out.
    """

    def on_fit_start(self, federation: Federation) -> None:
        """Regard all buffers as constant."""
        self._lengths = federation.tensor_lengths[len(federation.lengths) :]
        self._known: set[int] = set()
        #: Places of the buffers that changed since the last round's end, on this process.
        self.seen: set[int] = set()
        self._varies: Tensor | None = None

    def watch(self, result: ClientResult) -> None:
        """Note which buffers a client changed."""
        if len(self._known) == len(self._lengths):
            return
        before = result.start[len(result.parameters) :].split(self._lengths)
        after = result.buffers.split(self._lengths)
        changed = (place for place, (a, b) in enumerate(zip(before, after, strict=True)) if not same_values(a, b))
        self.seen.update(set(changed) - self._known)

    def add(self, places: set[int]) -> None:
        """Regard buffers as changing from now on, on all processes."""
        self._known |= places
        self.seen, self._varies = set(), None

    def keep_constant(self, model: Tensor, server_model: Tensor) -> Tensor:
        """Return ``model`` with the server's values of all constant buffers; both of shape ``(size,)``."""
        if len(self._known) == len(self._lengths):
            return model
        if self._varies is None:
            flags = torch.zeros(len(self._lengths), dtype=torch.bool)
            flags[sorted(self._known)] = True
            varies = flags.repeat_interleave(torch.tensor(self._lengths))
            self._varies = varies.to(model.device)
        n = self.federation.num_parameters
        return torch.cat([model[:n], torch.where(self._varies, model[n:], server_model[n:].to(model.dtype))])

    def places(self) -> list[int]:
        """Return the places, among the model's tensors, of the buffers that change."""
        return [len(self.federation.lengths) + place for place in sorted(self._known)]

    def on_round_abort(self) -> None:
        """Forget what the clients of the round changed."""
        self.seen = set()

    def state_dict(self) -> dict[str, Any]:
        """Return which buffers change."""
        return {"known": sorted(self._known)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what a checkpoint's run knew."""
        self.add(set(state["known"]))
