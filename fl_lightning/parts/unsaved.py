"""Finds what parts of a user's own change from round to round and do not save."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.parts.client_states import StatefulPart
from fl_lightning.parts.federation import accumulator
from fl_lightning.parts.part import Part

_PRIVATE = ("_federation", "_guarded_calls")
_PLAIN = (bool, int, float, complex, str, bytes)
#: So many rounds of a fit are compared; a server that acts seldom changes nothing in most rounds.
_COMPARED_ROUNDS = 10


class UnsavedState:
    """Compares the attributes of parts that save nothing after the first rounds of a fit.

    What the first round makes for all later ones is no state, and neither is what ``on_round_start`` sets anew. A part
    with a ``state_dict`` of its own knows what it saves.
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._known: list[tuple[Part, dict[str, Any]]] = []
        self._found: list[tuple[Part, list[str]]] = []
        self._told = False

    def on_fit_start(self) -> None:
        """Begin anew."""
        self._rounds, self._known, self._found = 0, [], []

    @contextmanager
    def set_anew(self) -> Iterator[None]:
        """Regard what is set within it as set anew in each round."""
        before = [_marks(part) for part, _ in self._known] if self._rounds == 1 else []
        yield
        for (part, known), marks in zip(self._known, before, strict=False):
            for name in _changed(marks, _marks(part)):
                known.pop(name, None)

    def on_round_end(self, parts: Iterable[Part]) -> None:
        """Compare the parts' attributes with those after the first round."""
        self._rounds += 1
        if self._rounds == 1:
            self._known = [(part, _marks(part)) for part in parts if _saves_nothing(part)]
        elif not self._found and self._rounds <= _COMPARED_ROUNDS:
            changed = [(part, _changed(known, _marks(part))) for part, known in self._known]
            self._found = [(part, names) for part, names in changed if names]

    def warn(self) -> None:
        """Warn once of what changes and is not saved; called when a state is saved."""
        for part, names in [] if self._told else self._found:
            self._told = True
            if part.federation.rank == 0:
                shown = ", ".join(f"`{name}`" for name in names)
                warnings.warn(
                    f"{type(part).__name__} changes {shown} from round to round, and has no `state_dict`. Checkpoints "
                    "do not hold this, so a resumed run goes on without it. Define `state_dict()` and "
                    "`load_state_dict(state)`; where a resumed run does not need it, let them save and load nothing.",
                    stacklevel=2,
                )


def _saves_nothing(part: Part) -> bool:
    return not part.is_of_library and type(part).state_dict in (Part.state_dict, StatefulPart.state_dict)


def _marks(part: Part) -> dict[str, Any]:
    return {name: _mark(value) for name, value in vars(part).items() if name not in _PRIVATE}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of ``before`` that are not the same now."""
    return [name for name, mark in before.items() if name in now and now[name] != mark]


def _mark(value: Any) -> Any:
    """Return something small that differs, nearly always, if a value does; for other objects only their type."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = torch.as_tensor(value)
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return tuple(value.shape), str(value.dtype), *_sums(value.detach())
    if isinstance(value, dict):
        return {repr(key): _mark(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_mark(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    return repr(value) if value is None or isinstance(value, _PLAIN) else type(value).__name__


def _sums(value: Tensor) -> tuple[str, ...]:
    if not value.is_floating_point():
        return (repr(value.sum().item()),)
    kind = accumulator(value)
    sums = value.sum(dtype=kind), torch.linalg.vector_norm(value, dtype=kind)
    return tuple(repr(each.item()) for each in sums)
