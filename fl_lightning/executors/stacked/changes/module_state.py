"""The state of a module beside its federated parameters, to see whether training changes it."""

from __future__ import annotations

import functools
import gc
import io
import logging
import random
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, GeneratorType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.hooks import RemovableHandle
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.recording import Unusable
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.data.tensor_bytes import version_of
from fl_lightning.executors.stacked.changes.comparison import ByIdentity, Code, changed_name
from fl_lightning.executors.stacked.changes.contents import BRIEF_VALUES, hooks_by_place, memory_of, parts_of, sample_of
from fl_lightning.executors.stacked.object_attributes import attributes_of
from fl_lightning.executors.stacked.surroundings import add_named, globals_of, is_users, seen_by, surroundings

_NODES = 200_000  # objects beyond these are compared by identity
_BRIEF_NODES = 2_000
_DEPTH = 60  # objects within objects, beyond which they are compared by identity, too
_SKIPPED = {"_current_fx_name", "_metric_attributes", "log", "_modules", "_trainer", "trainer", "_fabric"}
_NUMBERS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_PLAIN = frozenset(_NUMBERS)
_CONTAINERS = (dict, list, tuple)
#: What has contents beside its attributes, and the types of it that have no attributes.
_WITH_CONTENTS = (*_NUMBERS, Tensor, np.ndarray, set, frozenset, dict, list, tuple, deque, functools.partial)
_WITHOUT_ATTRIBUTES = frozenset([*_NUMBERS, np.ndarray, np.memmap, set, frozenset, dict, list, tuple, deque])
_OWN_ITEMS = (dict.items, OrderedDict.items, MappingProxyType.items)
_EMPTY = (dict, OrderedDict, list, tuple, set, frozenset)
_TRAINING = (Trainer, Logger, LightningDataModule, Optimizer, LRScheduler)
_OPAQUE = (*_TRAINING, Unusable, logging.Logger, Path, BuiltinFunctionType, ModuleType, RemovableHandle)


class ModuleState:
    """What a module holds beside the tensors of its federated state: attributes of any kind, frozen tensors, globals.

    Args:
        vector: The federated state of the module.
        brief: Whether a quick look is enough: of large tensors only the shape, and not at very many objects.
        samples: Whether a quick look takes samples of large tensors.

    Attributes:
        vector: The federated state.
        snapshots: What was seen, by name.
    """

    def __init__(self, vector: StateVector, brief: bool = False, samples: bool = False) -> None:
        self.vector, self._brief, self._samples = vector, brief, samples
        self.snapshots, _ = self._look()

    def changed(self) -> str | None:
        """Return the name of something that is another now, ``None`` if nothing is."""
        return changed_name(self.snapshots, self._look()[0])

    def difference(self, other: ModuleState) -> str | None:
        """Return the name of something that is another in another look at the module, ``None`` if nothing is."""
        return changed_name(self.snapshots, other.snapshots)

    def reached(self) -> list[Any]:
        """Return the objects into which it looks."""
        return self._look()[1].visited

    def _look(self) -> tuple[dict[str, Any], Snapshotter]:
        """Return a snapshot of everything, by name, and what took it."""
        own = {id(tensor) for tensor in self.vector.tensors()}
        snapshotter = Snapshotter(own, self._brief, _BRIEF_NODES if self._brief else _NODES, self._samples)
        snapshots: dict[str, Any] = {}
        around: dict[str, Any] = {}
        for prefix, submodule in self.vector.module.named_modules():
            path = f"self.{prefix}." if prefix else "self."
            if isinstance(submodule, (Metric, MetricCollection)):
                # looked at apart: a stack gives metric objects what its clients would have given them
                snapshots[path + "type"] = f"{type(submodule).__module__}.{type(submodule).__qualname__}"
                if type(submodule).__module__.startswith("torchmetrics."):
                    continue  # nothing about it is the user's
                held = {}
            else:
                held = {key: value for key, value in vars(submodule).items() if key not in _SKIPPED}
                held |= hooks_by_place(held)
            tensors = {**held.pop("_parameters", {}), **held.pop("_buffers", {})}
            for key, value in {**held, **{k: v for k, v in tensors.items() if id(v) not in own}}.items():
                snapshots[path + key] = snapshotter.snapshot(value)
            for key, value in tensors.items():
                if id(value) in own and vars(value):
                    snapshots[f"{path}{key}.__dict__"] = snapshotter.snapshot(vars(value))
            add_named(around, surroundings(type(submodule)), type(submodule).__qualname__)
        return {**snapshots, **{key: snapshotter.snapshot(value) for key, value in around.items()}}, snapshotter


