"""The base of all exchanges, which decide what travels between the server and its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.guards.contracts import raise_flags
from fl_lightning.parts.part import Part
from fl_lightning.parts.traffic import Payload


class Exchange(Part):
    """Decides from which model a client starts, how the server sees its result, and how much traffic that takes.

    The defaults send the whole model both ways, or do what held exchanges do. A subclass overrides the methods that it
    needs. :meth:`merged` and :meth:`published` run on all processes, the others on the process that trains the client.
    """

    #: Whether the server sees only the sum of all updates, by :meth:`summed`. It is then the last of the exchanges.
    #: True for a class that defines this method, unless it says otherwise.
    sums_updates = False
    #: Whether some clients know what others send, so that :meth:`colluded` is called. True for a class that defines it,
    #: unless it says otherwise.
    colludes = False
    #: Whether it changes values that are 0, so that after a compression on the way up more is sent than is counted.
    fills_zeros = False
    _whole_chain: Exchange | None = None  # the exchanges of which this is one; none outside of an algorithm
    _place_in_chain = 0  # from the client to the server
    _traveling: Tensor | None = None
    _knows_places = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        raise_flags(cls, {"summed": "sums_updates", "colluded": "colludes"})

    def attach(self, federation: Federation, *, fresh: bool = True) -> None:
        """Take the federation of a fit."""
        self._knows_places = False
        super().attach(federation, fresh=fresh)

    def join_chain(self, chain: Exchange, place: int) -> None:
        """Become one of several exchanges, at a place from the client to the server."""
        self._whole_chain, self._place_in_chain = chain, place
        for held in self._held_exchanges:
            held.join_chain(chain, place)

    def check_another_fit(self) -> None:
        """Raise ``ValueError`` if no fit may begin at round 0 with the model that an earlier fit of this part left."""

    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model from which the client starts, shape ``(size,)``.

        Args:
            task: The client's task.
            model: What the server sends, shape ``(size,)``: parameters first, then buffers; not to be written to.
        """
        for held in reversed(self._held_exchanges):
            model = held.download(task, model)
        return model

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result as the server sees it; called once for each client that trained.

        ``result.with_delta(update, payload)`` replaces the update and describes the message.
        """
        for held in self._held_exchanges:
            result = held.upload(result)
        return result

    def colluded(self, results: Sequence[ClientResult]) -> list[ClientResult]:
        """Return all results that the server is about to merge, when some clients' depend on others'; on all processes.

        Args:
            results: As they left :meth:`upload`, those of all processes, in the order in which they are merged.
        """
        return list(results)

    def summed(self, total: Tensor, count: float) -> tuple[Tensor, float]:
        """Return the sum of updates that the server sees, and the number that it divides it by; runs on all processes.

        Args:
            total: The true sum, shape ``(num_parameters,)``, float64; 0 if no client took part.
            count: The true number of clients.
        """
        return total, count

    def merged(self, aggregate: Tensor) -> Tensor:
        """Return what the server moves to, given the merged results, shape ``(size,)``, float64."""
        for held in self._held_exchanges:
            aggregate = held.merged(aggregate)
        return aggregate

    def published(self, model: Tensor) -> Tensor:
        """Return the model that is validated and checkpointed, given the server's, shape ``(size,)``."""
        for held in self._held_exchanges:
            model = held.published(model)
        return model

    def travels(self, name: str) -> bool:
        """Return whether the named parameter or buffer is sent at all."""
        return all(held.travels(name) for held in self._held_exchanges)

    def payload_down(self, payload: Payload) -> Payload:
        """Return what the server sends to one client, given what it would send of the parameters otherwise."""
        for held in reversed(self._held_exchanges):
            payload = held.payload_down(payload)
        return payload

    def payload_up(self, payload: Payload) -> Payload:
        """Return what a client sends whose result is left out, given what it would send of the parameters otherwise."""
        for held in self._held_exchanges:
            payload = held.payload_up(payload)
        return payload

    @property
    def _held_exchanges(self) -> list[Exchange]:
        return [part for part in self.held_parts if isinstance(part, Exchange)]

    # ---- for subclasses: the part of an update that travels ----

    def sent_places(self) -> Tensor | None:
        """Return the places of the parameters that all exchanges of the chain send; ``None`` if that is all of them."""
        if not self._knows_places:
            federation, chain = self.federation, self._whole_chain or self
            sent = [chain.travels(name) for name in federation.names[: len(federation.lengths)]]
            self._traveling, self._knows_places = None, True
            if not all(sent):
                flags = torch.tensor(sent).repeat_interleave(torch.tensor(federation.lengths))
                self._traveling = flags.nonzero().squeeze(1).to(federation.model.device)
        return self._traveling

    def sent_update(self, result: ClientResult) -> Tensor:
        """Return what is sent of a client's update: all but personal parameters, shape ``(num_sent,)``."""
        places = self.sent_places()
        return result.delta if places is None else result.delta[places]

    def with_sent_update(self, result: ClientResult, update: Tensor, payload: Payload | None = None) -> ClientResult:
        """Return the result with another :meth:`sent_update`; personal parameters are left as they are.

        Args:
            result: The client's.
            update: Shape ``(num_sent,)``.
            payload: What is sent of it; as before if ``None``.
        """
        places = self.sent_places()
        if places is None:
            return result.with_delta(update, payload)
        moved = (result.start[places] + update).to(result.vector.dtype)
        payload = result.payload if payload is None else payload
        return replace(result, vector=result.vector.index_copy(0, places, moved), payload=payload)
