"""The base of exchanges, which answer the question: what travels?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, Payload, Task
from fl_lightning.parts.part import Part, walk
from fl_lightning.vectors import checked_vector

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


class Exchange(Part):
    """Decides from which model a client starts, how the server sees its result, and how much traffic that takes.

    The defaults send the whole model both ways. A subclass overrides the methods that it needs. :meth:`on_aggregate`,
    :meth:`on_publish`, :meth:`on_sum` and :meth:`collude` run on all processes, the others on the process that trains
    the client.
    """

    #: Whether it changes values that are 0, so that after a compression on the way up more is sent than is counted.
    fills_zeros = False
    #: Whether a message to a client, or from it, depends on earlier ones, so that all must be of one model.
    remembers_messages = False
    #: Whether messages of later rounds may be larger or smaller, so that no clock knows their sizes beforehand.
    varies_sizes = False
    #: Whether it is meant that no parameter is sent at all, so that each client trains alone.
    shares_nothing = False
    #: The position among the algorithm's exchanges, from the client to the server; set when a fit begins.
    place = 0

    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model that the client receives, with what it keeps of its own, shape ``(size,)``.

        It is asked whenever that model is needed, and changes no state: :meth:`on_delivery` does.

        Args:
            task: The client's task; all trainings that share a message have its random numbers.
            model: What the server sends, shape ``(size,)``: parameters first, then buffers; not to be written to.
        """
        return model

    def on_delivery(self, task: Task, received: Tensor) -> None:
        """Called once for each message that a client has answered, by a result or by a score.

        Args:
            task: The client's task.
            received: What :meth:`download` returned, after all exchanges, shape ``(size,)``.
        """

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result as the server sees it; called once for each client that trained.

        ``result.with_delta(update, payload)`` replaces the update and describes the message.
        """
        return result

    def on_upload_elsewhere(self, result: ClientResult) -> None:
        """Called on the server in the place of :meth:`upload`, where that ran on a client that is another machine.

        Args:
            result: As it left all exchanges.
        """

    def without_kept(self, model: Tensor) -> Tensor:
        """Return a model as the server knows it, without what the client keeps of its own, shape ``(size,)``."""
        return model

    def collude(self, results: Sequence[ClientResult]) -> Sequence[ClientResult]:
        """Return all results that the server is about to merge, when some clients' depend on others'; on all processes.

        Args:
            results: As they left :meth:`upload`, those of all processes, in the order in which they are merged.
        """
        return results

    def on_sum(self, total: Tensor, count: float) -> tuple[Tensor, float]:
        """Return the sum of updates that the server sees, and the number that it divides it by; runs on all processes.

        Args:
            total: The true sum, shape ``(num_parameters,)``, float64; 0 if no client took part.
            count: The true number of clients.
        """
        return total, count

    def on_aggregate(self, aggregate: Tensor) -> Tensor:
        """Return what the server moves to, given the merged results, shape ``(size,)``, float64."""
        return aggregate

    def on_publish(self, model: Tensor) -> Tensor:
        """Return the model that is validated and checkpointed, given the server's, shape ``(size,)``."""
        return model

    def travels(self, name: str) -> bool:
        """Return whether the named parameter or buffer is sent at all."""
        return True

    def keeps(self, name: str) -> bool:
        """Return whether clients keep values of their own of the named parameter or buffer, from round to round."""
        return False

    def held(self, task: Task) -> Tensor | None:
        """Return which values of the model the task's client holds, booleans of shape ``(size,)``; ``None`` for all.

        All others are 0 in the model that it receives and in the one that it sends, and do not travel.
        """
        return None

    def payload_down(self, payload: Payload, task: Task | None = None) -> Payload:
        """Return what the server sends to one client, given what it would send of the parameters otherwise.

        Args:
            payload: What it would send.
            task: The client's task; ``None`` for a message to any client.
        """
        return payload

    def payload_up(self, payload: Payload) -> Payload:
        """Return what a client sends whose result is left out, given what it would send of the parameters otherwise."""
        return payload

    def check_another_fit(self) -> None:
        """Raise ``ValueError`` if no fit may begin at round 0 with the model that an earlier fit of this part left."""

    @property
    def changes_updates(self) -> bool:
        """Whether the server may see another update of the parameters that travel than the client has made.

        A subclass with an :meth:`upload` of its own may change it, so the answer is yes unless it says no itself.
        """
        return type(self).upload is not Exchange.upload

    @property
    def sums_updates(self) -> bool:
        """Whether the server sees only the sum of all updates, by :meth:`on_sum`."""
        return type(self).on_sum is not Exchange.on_sum

    @property
    def colludes(self) -> bool:
        """Whether some clients know what others send, so that :meth:`collude` is called."""
        return type(self).collude is not Exchange.collude

    # ---- for subclasses: the part of an update that travels ----

    def sent(self, vector: Tensor) -> Tensor:
        """Return the values of a vector of parameters that are sent, shape ``(num_sent,)``: all but personal ones."""
        return self.federation.traveling_values(vector)

    def filled(self, values: Tensor, like: Tensor) -> Tensor:
        """Return ``like``, shape ``(num_parameters,)``, with these values at the places that are sent."""
        return self.federation.filled(values, like)

    def sent_update(self, result: ClientResult) -> Tensor:
        """Return what is sent of a client's update: all but personal parameters, shape ``(num_sent,)``."""
        return self.sent(result.delta)

    def with_sent_update(self, result: ClientResult, update: Tensor, payload: Payload | None = None) -> ClientResult:
        """Return the result with another :meth:`sent_update`; personal parameters are left as they are.

        Args:
            result: The client's.
            update: Shape ``(num_sent,)``.
            payload: What is sent of it; as before if ``None``.
        """
        places = self.federation.traveling_places
        if places is None:
            return result.with_delta(update, payload)
        moved = (result.received[places] + update).to(result.vector.dtype)
        payload = result.payload if payload is None else payload
        return replace(result, vector=result.vector.index_copy(0, places, moved), payload=payload)

    def check_buffers(self, result: ClientResult) -> None:
        """Raise ``ValueError`` if training changed buffers, which would travel unprotected."""
        if result.changes_buffers:
            raise ValueError(
                f'`buffers` must be "server": training changes some, such as BatchNorm\'s, and {self!r} protects only '
                "trained parameters. Or use GroupNorm."
            )

    def clipped(self, result: ClientResult, norm: float) -> ClientResult:
        """Return the result with an L2 norm of its :meth:`sent_update` of at most ``norm``; itself if that is so."""
        update = self.sent_update(result)
        length = float(torch.linalg.vector_norm(update.double()))
        if length <= norm:
            return result
        return self.with_sent_update(result, update * (norm / length))