def described(snapshot: Any) -> str:
    """Return a text for a snapshot, without identities: another process finds the same."""
    if isinstance(snapshot, ByIdentity):
        return snapshot.kind
    if isinstance(snapshot, (Tensor, np.ndarray)):
        return f"{snapshot.dtype}{snapshot.tolist()}"
    if isinstance(snapshot, Mapping):
        return described(list(snapshot.items()))
    if isinstance(snapshot, (list, tuple)):
        return f"({','.join(map(described, snapshot))})"
    if isinstance(snapshot, frozenset):
        return described(sorted(map(described, snapshot)))
    return repr(snapshot) if isinstance(snapshot, _NUMBERS) else ByIdentity.of(snapshot).kind


@dataclass
class _Values:
    """Many plain values, which are compared at once."""

    kind: type
    values: Any


def _is_plain(values: Any) -> bool:
    """Whether a container holds plain values alone."""
    kinds = set(map(type, values))
    return (kinds | set(map(type, values.values())) if isinstance(values, dict) else kinds) <= _PLAIN


def _items_of(value: Any) -> Any:
    """Return what a container holds, not what a class of the user's own may load or compute when it is asked."""
    kind: Any = type(value)
    if isinstance(value, (dict, MappingProxyType)):
        return value.items() if kind.items in _OWN_ITEMS else dict.items(value)  # type: ignore[arg-type]
    base: Any = next(base for base in (list, tuple, deque) if isinstance(value, base))
    return base.__iter__(value)


