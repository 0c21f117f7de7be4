"""The base of compressions: which way, error feedback, and what is sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fl_lightning.arguments import check_bool, check_choice
from fl_lightning.parts.client_states import ClientStates
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.guards.contracts import call_for_vector
from fl_lightning.parts.traffic import Payload
from fl_lightning.seeding import Stream, torch_generator

Link = Literal["up", "down"]


class Compressor(Exchange, ABC):
    """Sends an approximation that takes fewer bits: of a client's update, or of the model that it receives.

    Up: the client sends ``C(update)``. With error feedback it sends ``C(update + e)`` and keeps the remainder as its
    next e (Seide et al. 2014, Stich et al. 2018).

    Down: the server remembers which model each client knows, at first the run's first model, and sends the compressed
    difference to it. A client starts from the model that it knows plus this difference. A remainder is part of the next
    difference, so this is error feedback too (Mishchenko et al. 2019, Richtarik et al. 2021).

    Buffers and personal parameters are not compressed. In a list of compressions, the second one sees only the values
    that the first one sends, and has no error feedback: what it owes would lie at other places.

    Args:
        link: ``"up"`` from the client to the server, or ``"down"``; for both, give two in a list.
        error_feedback: Whether the remainder is sent later; the class's default if ``None``.

    Raises:
        TypeError: If ``error_feedback`` is neither True nor False.
        ValueError: If ``link`` is unknown, or error feedback is to be off on the way down; when an algorithm is made,
            if another exchange in the list makes the counted bits wrong.
    """

    feeds_back: ClassVar[bool] = False
    """The default of ``error_feedback`` on the way up."""
    alone: ClassVar[bool] = False
    """Whether it must be the only compression of its way, because it sends something else than values."""

    def __init__(self, link: Link = "up", error_feedback: bool | None = None) -> None:
        check_choice("link", link, ("up", "down"))
        if error_feedback is not None:
            check_bool("error_feedback", error_feedback)
        if link == "down" and error_feedback is False:
            raise ValueError(
                '`error_feedback=False` is not possible with `link="down"`: the server sends the difference to the '
                "model that a client knows, so a remainder is always sent later. Leave the argument out."
            )
        self.link = link
        self.error_feedback = (link == "down" or self.feeds_back) if error_feedback is None else bool(error_feedback)
        self._received: dict[int, Tensor] = {}

    @abstractmethod
    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return what the receiver makes of the message, shape ``(n,)``.

        Args:
            values: What is to be sent, shape ``(n,)``; not to be written to.
            generator: For what is drawn, on the CPU; the same on both sides.
        """

    @abstractmethod
    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the message, given that of what is compressed."""

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for another compression on the way down, or exchanges after which the bits are wrong."""
        members = getattr(parts["exchange"], "members", [])
        same = [member for member in members if isinstance(member, Compressor) and member.link == self.link]
        if self.link == "down" and len(same) > 1:
            raise ValueError(
                f"`exchange` has {len(same)} compressions on the way down, {same[0]!r} and {same[1]!r}: each would "
                "remember another model of each client. Keep one of them."
            )
        if len(same) > 1 and any(member.alone for member in same):
            raise ValueError(
                f"`exchange` has {same[0]!r} and {same[1]!r} on the same way: one of them sends something else than "
                "values, which the other one cannot see, so that the bits would be wrong. Keep one of them."
            )
        if self.link == "up" and self in members:
            for later in members[members.index(self) + 1 :]:
                self._refuse_after(later)

    def _refuse_after(self, later: Exchange) -> None:
        """Raise ``ValueError`` if a later exchange sends more than the values that are counted."""
        if later.fills_zeros:
            raise ValueError(
                f"`exchange` has {later!r} after {self!r}: it changes values that a compression leaves out or rounds, "
                "so that more would be sent than is counted. Put it before the compression."
            )
        if isinstance(later, Compressor) and later.link == "up" and later.error_feedback:
            raise ValueError(
                f"`exchange` has {later!r} after {self!r}: what it owes lies at places that the first one does not "
                "send, so that more would be sent than is counted. Give the second one `error_feedback=False`."
            )

    def on_fit_start(self, federation: Federation) -> None:
        """Let all clients know the first model, and owe nothing."""
        self._received = {}
        first = federation.model[: federation.num_parameters]
        initial = torch.zeros_like(first) if self.link == "up" else first.clone()
        self.states = ClientStates(federation, initial) if self.error_feedback else None

    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model that the client knows then, shape ``(size,)``."""
        if self.link == "up" or self.states is None:
            return model
        known, places = self.states[task.client], self.sent_places()
        difference = self._at_sent_places(model[: len(known)] - known)
        renewed = known + self._from_sent_places(self._sent(difference, len(difference), task), known)
        # kept when the client answers; a client that never does is one that the message did not reach
        self._received[task.client] = renewed
        if places is None:
            return torch.cat([renewed, model[len(known) :]])
        return model.index_copy(0, places, renewed[places])

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result with the compressed update."""
        client = result.task.client
        if self.link == "down":
            if self.states is not None and client in self._received:
                self.states.put(client, self._received.pop(client))
            return result
        update = self.sent_update(result)
        if self.states is not None:
            update = update + self._at_sent_places(self.states[client])
        sent = self._sent(update, result.payload.values, result.task)
        if self.states is not None:
            self.states.put(client, self._from_sent_places(update - sent, self.states[client]))
        return self.with_sent_update(result, sent, self.encoded(result.payload))

    def payload_down(self, payload: Payload) -> Payload:
        """Return what the server sends to one client."""
        return self.encoded(payload) if self.link == "down" else payload

    def payload_up(self, payload: Payload) -> Payload:
        """Return what a client sends whose result is left out."""
        return self.encoded(payload) if self.link == "up" else payload

    def on_round_end(self) -> None:
        """Keep what clients owe, or know."""
        super().on_round_end()
        self._received = {}

    def on_round_abort(self) -> None:
        """Forget the round."""
        super().on_round_abort()
        self._received = {}

    def _sent(self, values: Tensor, number: int, task: Task) -> Tensor:
        """Compress the ``number`` values that exchanges before this one send; the others are 0."""
        seeds = (self._place_in_chain, ("up", "down").index(self.link), *task.seeds)
        generator = torch_generator(self.federation.seed, Stream.COMPRESSION, *seeds)
        kept = values.nonzero().squeeze(1) if number < len(values) else None
        given = values if kept is None else values[kept]
        what = f"({len(given)},), what the receiver makes of the values"
        lengths = (len(given),)
        sent = call_for_vector(self, "compress", given, generator, watch=(given,), lengths=lengths, allowed=what)
        return sent if kept is None else torch.zeros_like(values).index_copy(0, kept, sent)

    def _at_sent_places(self, vector: Tensor) -> Tensor:
        places = self.sent_places()
        return vector if places is None else vector[places]

    def _from_sent_places(self, values: Tensor, like: Tensor) -> Tensor:
        places = self.sent_places()
        return values if places is None else torch.zeros_like(like).index_copy(0, places, values)
