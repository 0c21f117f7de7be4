"""What travels between the server and its clients: the base of all exchanges, and a chain of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fl_lightning.parts.client_states import StatefulPart
from fl_lightning.parts.exchange.same_exchanges import check_same_exchanges
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.traffic import Payload


class Exchange(StatefulPart):
    """Decides from which model a client starts, how the server sees its result, and how much traffic that takes.

    The defaults send the whole model both ways. A subclass overrides the methods that it needs. :meth:`merged` and
    :meth:`published` run on all processes, the others on the process that trains the client.
    """

    #: Whether the server sees only the sum of all updates, by :meth:`summed`. It is then the last of the exchanges.
    sums_updates = False
    #: Whether some clients know what others send, so that :meth:`colluded` is called.
    colludes = False
    #: Whether it changes values that are 0, so that after a compression on the way up more is sent than is counted.
    fills_zeros = False
    #: The exchanges of which this is one; none outside of an algorithm.
    chain: Exchange | None = None
    #: Its place among them, from the client to the server.
    place = 0
    _traveling: Tensor | None = None
    _knows_places = False

    def attach(self, federation: Federation, *, fresh: bool = True) -> None:
        """Take the federation of a fit."""
        self._knows_places = False
        super().attach(federation, fresh=fresh)

    def check_another_fit(self) -> None:
        """Raise ``ValueError`` if no fit may begin at round 0 with the model that an earlier fit of this part left."""

    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model from which the client starts, shape ``(size,)``.

        Args:
            task: The client's task.
            model: What the server sends, shape ``(size,)``: parameters first, then buffers; not to be written to.
        """
        return model

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result as the server sees it; called once for each client that trained.

        ``result.with_delta(update, payload)`` replaces the update and describes the message.
        """
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
        return aggregate

    def published(self, model: Tensor) -> Tensor:
        """Return the model that is validated and checkpointed, given the server's, shape ``(size,)``."""
        return model

    def travels(self, name: str) -> bool:
        """Return whether the named parameter or buffer is sent at all."""
        return True

    def payload_down(self, payload: Payload) -> Payload:
        """Return what the server sends to one client, given what it would send of the parameters otherwise."""
        return payload

    def payload_up(self, payload: Payload) -> Payload:
        """Return what a client sends whose result is left out, given what it would send of the parameters otherwise."""
        return payload

    # ---- for subclasses: the part of an update that travels ----

    def sent_places(self) -> Tensor | None:
        """Return the places of the parameters that all exchanges of the chain send; ``None`` if that is all of them."""
        if not self._knows_places:
            federation, chain = self.federation, self.chain or self
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


class Chain(Exchange):
    """Several exchanges, from the client to the server.

    A result passes through their ``upload`` in this order, a model through their ``download`` in reverse order.

    Args:
        members: The exchanges.

    Raises:
        TypeError: If a member is no :class:`Exchange`.
    """

    def __init__(self, members: Sequence[Exchange]) -> None:
        for member in members:
            if not isinstance(member, Exchange):
                hint = f" Call it: {member.__name__}(...)." if isinstance(member, type) else ""
                raise TypeError(
                    "`exchange` must be an Exchange of fl_lightning.parts, such as Clip(1.0), or a list of them, got "
                    f"{member!r}.{hint}"
                )
        self.members = list(members)

    @property
    def keeps_client_states(self) -> bool:
        """Whether a member keeps vectors of clients."""
        return any(member.keeps_client_states for member in self.members)

    def attach(self, federation: Federation, *, fresh: bool = True) -> None:
        """Let all members take the federation."""
        super().attach(federation, fresh=fresh)
        for place, member in enumerate(self.members):
            member.chain, member.place = self, place
            member.attach(federation, fresh=fresh)

    @property
    def colludes(self) -> bool:  # type: ignore[override]
        """Whether a member's clients know what others send."""
        return any(member.colludes for member in self.members)

    def colluded(self, results: Sequence[ClientResult]) -> list[ClientResult]:
        """Return all results that the server is about to merge."""
        for member in self.members:
            results = member.colluded(results)
        return list(results)

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Let all members look at the other parts.

        Raises:
            ValueError: If some clients know what others send, and the server or the user would not see what they make
                of it.
        """
        for member in self.members:
            member.check_beside(parts)
        for member in self.members:
            if member.colludes:
                self._refuse_beside(member, parts["schedule"])

    def _refuse_beside(self, colluding: Exchange, schedule: Any) -> None:
        name = type(colluding).__name__
        for member in self.members:
            if member.sums_updates:
                raise ValueError(
                    f"{name} needs the updates of a round's clients, but {type(member).__name__} gives the server only "
                    "their sum. Use an exchange of single updates, such as the attack SignFlipping."
                )
        shown = getattr(schedule, "evaluate", "server")
        if shown in ("active", "all"):
            raise ValueError(
                f'`evaluate="{shown}"` shows the mean of the models that clients trained, before {name} changes them. '
                'Give `evaluate="server"`.'
            )

    def check_another_fit(self) -> None:
        """Let all members look at a fit that begins with the model that an earlier one left."""
        for member in self.members:
            member.check_another_fit()

    def values(self) -> dict[str, float]:
        """Return what the members log."""
        return {name: value for member in self.members for name, value in member.values().items()}

    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model from which the client starts, shape ``(size,)``."""
        for member in reversed(self.members):
            model = member.download(task, model)
        return model

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result as the server sees it."""
        for member in self.members:
            result = member.upload(result)
        return result

    def merged(self, aggregate: Tensor) -> Tensor:
        """Return what the server moves to, shape ``(size,)``."""
        for member in reversed(self.members):
            aggregate = member.merged(aggregate)
        return aggregate

    def published(self, model: Tensor) -> Tensor:
        """Return the model that is validated and checkpointed, shape ``(size,)``."""
        for member in reversed(self.members):
            model = member.published(model)
        return model

    def travels(self, name: str) -> bool:
        """Return whether all members send the named tensor."""
        return all(member.travels(name) for member in self.members)

    def payload_down(self, payload: Payload) -> Payload:
        """Return what the server sends to one client."""
        for member in reversed(self.members):
            payload = member.payload_down(payload)
        return payload

    def payload_up(self, payload: Payload) -> Payload:
        """Return what a client sends whose result is left out."""
        for member in self.members:
            payload = member.payload_up(payload)
        return payload

    def on_round_start(self, round_index: int) -> None:
        """Prepare all members for a round."""
        for member in self.members:
            member.on_round_start(round_index)

    def on_round_end(self) -> None:
        """End the round for all members."""
        for member in self.members:
            member.on_round_end()

    def on_round_abort(self) -> None:
        """Let all members forget the round."""
        for member in self.members:
            member.on_round_abort()

    def state_dict(self) -> dict[str, Any]:
        """Return each member's state, by its place and its class."""
        return {self._key(place): member.state_dict() for place, member in enumerate(self.members)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the members' states of a checkpoint.

        Raises:
            ValueError: If the checkpoint was written with other exchanges.
        """
        check_same_exchanges([key.partition("-")[2] for key in state], self.names)
        for place, member in enumerate(self.members):
            member.load_state_dict(state[self._key(place)])

    @property
    def names(self) -> list[str]:
        """The members' classes, from the client to the server."""
        return [type(member).__name__ for member in self.members]

    def _key(self, place: int) -> str:
        return f"{place}-{self.names[place]}"
