"""The base of all parts of an algorithm, with the hooks of a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from fl_lightning.parts.contracts import keep_contracts
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.misspelt import refuse_misspelt
from fl_lightning.parts.saved_state import readable, refuse_half_state
from fl_lightning.representation import ShowsArguments
from fl_lightning.super_calls import is_of_library, keep_super_calls, relied_on, rely_on

#: What parts of the library must do in subclasses, too.
_RELIED_ON = {
    "__init__": "sets the attributes that its methods read",
    "state_dict": "returns the state that a resumed run needs; add your own to it",
    "load_state_dict": "takes the state that a resumed run needs",
    "on_fit_start": "returns to the state of a new fit",
    "on_round_start": "prepares a round",
    "on_round_end": "keeps what the round has changed",
}


def _holds_parts(part: Part) -> bool:
    return bool(part.held_parts)


#: Marks hooks that subclasses which hold parts must call.
passes_on = relied_on("passes this on to the parts that it holds", _holds_parts)


class Part(ShowsArguments):
    """One part of an algorithm. All hooks are optional.

    Hooks come in this order: :meth:`on_fit_start`, then in each round :meth:`on_round_start` and :meth:`on_round_end`,
    or :meth:`on_round_abort` where the round breaks off. A part changes its state only when a round ends, so that a
    round that breaks off leaves no trace. If a part raises an error while states change, the fit ends, and that state
    is never saved.
    """

    #: Whether the class comes with the library, so that its methods need no guard.
    is_of_library: ClassVar[bool] = True
    _federation: Federation | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_misspelt(cls, Part)
        refuse_half_state(cls)
        keep_contracts(cls)
        cls.is_of_library = is_of_library(cls)
        if cls.is_of_library:
            rely_on(_RELIED_ON)(cls)
        keep_super_calls(cls)

    @property
    def held_parts(self) -> Sequence[Part]:
        """Other parts that this one holds: hooks are passed on to them, and their states are part of its own."""
        return ()

    @property
    def with_held_parts(self) -> list[Part]:
        """This part, the parts that it holds, and those that they hold."""
        return [self, *(part for held in self.held_parts for part in held.with_held_parts)]

    @property
    def federation(self) -> Federation:
        """The federation of the fit.

        Raises:
            RuntimeError: Before the fit has begun.
        """
        if self._federation is None:
            raise RuntimeError(
                f"{type(self).__name__} has no federation before `trainer.fit` has begun. Read `federation` in "
                "`on_fit_start` or later."
            )
        return self._federation

    @relied_on("takes the federation of a fit")
    def attach(self, federation: Federation, *, fresh: bool = True) -> None:
        """Take the federation of a fit that begins.

        Args:
            federation: The run.
            fresh: Whether to start anew; otherwise the part continues from an earlier fit.
        """
        self._federation = federation
        if fresh:
            self.on_fit_start(federation)
        for held in self.held_parts:
            held.attach(federation, fresh=fresh)

    @passes_on
    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if the part cannot work together with the others; called when an algorithm is made.

        Args:
            parts: All parts by name: ``"sampler"``, ``"schedule"``, ``"objective"``, ``"aggregation"``, ``"exchange"``,
                ``"server_optimizer"``, and ``"participation"``.
        """
        for held in self.held_parts:
            held.check_beside(parts)

    @property
    def keeps_client_states(self) -> bool:
        """Whether clients keep vectors between rounds; each client then belongs to one process."""
        return False

    def on_fit_start(self, federation: Federation) -> None:
        """Called when a fit begins: return to the state of a new fit."""

    @passes_on
    def on_round_start(self, round_index: int) -> None:
        """Called before a round's clients are drawn; rounds are counted from 0."""
        for held in self.held_parts:
            held.on_round_start(round_index)

    @passes_on
    def on_round_end(self) -> None:
        """Called on all processes when every client of the round is done, before the server acts."""
        for held in self.held_parts:
            held.on_round_end()

    def on_round_abort(self) -> None:
        """Called when a round breaks off: forget what clients handed in since the last round's end."""
        for held in self.held_parts:
            held.on_round_abort()

    def values(self) -> dict[str, float]:
        """Return what the part logs at a round's end, by name; the same on all processes."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the last round's end that a resumed run needs.

        It may hold tensors, numbers, texts, None, and lists, tuples, sets and dicts of these.
        """
        return {}

    def readable_state(self) -> dict[str, Any]:
        """Return :meth:`state_dict` for a checkpoint.

        Raises:
            TypeError: If it holds anything that cannot be read again; see ``docs/extending.md``.
        """
        return readable(self, self.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint, after :meth:`on_fit_start`."""

    def _to_device(self, tensor: Tensor | None) -> Tensor | None:
        """Return a checkpoint's tensor on the device of the fit's model."""
        return None if tensor is None else tensor.to(self.federation.model.device)