class Snapshotter:
    """Takes snapshots of values: nested tuples that can be compared later, whatever happens to the values.

    Args:
        own: Identities of what is compared by identity.
        brief: Whether of large tensors the shape is enough.
        nodes: Objects that are looked at; others are compared by identity.
        samples: Whether samples of large tensors are taken, where the shape is enough.
    """

    def __init__(self, own: set[int], brief: bool, nodes: int, samples: bool = False) -> None:
        self._own, self._brief, self._left, self._samples = own, brief, nodes, samples
        self._seen: dict[int, tuple[int, Any]] = {}
        self._empty: list[Any] = []  # containers that held nothing
        self._depth = 0

    @property
    def visited(self) -> list[Any]:
        """The objects into which it has looked, and empty containers."""
        return [*(value for _, value in self._seen.values()), *self._empty]

    def snapshot(self, value: Any) -> Any:
        """Return a snapshot of a value."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind in _EMPTY and not value:
            self._empty.append(value)
            return kind
        depth = self._depth
        try:
            return self._look_into(value, kind)
        except Exception:  # whatever an object raises when it is looked at, such as a proxy of nothing
            self._depth = depth
            return ByIdentity.of(value)

    def _look_into(self, value: Any, kind: type) -> Any:
        self._left -= 1
        if isinstance(value, _NUMBERS) and (isinstance(value, Enum) or not getattr(value, "__dict__", None)):
            return value
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, (ModuleType, type, type(None))):
            return "method", value.__name__, self.snapshot(value.__self__)  # such as `a_list.append`
        if self._left < 0 or self._depth > _DEPTH or id(value) in self._own or isinstance(value, _OPAQUE):
            return ByIdentity.of(value)
        if isinstance(value, (FunctionType, type)) and not is_users(value.__module__):
            return ByIdentity.of(value)
        if isinstance(value, Tensor) and value.layout is not torch.strided:
            return ByIdentity.of(value), version_of(value)
        if id(value) in self._seen:
            return "seen", self._seen[id(value)][0]
        self._seen[id(value)] = len(self._seen), value  # holds the value, so that its id stays its own
        self._depth += 1
        snapshot = self._snapshot_of(value)
        beside = attributes_of(value) if isinstance(value, _WITH_CONTENTS) and kind not in _WITHOUT_ATTRIBUTES else None
        if beside:
            snapshot = snapshot, self.snapshot(beside)
        self._depth -= 1
        return snapshot

    def _snapshot_of(self, value: Any) -> Any:
        if isinstance(value, _NUMBERS):
            return value
        if isinstance(value, FunctionType):
            return Code(ByIdentity.of(value), self.snapshot(seen_by(value)))
        if isinstance(value, type):
            return Code(ByIdentity.of(value), self.snapshot(surroundings(value)))
        if isinstance(value, (staticmethod, classmethod)):
            return "method", self.snapshot(value.__func__)
        if isinstance(value, property):
            return "property", self.snapshot(value.fget), self.snapshot(value.fset), self.snapshot(value.fdel)
        if isinstance(value, MethodType):
            return "method", self.snapshot(value.__func__), self.snapshot(value.__self__)
        if isinstance(value, Tensor):
            if self._shown(value.numel()):
                return value.detach().clone()
            return value.shape, value.dtype, sample_of(value) if self._samples else None
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                return value.shape, self.snapshot(value.tolist())
            if self._shown(value.size):
                return value.copy()
            taken = self._samples and not isinstance(value, np.memmap)
            return value.shape, value.dtype, value.flat[:: value.size // BRIEF_VALUES] if taken else None
        if isinstance(value, (set, frozenset)):
            return type(value), frozenset(value)
        if type(value) in _CONTAINERS and len(value) > BRIEF_VALUES:
            if self._brief:
                return self._long(value)
            if _is_plain(value):
                return _Values(type(value), value.copy() if isinstance(value, dict) else list(value))
        if isinstance(value, (dict, MappingProxyType)):
            return type(value), [(self.snapshot(key), self.snapshot(item)) for key, item in _items_of(value)]
        if isinstance(value, (list, tuple, deque)):
            return type(value), [self.snapshot(item) for item in _items_of(value)]
        if isinstance(value, functools.partial):
            return "partial", self.snapshot(value.func), self.snapshot(value.args), self.snapshot(value.keywords)
        place = self._place_of(value)
        if place is not None:
            return place
        held = attributes_of(value)
        if isinstance(value, nn.Module):
            held = {key: item for key, item in held.items() if key not in _SKIPPED - {"_modules"}}
            held |= hooks_by_place(held)
        if (memory := memory_of(value)) is not None:
            shown = memory.tobytes() if self._shown(memory.nbytes // 8) else memory.nbytes
            return type(value), shown, self.snapshot(held)
        if not held:
            parts = parts_of(value) if self._shown(sys.getsizeof(value, 0) // 8) else None
            return self.snapshot(type(value)), self.snapshot(parts) if parts else ByIdentity.of(value)
        return self.snapshot(type(value)), self.snapshot(held)

    def _long(self, value: Any) -> Any:
        return type(value), len(value)

    def _place_of(self, value: Any) -> Any:
        """Return how far something has come that goes on when it is used; ``None`` if it is nothing of the kind."""
        if isinstance(value, torch.Generator):
            return value.get_state()
        if isinstance(value, np.random.Generator):
            return repr(value.bit_generator.state)
        if isinstance(value, random.Random):
            return value.getstate()
        if isinstance(value, weakref.ReferenceType):
            return "reference", self.snapshot(value())
        if isinstance(value, ContextVar):
            return ByIdentity.of(value), self.snapshot(value.get(None))
        if isinstance(value, io.IOBase):
            return ByIdentity.of(value), value.tell() if not value.closed and value.seekable() else None
        if isinstance(value, GeneratorType):
            frame = value.gi_frame
            if frame is None:
                return ByIdentity.of(value), "ended"
            seen = globals_of(value.gi_code, frame.f_globals)
            add_named(seen, frame.f_locals, value.gi_code.co_qualname)
            loops = [held for held in gc.get_referents(value) if isinstance(held, Iterator)]  # they have no names
            return ByIdentity.of(value), frame.f_lasti, self.snapshot(seen), self.snapshot(loops)
        if isinstance(value, Iterator):
            with suppress(Exception):  # not every iterator tells how far it has come
                return type(value), self.snapshot(value.__reduce__())
        return None

    def _shown(self, values: int) -> bool:
        return not self._brief or values <= BRIEF_VALUES
