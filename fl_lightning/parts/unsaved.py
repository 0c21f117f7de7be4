"""Finds attributes of users' parts that change and are not saved, and states that differ between processes."""

from __future__ import annotations

import dis
import functools
import inspect
import random
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fl_lightning.parts.federation import accumulator
from fl_lightning.parts.part import Part
from fl_lightning.super_calls import is_of_library

_PRIVATE = ("_federation", "_guarded_calls")
_PLAIN = (bool, int, float, complex, str, bytes)
#: So many rounds of a fit are compared; a server that acts seldom changes nothing in most rounds.
_COMPARED_ROUNDS = 10
_DEPTH = 3  # of attributes of attributes


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
        """Compare the parts' attributes with those after the first round, and states between processes.

        Raises:
            RuntimeError: If a part's state differs between processes.
        """
        self._rounds += 1
        parts = list(parts)
        if self._rounds <= _COMPARED_ROUNDS:
            for part in parts:
                _check_same_everywhere(part)
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
    """Whether a part of a user's own has no ``state_dict`` of its own, whatever the library's classes save."""
    return not part.is_of_library and not part.defines_state


def _check_same_everywhere(part: Part) -> None:
    """Raise ``RuntimeError`` if the state that a part of a user's own saves differs between processes."""
    if part.federation.num_ranks == 1 or not part.defines_state:
        return
    states = part.federation.gather(_mark(part.state_dict(), _DEPTH))
    if any(state != states[0] for state in states):
        raise RuntimeError(
            f"The state of {type(part).__name__} differs between the {len(states)} processes, each of which trains "
            "some of the clients. A client may train elsewhere in the next round, and a checkpoint holds the state of "
            "one process. Keep what belongs to clients in a `ClientStates`, whose clients stay on their processes; "
            "join counts and sums in `on_round_end` by `self.federation.gather`; or train in one process."
        )


@functools.cache
def _of_library(cls: type) -> frozenset[str]:
    """Return the attributes that classes of the library set in their own code, which they save if need be."""
    classes = [base for base in cls.__mro__ if is_of_library(base)]
    functions = [inspect.unwrap(held) for base in classes for held in vars(base).values() if inspect.isroutine(held)]
    codes = [function.__code__ for function in functions if inspect.isfunction(function)]
    return frozenset(i.argval for code in codes for i in dis.get_instructions(code) if i.opname == "STORE_ATTR")


def _marks(part: Part) -> dict[str, Any]:
    kind: Any = type(part)
    known = {*_PRIVATE, *_of_library(kind)}
    return {name: _mark(value, _DEPTH) for name, value in vars(part).items() if name not in known}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of ``before`` that are not the same now."""
    return [name for name, mark in before.items() if name in now and now[name] != mark]


def _mark(value: Any, depth: int) -> Any:
    """Return something small that differs, nearly always, if a value does; of what lies too deep only the type."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = torch.as_tensor(value)
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return tuple(value.shape), str(value.dtype), *_sums(value.detach())
    if isinstance(value, dict):
        return {repr(key): _mark(item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_mark(item, depth) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    state = _generator_state(value)
    closed = (type, ModuleType, FunctionType, nn.Module)
    if state is None and depth and not isinstance(value, closed) and not is_of_library(type(value)):
        state = getattr(value, "__dict__", None)
    return type(value).__name__ if state is None else _mark(state, depth - 1)


def _generator_state(value: Any) -> Any:
    """Return where a random generator, or an iterator of ``itertools``, has come to; ``None`` for anything else."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    return repr(value.__reduce__()) if type(value).__module__ == "itertools" else None


def _sums(value: Tensor) -> tuple[str, ...]:
    if not value.is_floating_point():
        return (repr(value.sum().item()),)
    kind = accumulator(value)
    sums = value.sum(dtype=kind), torch.linalg.vector_norm(value, dtype=kind)
    return tuple(repr(each.item()) for each in sums)
