"""Several exchanges one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torch import Tensor

from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.exchange.buffers import BufferExchange
from fl_lightning.parts.exchange.same_exchanges import check_same_exchanges
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.guards.changes_in_place import call
from fl_lightning.parts.guards.contracts import are_finite, call_for_result, call_for_vector, check_results
from fl_lightning.parts.guards.saved_state import HELD_PARTS
from fl_lightning.parts.saved_results import other_class
from fl_lightning.parts.traffic import Payload


class Chain(Exchange):
    """Several exchanges, from the client to the server.

    A result passes through their ``upload`` in this order, a model through their ``download`` in reverse order.

    Args:
        members: The exchanges.

    Raises:
        TypeError: If a member is no :class:`Exchange`.
        ValueError: If one is given twice.
    """

    def __init__(self, members: Sequence[Exchange]) -> None:
        for member in members:
            if not isinstance(member, Exchange):
                hint = f" Call it: {member.__name__}(...)." if isinstance(member, type) else ""
                raise TypeError(
                    "`exchange` must be an Exchange of fl_lightning.parts, such as Clip(1.0), or a list of them, got "
                    f"{member!r}.{hint}"
                )
            if sum(member is other for other in members) > 1:
                raise ValueError(
                    f"{member!r} is given twice in `exchange`: one object, whose state both places would change. Make "
                    "another one for the second place."
                )
        self.members: list[Exchange] = list(members)
        self._results_are_saved = False

    @property
    def held_parts(self) -> list[Exchange]:
        """The members."""
        return self.members

    def attach(self, federation: Federation, *, fresh: bool = True) -> None:
        """Let all members take the federation."""
        for place, member in enumerate(self.members):
            member.join_chain(self, place)
        super().attach(federation, fresh=fresh)

    @property
    def colludes(self) -> bool:  # type: ignore[override]
        """Whether a member's clients know what others send."""
        return any(member.colludes for member in self.members)

    def colluded(self, results: Sequence[ClientResult]) -> list[ClientResult]:
        """Return all results that the server is about to merge."""
        for member in self.members:
            returned = call(member, "colluded", results, results=results)
            results = check_results(member, "colluded", returned, results)
        return list(results)

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Let all members look at the other parts.

        Raises:
            ValueError: If some clients know what others send, and the server or the user would not see what they make
                of it.
        """
        super().check_beside(parts)
        self._results_are_saved = parts["schedule"].saves_results
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
        if schedule.shows_client_models:
            raise ValueError(
                f"`schedule` is {schedule!r}, which shows the mean of the models that clients trained, before {name} "
                'changes them. Give `evaluate="server"`.'
            )

    def check_another_fit(self) -> None:
        """Let all members look at a fit that begins with the model that an earlier one left."""
        for member in self.members:
            member.check_another_fit()

    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model from which the client starts, shape ``(size,)``."""
        for member in reversed(self.members):
            model = call_for_vector(member, "download", task, model, watch=(model,), lengths=(len(model),))
        return model

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result as the server sees it.

        Raises:
            FloatingPointError: If a member makes NaN or infinite values of finite ones.
            TypeError: If a member returns a subclass of a result, and checkpoints hold results.
        """
        passed = [result]
        for member in self.members:
            passed.append(call_for_result(member, "upload", passed[-1]))
        if passed[-1].vector is not result.vector and not are_finite(passed[-1]):
            self._refuse_not_finite(passed)
        if self._results_are_saved and other_class(passed[-1]) is not None:
            self._refuse_other_class(passed)
        return passed[-1]

    def _refuse_not_finite(self, passed: Sequence[ClientResult]) -> NoReturn:
        """Raise an error that names the member whose result is the first that is not finite."""
        steps = zip(self.members, passed, passed[1:], strict=False)
        culprit, before = next((member, before) for member, before, after in steps if not are_finite(after))
        client, name = before.task.client, f"`{type(culprit).__name__}.upload`"
        if culprit.is_of_library:
            raise FloatingPointError(
                f"The update of client {client} is too large for {culprit!r}: its largest value is "
                f"{float(before.delta.abs().max()):.3g}, and what {name} makes of it leaves the range of "
                f"{before.vector.dtype}. Lower the learning rate or clip gradients, or put Clip(norm) before it in "
                "`exchange`. The round is discarded."
            )
        raise FloatingPointError(
            f"{name} returned NaN or infinite values for client {client}, which handed in finite ones. Check its "
            "arithmetic, such as a division by a norm that can be 0. The round is discarded."
        )

    def _refuse_other_class(self, passed: Sequence[ClientResult]) -> NoReturn:
        """Raise an error that names the member whose result is the first that a checkpoint could not hold."""
        makers = ["The executor", *(f"`{type(member).__name__}.upload`" for member in self.members)]
        maker, cls = next(
            (maker, cls) for maker, after in zip(makers, passed, strict=True) if (cls := other_class(after))
        )
        raise TypeError(
            f"{maker} returned a {cls.__name__}. Under this schedule the server merges results later, and checkpoints "
            "hold them until then: only what ClientResult, Task and Payload have. Put what the server needs into a "
            "field of these, such as `score` or `num_samples` of the task, or into a dict by client in `state_dict` of "
            "the aggregation, or use FedAvg."
        )

    def merged(self, aggregate: Tensor) -> Tensor:
        """Return what the server moves to, shape ``(size,)``."""
        return self._through("merged", aggregate)

    def published(self, model: Tensor) -> Tensor:
        """Return the model that is validated and checkpointed, shape ``(size,)``."""
        return self._through("published", model)

    def _through(self, method: str, model: Tensor) -> Tensor:
        n = self.federation.num_parameters
        for member in reversed(self.members):
            model = call_for_vector(member, method, model, watch=(model,), lengths=(len(model),), finite=n)
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

    def restore(self, state: dict[str, Any]) -> None:
        """Take the members' states of a checkpoint.

        Raises:
            ValueError: If the checkpoint was written with other exchanges.
        """
        check_same_exchanges([key.partition("-")[2] for key in state[HELD_PARTS]], self.names)
        super().restore(state)

    def overriding(self, *methods: str) -> list[str]:
        """Return the methods, of these names, that members define, such as ``"Mine.download"``; buffers aside."""
        return [
            f"`{type(member).__name__}.{method}`"
            for member in self.members
            for method in methods
            if getattr(type(member), method) is not getattr(Exchange, method) and not isinstance(member, BufferExchange)
        ]

    @property
    def names(self) -> list[str]:
        """The members' classes, from the client to the server."""
        return [type(member).__name__ for member in self.members]
