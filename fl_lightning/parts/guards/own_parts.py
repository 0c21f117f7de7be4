"""Checks of parts of a user's own: that they do something, and that all they hold is called, kept and saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fl_lightning.arguments import got
from fl_lightning.parts.client_states import ClientStates
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.exchange.chain import Chain
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.objectives import LocalObjective
from fl_lightning.parts.of_held import held_in
from fl_lightning.parts.part import Part
from fl_lightning.super_calls import is_of_library, user_classes


def of_users(parts: Sequence[Part]) -> list[Part]:
    """Return the parts whose classes are a user's own."""
    return [part for part in parts if not part.is_of_library]


def refuse_idle(part: Part) -> None:
    """Raise ``TypeError`` if a part of a user's own does nothing: it overrides no method of its base class."""
    own, base = user_classes(type(part))
    if not own or base not in (LocalObjective, Exchange):
        return
    names = {name for cls in own for name in vars(cls)} - {"is_of_library", "defines_state"}
    names |= {name for name, value in vars(part).items() if callable(value)}
    if any(name in names for name in dir(base) if not name.startswith("_")):
        return
    methods = sorted(name for cls in own for name, value in vars(cls).items() if callable(value) and name[0] != "_")
    unused = f"; nothing calls `{'`, `'.join(methods)}`" if methods else ""
    hooks = "`correction`" if base is LocalObjective else "`download`, `upload` or `published`"
    raise TypeError(
        f"{type(part).__name__} overrides no method of {base.__name__}, so it would change nothing{unused}. Define "
        f"{hooks}, or leave the part out. The methods of {base.__name__} are: {', '.join(_methods(base))}."
    )


def refuse_own_exchange(objective: LocalObjective) -> None:
    """Raise ``TypeError`` if an objective of a user's own has an attribute ``exchange``, which the algorithm sets."""
    own, _ = user_classes(type(objective))
    held = vars(objective).get("exchange")
    if not isinstance(held, Chain | None) or any("exchange" in vars(cls) for cls in own):
        raise TypeError(
            f"`{type(objective).__name__}` has an attribute `exchange`, which would be replaced by the algorithm's "
            "exchanges. Give it another name."
        )


def refuse_held_sums(part: Part) -> None:
    """Raise ``TypeError`` if an exchange of a user's own holds one that must see all updates, or their sum."""
    if not isinstance(part, Exchange) or part.is_of_library:
        return
    for held in part.held_parts:
        for flag, method in (("sums_updates", "summed"), ("colludes", "colluded")):
            if getattr(held, flag, False) and not getattr(part, flag):
                raise TypeError(
                    f"{type(part).__name__} holds a {type(held).__name__}, whose `{method}` would not be called. Put "
                    f"both in a list: `exchange=[..., {type(held).__name__}(...)]`."
                )


def _methods(base: type) -> list[str]:
    return [name for name, value in vars(base).items() if callable(value) and not name.startswith("_")]


def refuse_twice(parts: Mapping[str, Part]) -> None:
    """Raise ``ValueError`` if one object is in two places: both would call its hooks.

    Args:
        parts: The parts of an algorithm, by name; those that they hold are looked at, too.
    """
    places: dict[int, str] = {}

    def visit(part: Part, place: str) -> None:
        if id(part) in places:
            raise ValueError(
                f"{part!r} is given twice, {places[id(part)]} and {place}: one object, whose hooks both places would "
                "call. Make another one for the second place, or name it in the `held_parts` of one place only."
            )
        places[id(part)] = place
        for held in part.held_parts:
            visit(held, place if isinstance(part, Chain) else f"in `held_parts` of {type(part).__name__}")

    for name, part in parts.items():
        visit(part, f"as `{'server' if name == 'server_optimizer' else name}`")


def check_attributes(parts: Sequence[Part], *others: Any) -> None:
    """Raise ``TypeError`` if an attribute hides a method, or holds a part that would not be called.

    Args:
        parts: All parts of an algorithm, with those that they hold.
        *others: What else parts may know.
    """
    known = {id(part) for part in (*parts, *others)}
    for part in of_users(parts):
        _refuse_hidden_methods(part)
        for name, held in held_in(part, Part).items():
            if id(held) not in known and not _is_of_earlier_fit(part, name, held):
                _refuse_unknown(part, name, held)


def _is_of_earlier_fit(part: Part, name: str, held: Part) -> bool:
    """Return whether it is the exchanges among which, or beside which, a part worked in another callback's fit."""
    kind = {"exchange": LocalObjective, "_whole_chain": Exchange}.get(name)
    return kind is not None and isinstance(part, kind) and isinstance(held, Chain)


def _refuse_hidden_methods(part: Part) -> None:
    bases = [base for base in type(part).__mro__ if is_of_library(base)]
    for name, value in vars(part).items():
        if not callable(value) and any(callable(vars(base).get(name)) for base in bases):
            raise TypeError(
                f"`{type(part).__name__}` sets its attribute `{name}` to {got(value)}, which hides the method `{name}` "
                f"of {bases[0].__name__}. Give the attribute another name, such as `_{name}`."
            )
    if not isinstance(part.states, ClientStates | None):
        raise TypeError(
            f"`{type(part).__name__}.states` must be a ClientStates or None, got {got(part.states)}. Call an attribute "
            "for anything else by another name."
        )


def _refuse_unknown(part: Part, name: str, held: Part) -> None:
    raise TypeError(
        f"`{type(part).__name__}` holds a {type(held).__name__} in `self.{name}`, whose hooks would not be called and "
        f"whose state would not be saved. Name it in {type(part).__name__}:\n"
        "    @property\n"
        "    def held_parts(self):\n"
        f"        return [self.{name}]"
    )


def keep_late_vectors(parts: Sequence[Part], federation: Federation) -> None:
    """Keep the vectors of clients that users' parts took after their ``on_round_end``; call it on all processes.

    Args:
        parts: All parts of an algorithm, with those that they hold.
        federation: The run.

    Raises:
        RuntimeError: If a :class:`ClientStates` that is in no part has new vectors.
    """
    own = of_users(parts)
    if not own:
        return
    late = [states for part in own for states in part.client_states.values()]
    if late:
        shares = federation.gather([states.has_new for states in late])
        for states, have_new in zip(late, zip(*shares, strict=True), strict=True):
            if any(have_new):
                states.on_round_end()
    if any(federation.gather(any(states.has_new for states in federation.client_states))):
        raise RuntimeError(
            "A `ClientStates` has taken vectors of clients in this round, but no part has it in an attribute, so that "
            "they would be neither kept nor saved. Keep it in an attribute of a part, or in a list, tuple or dict "
            f"there. The parts of your own are {', '.join(type(part).__name__ for part in own)}."
        )
