"""The base of all parts of an algorithm, with the hooks of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Self

from torch import Tensor

from fl_lightning.parts.client_states import ClientStates
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.guards.contracts import keep_contracts
from fl_lightning.parts.guards.own_hooks import refuse_misspelt, refuse_other_arguments, refuse_reserved
from fl_lightning.parts.guards.saved_state import (
    CLIENT_STATES,
    HELD_PARTS,
    defines,
    readable,
    refuse_half_state,
    refuse_lost_state,
)
from fl_lightning.parts.hyperparameter import Hyperparameter
from fl_lightning.parts.of_held import held_in
from fl_lightning.plain_copies import plain_copy, same_content
from fl_lightning.representation import ShowsArguments, keep_arguments
from fl_lightning.super_calls import is_of_library, keep_super_calls, relied_on, rely_on, user_classes

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


def _keeps_vectors_or_holds_parts(part: Part) -> bool:
    return bool(part.client_states or part.held_parts)


#: Marks hooks that subclasses which hold parts must call.
passes_on = relied_on("passes this on to the parts that it holds", _holds_parts)
#: What the library calls and no part may replace.
_RESERVED = (
    *("client_states", "may_draw", "with_held_parts", "held_parts_by_place", "readable_state", "restore", "join_chain"),
    *("frozen_state", "keep_state", "forget_kept_state", "return_to_kept_state", "keeps_another_fit"),
)


class Part(ShowsArguments):
    """One part of an algorithm. All hooks are optional.

    Hooks come in this order: :meth:`on_fit_start`, then in each round :meth:`on_round_start` and :meth:`on_round_end`,
    or :meth:`on_round_abort` where the round breaks off. A part of the library changes its state only when a round
    ends; one of a user's own may change at any time what its ``state_dict`` returns, because a round that breaks off
    takes it back. If a part raises an error while states change, the fit ends, and that state is never saved.
    """

    #: Whether the class comes with the library, so that its methods need no guard.
    is_of_library: ClassVar[bool] = True
    #: Whether ``state_dict`` is a user's own.
    defines_state: ClassVar[bool] = False
    #: Whether ``state_dict`` collects what other processes keep.
    gathers_state: ClassVar[bool] = False
    #: The usual name of the vectors that clients keep between rounds; ``None`` if they keep none.
    states: ClientStates | None = None
    _federation: Federation | None = None
    _state_at_round_start: Callable[[], dict[str, Any]] | None = None  # of the round under way
    _state_at_first_fit: dict[str, Any] | None = None
    _first_state_is_unknown = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a part that knows the arguments with which it is made, whatever its attributes are called."""
        part = super().__new__(cls, *args, **kwargs)
        if not cls.is_of_library:
            keep_arguments(part, args, kwargs)
        return part

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_misspelt(cls, Part)
        refuse_half_state(cls)
        keep_contracts(cls)
        cls.is_of_library, cls.defines_state = is_of_library(cls), defines(cls, "state_dict")
        if cls.is_of_library:
            rely_on(_RELIED_ON)(cls)
        else:
            refuse_reserved(cls, _RESERVED)
            refuse_other_arguments(cls, Part)
        keep_super_calls(cls)

    @property
    def held_parts(self) -> Sequence[Part]:
        """Other parts that this one holds: hooks are passed on to them, and their states are saved with its own."""
        return ()

    @property
    def held_parts_by_place(self) -> dict[str, Part]:
        """:attr:`held_parts` by place and class, as in ``"0-Clip"``: their keys in checkpoints."""
        return {f"{place}-{type(held).__name__}": held for place, held in enumerate(self.held_parts)}

    @property
    def with_held_parts(self) -> list[Part]:
        """This part, the parts that it holds, and those that they hold."""
        return [self, *(part for held in self.held_parts for part in held.with_held_parts)]

    @property
    def may_draw(self) -> bool:
        """Whether code of a user's own is called, a class or a function, which may draw from the global generators."""
        return not self.is_of_library

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

        Raises:
            TypeError: If the table of a hyper-parameter has no value for one of the fit's rounds.
            ValueError: If such a value is not allowed.
        """
        for value in vars(self).values():
            if isinstance(value, Hyperparameter):
                value.check_rounds(federation.max_rounds)
        own = federation
        if not self.is_of_library:  # which may write to what it is given
            own = replace(federation, model=federation.model.clone(), sizes=federation.sizes.copy())
        self._federation, self._state_at_round_start = own, None
        if fresh:
            self.on_fit_start(own)
            self._return_to_first_state()
        else:
            for states in self.client_states.values():
                states.attach(own)
        for held in self.held_parts:
            held.attach(self.federation_of_held(federation), fresh=fresh)

    def federation_of_held(self, federation: Federation) -> Federation:
        """Return the federation that held parts see, given the one that this part sees."""
        return federation

    @passes_on
    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if the part cannot work together with the others.

        Called when an algorithm is made, and again when a fit begins.

        Args:
            parts: All parts by name: ``"sampler"``, ``"schedule"``, ``"objective"``, ``"aggregation"``, ``"exchange"``,
                ``"server_optimizer"``, and ``"participation"``.
        """
        for held in self.held_parts:
            held.check_beside(parts)

    @property
    def client_states(self) -> dict[str, ClientStates]:
        """The vectors that clients keep for this part: each :class:`ClientStates`, by attribute."""
        return held_in(self, ClientStates)

    @property
    def keeps_client_states(self) -> bool:
        """Whether clients keep vectors between rounds; each client then belongs to one process."""
        return any(part.client_states for part in self.with_held_parts)

    def on_fit_start(self, federation: Federation) -> None:
        """Called when a fit begins: return to the state of a new fit."""

    @passes_on
    def on_round_start(self, round_index: int) -> None:
        """Called before a round's clients are drawn; rounds are counted from 0."""
        for held in self.held_parts:
            held.on_round_start(round_index)

    @relied_on(
        "keeps the vectors that clients handed in, and passes this on to the parts that it holds",
        _keeps_vectors_or_holds_parts,
    )
    def on_round_end(self) -> None:
        """Called on all processes when every client of the round is done, before the server optimizer steps.

        Keeps the new vectors of :attr:`client_states`.
        """
        for held in self.held_parts:
            held.on_round_end()
        for states in self.client_states.values():
            states.on_round_end()

    def on_round_abort(self) -> None:
        """Called when a round breaks off: forget what clients handed in since the last round's end."""
        for held in self.held_parts:
            held.on_round_abort()

    def values(self) -> dict[str, float]:
        """Return what the part logs at a round's end, by name; the same on all processes."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the part's own state that a resumed run needs; :attr:`client_states` and held parts are saved anyway.

        It may hold tensors, numbers, texts, None, and lists, tuples, sets and dicts of these. It asks no other process.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what :meth:`state_dict` returned: of a checkpoint, or at the start of a round that breaks off."""

    # ---- for the library: all that a checkpoint holds of a part ----

    def readable_state(self) -> dict[str, Any]:
        """Return the own state, clients' vectors and the states of held parts; those at the start of a round under way.

        Raises:
            TypeError: If it holds anything that cannot be read again; see ``docs/extending.md``.
        """
        own = readable(self, self.state_dict() if self._state_at_round_start is None else self._state_at_round_start())
        vectors = {name: states.state_dict() for name, states in self.client_states.items()}
        held = {key: part.readable_state() for key, part in self.held_parts_by_place.items()}
        beside = {CLIENT_STATES: vectors, HELD_PARTS: held}
        return {**own, **{name: state for name, state in beside.items() if state}}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what :meth:`readable_state` returned, after :meth:`on_fit_start`.

        Raises:
            ValueError: If the checkpoint and the part do not keep the same vectors of clients, or it holds the state of
                a part that this one does not hold.
        """
        own = state.copy()
        vectors, held = own.pop(CLIENT_STATES, {}), own.pop(HELD_PARTS, {})
        states, parts = self.client_states, self.held_parts_by_place
        refuse_lost_state(self, vectors, states, held, parts)
        for name, saved in vectors.items():
            states[name].load_state_dict(saved)
        for key in parts.keys() & held.keys():
            parts[key].restore(held[key])
        self.load_state_dict(own)

    def frozen_state(self) -> Callable[[], dict[str, Any]]:
        """Return a function that gives the present :meth:`state_dict`, whatever changes later."""
        # parts of the library change nothing in place
        state = self.state_dict() if self.is_of_library else plain_copy(readable(self, self.state_dict()))
        return state.copy

    def _return_to_first_state(self) -> None:
        """Return to the own state at the first fit's start, where a class of a user's own does not do so itself."""
        if not self.defines_state or defines(type(self), "on_fit_start"):
            return
        if self._first_state_is_unknown:
            raise RuntimeError(
                f"{type(self).__name__} begins another fit, and how it began the first one is not known: its "
                "`state_dict` failed then, because an attribute was not there yet. Define `on_fit_start`, which sets "
                "the attributes to those of a new fit."
            )
        if self._state_at_first_fit is None:
            try:
                self._state_at_first_fit = plain_copy(self.state_dict())
            except AttributeError:  # what its first round makes is not there yet
                self._first_state_is_unknown = True
        else:
            of_library: Any = user_classes(type(self))[1]  # which has returned to the state of a new fit
            self.load_state_dict({**plain_copy(self._state_at_first_fit), **of_library.state_dict(self)})

    def keeps_another_fit(self, federation: Federation) -> bool:
        """Return whether the part keeps the state of a fit with another federation."""
        own = self._federation
        is_other = own is not None and own.client_states is not federation.client_states
        return is_other and bool(self.client_states or self.state_dict())

    def keep_state(self) -> None:
        """Keep the own state until the round is over; ``TypeError`` if a checkpoint could not hold it."""
        self._state_at_round_start = None
        with suppress(AttributeError):  # what its first round makes is not there yet
            self._state_at_round_start = self.frozen_state()

    def forget_kept_state(self) -> None:
        """Let the state be the present one, since the round is over."""
        self._state_at_round_start = None

    def return_to_kept_state(self) -> None:
        """Return to the own state at the start of a round that breaks off."""
        kept, self._state_at_round_start = self._state_at_round_start, None
        if kept is not None and (self.is_of_library or not same_content(kept(), self.state_dict())):
            self.load_state_dict(kept())

    def _to_device(self, tensor: Tensor | None) -> Tensor | None:
        """Return a checkpoint's tensor on the device of the fit's model."""
        return None if tensor is None else tensor.to(self.federation.model.device)