class Chain(Exchange):
    """Several exchanges, from the client to the server.

    A result passes through their ``upload`` in this order, a model through their ``download`` in reverse order.

    Args:
        members: The exchanges.
    """

    def __init__(self, members: Sequence[Exchange]) -> None:
        self.members = list(members)

    @override
    def setup(self, federation: Federation) -> None:
        """Tell the members their places."""
        for place, member in enumerate(self.members):
            for part in walk(member):
                if isinstance(part, Exchange):
                    part.place = place

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether some clients know what others send, and the server or the user would not see it."""
        summing = [member for member in self.members if member.sums_updates]
        for member in self.members:
            if not member.colludes:
                continue
            if summing:
                yield f"`exchange` cannot have {member!r} with {summing[0]!r}, which shows only the sum of the updates."
            if algorithm.schedule.shows_client_models:
                yield (
                    f"`exchange` cannot have {member!r} with {algorithm.schedule!r}, which shows models before they "
                    'are changed. Give `evaluate="server"`, which shows the server\'s.'
                )

    @override
    def check_another_fit(self) -> None:
        for member in self.members:
            member.check_another_fit()

    @override
    def download(self, task: Task, model: Tensor) -> Tensor:
        for member in reversed(self.members):
            model = checked_vector(member, "download", member.download(task, model), model)
        return model

    @override
    def on_delivery(self, task: Task, received: Tensor) -> None:
        for member in self.members:
            member.on_delivery(task, received)

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        for member in self.members:
            seen = member.upload(result)
            checked_vector(member, "upload", seen.vector, result.vector)
            if seen.vector is not result.vector and not seen.is_finite:
                raise FloatingPointError(
                    f"{member!r} made NaN or infinite values of client {result.client}'s. Put Clip(norm) before it."
                )
            result = seen
        return result

    @override
    def on_upload_elsewhere(self, result: ClientResult) -> None:
        for member in self.members:
            member.on_upload_elsewhere(result)

    @override
    def without_kept(self, model: Tensor) -> Tensor:
        for member in self.members:
            model = member.without_kept(model)
        return model

    @override
    def collude(self, results: Sequence[ClientResult]) -> Sequence[ClientResult]:
        for member in self.members:
            results = member.collude(results)
        return results

    @property
    @override
    def colludes(self) -> bool:
        """Whether a member's clients know what others send."""
        return any(member.colludes for member in self.members)

    @override
    def on_aggregate(self, aggregate: Tensor) -> Tensor:
        # Buffers may be NaN: constant ones are what the user has put there.
        finite = self.federation.layout.num_parameters
        for member in reversed(self.members):
            seen = member.on_aggregate(aggregate)
            aggregate = checked_vector(member, "on_aggregate", seen, aggregate, finite=finite)
        return aggregate

    @override
    def on_publish(self, model: Tensor) -> Tensor:
        finite = self.federation.layout.num_parameters
        for member in reversed(self.members):
            model = checked_vector(member, "on_publish", member.on_publish(model), model, finite=finite)
        return model

    @override
    def travels(self, name: str) -> bool:
        return all(member.travels(name) for member in self.members)

    @property
    @override
    def shares_nothing(self) -> bool:  # type: ignore[override]
        """Whether a member means each client to train alone."""
        return any(member.shares_nothing for member in self.members)

    @override
    def held(self, task: Task) -> Tensor | None:
        for member in self.members:
            held = member.held(task)
            if held is not None:
                return held
        return None

    @override
    def payload_down(self, payload: Payload, task: Task | None = None) -> Payload:
        for member in reversed(self.members):
            payload = member.payload_down(payload, task)
        return payload

    @override
    def payload_up(self, payload: Payload) -> Payload:
        for member in self.members:
            payload = member.payload_up(payload)
        return payload
