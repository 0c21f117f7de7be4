"""Kept state: how a round that breaks off leaves no trace.

Between two rounds lies a boundary. Whatever a round may change keeps its state there, and has three methods, as this
counter of clients has::

    class Counter:
        number = 0

        def keep(self):
            self._kept = self.number

        def put_back(self):
            self.number = self._kept

        def state_dict(self):
            return {"number": self._kept}

A round begins with ``keep()`` for each of them. If it breaks off, ``put_back()`` follows for each, in reverse order. A
round that is done makes its end the next boundary, by ``keep()`` again. A checkpoint is the union of the
``state_dict()``s, so one that is written inside a round is that of the boundary before it.

Parts, the server and the books declare which of their attributes are such states, and have the methods from
:class:`States`. The counter is then::

    class Counter(States):
        def __init__(self):
            self.add_state("number", 0)

States are kept by reference: tensors are assigned, and never written to. Only containers are copied.
"""

# Annotations are no strings here: config files look up the types of a part's arguments, and those of its bases.
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from torch import Tensor

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, Payload, Task, Traffic

_RECORDS = (ClientResult, Payload, Task, Traffic)
_KIND = "class of the record"
_Part = TypeVar("_Part", bound="States")


class Kept(Protocol):
    """Something that a round may change."""

    def keep(self) -> None:
        """Make the present state the boundary's."""

    def put_back(self) -> None:
        """Return to the boundary's state, if need be several times."""

    def state_dict(self) -> dict[str, Any]:
        """Return the boundary's state for a checkpoint."""


class States:
    """Declares which attributes change from round to round; see :class:`Kept`.

    Attributes:
        federation: The run.
    """

    #: Dataclasses of which states may be, besides :class:`ClientResult`.
    records: ClassVar[tuple[type, ...]] = ()
    federation: Federation
    #: The declared state of the last boundary.
    _kept: dict[str, Any]

    def add_state(self, name: str, value: Any) -> None:
        """Declare an attribute that changes from round to round, and set it.

        Args:
            name: The attribute.
            value: Its first value: a tensor, array, number, text, None, a :class:`ClientResult` or another of
                :attr:`records`, or a list or dict of these.
        """
        names: list[str] = vars(self).setdefault("_states", [])
        names.append(name)
        setattr(self, name, value)

    def declared(self) -> dict[str, Any]:
        """Return the declared state by attribute."""
        return {name: vars(self)[name] for name in vars(self).get("_states", ())}

    def keep(self) -> None:
        """Make the declared state the boundary's."""
        self._kept = {}
        for name, value in self.declared().items():
            if isinstance(value, ClientVectors):
                value.keep()
            self._kept[name] = snapshot(value)

    def put_back(self) -> None:
        """Return to the declared state of the boundary."""
        for name, value in self._kept.items():
            if isinstance(value, ClientVectors):
                value.put_back()
            setattr(self, name, snapshot(value))

    def state_dict(self) -> dict[str, Any]:
        """Return the declared state of the boundary; call it on all processes."""
        state: dict[str, Any] = {}
        for name, value in self._kept.items():
            if isinstance(value, ClientVectors):
                state[name] = value.state_dict()
            else:
                state[name] = _plain(self.saved(name, value))
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state, once the states of a new fit are declared; :meth:`keep` comes after.

        Raises:
            ValueError: If the checkpoint holds the state of other attributes.
        """
        held = self.declared()
        if state.keys() != held.keys():
            raise ValueError(
                f"{type(self).__name__} must have the checkpoint's states {sorted(state)}, got {sorted(held)}. Resume "
                "with the arguments of the run that wrote it."
            )
        for name, value in state.items():
            present = held[name]
            if isinstance(present, ClientVectors):
                present.load_state_dict(value)
                continue
            restored = self._restored(value, {})
            if isinstance(present, np.ndarray):
                restored = np.array(restored)
            if isinstance(present, frozenset):
                restored = frozenset(restored)
            setattr(self, name, self.loaded(name, restored))

    def _restored(self, value: Any, moved: dict[Any, Tensor]) -> Any:
        """Return a checkpoint's value with its records, and with tensors on the module's device."""
        if isinstance(value, Tensor):
            # What was shared stays so.
            here = value.to(self.federation.model.device)
            return moved.setdefault((value.data_ptr(), value.shape), here)
        if isinstance(value, list):
            return [self._restored(item, moved) for item in value]
        if not isinstance(value, Mapping):
            return value
        items = {key: self._restored(item, moved) for key, item in value.items()}
        if _KIND not in items:
            return items
        kinds = {kind.__name__: kind for kind in (*_RECORDS, *self.records)}
        record = kinds[items.pop(_KIND)]
        return record(**items)

    def saved(self, name: str, value: Any) -> Any:
        """Return a declared state as a checkpoint holds it; override it for other objects."""
        return value

    def loaded(self, name: str, value: Any) -> Any:
        """Return a declared state that :meth:`saved` returned; the inverse of it."""
        return value


def by_key(parts: Iterable[_Part]) -> dict[str, _Part]:
    """Return parts by the keys that they have in checkpoints: the place in the list, and the class."""
    return {f"{place}-{type(part).__name__}": part for place, part in enumerate(parts)}


def snapshot(value: Any) -> Any:
    """Return a copy of containers, arrays and counts, with the same tensors and records in them."""
    if isinstance(value, dict):
        return {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, list):
        return [snapshot(item) for item in value]
    return value.copy() if hasattr(value, "copy") else value


def _plain(value: Any) -> Any:
    """Return a state as ``torch.load(weights_only=True)`` reads it.

    Records become dicts with the name of their class, tuples, sets and arrays lists, and numbers of numpy Python's.
    """
    if is_dataclass(value):
        plain: dict[str, Any] = {_KIND: type(value).__name__}
        for each in fields(value):
            plain[each.name] = _plain(getattr(value, each.name))
        return plain
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value
