"""Batches of several clients, stacked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection, is_dataclass_instance
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.plain_copies import same_content
from fl_lightning._lightning.recording import Unusable
from fl_lightning._lightning.stand_ins import register_stand_in
from fl_lightning.executors.stacked.object_attributes import attributes_of

_BUILT_IN = (dict, list, tuple)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class StackedBatch:
    """One batch of each of several clients, equal in structure and shapes.

    Args:
        tensors: The batches' tensors, stacked, shape ``(K, ...)``.
        template: The first client's batch.
        others: What the batches hold beside tensors.
    """

    def __init__(self, tensors: list[Tensor], template: Any = None, others: Sequence[Any] = ()) -> None:
        self.tensors, self._others = tensors, others
        self._template = [tensor[0] for tensor in tensors] if template is None else template
        self._is_plain = _is_plain(self._template)

    def rebuild(self, tensors: Sequence[Any]) -> Any:
        """Return a batch that holds the given tensors in the place of its own."""
        if self._is_plain:
            return type(self._template)(tensors)
        return self._with(
            tensors, [Differing.given(vars(o)["first"]) if type(o) is Differing else o for o in self._others]
        )

    def rebuild_veiled(self, tensors: Sequence[Any]) -> Any:
        """Return a batch that holds the given tensors, and in the place of texts and numbers such as cannot be used."""
        return self._with(tensors, [value if _is_known(value) else Differing.given(value) for value in self._others])

    def _with(self, tensors: Sequence[Any], others: Sequence[Any]) -> Any:
        given, kept = iter(tensors), iter(others)

        def put(leaf: Any) -> Any:
            return next(given if isinstance(leaf, Tensor) else kept)

        return _with_each(self._template, put)

    def of_places(self, places: Sequence[int]) -> StackedBatch:
        """Return the batches of some of the clients, whose places ascend."""
        return StackedBatch([select(tensor, places) for tensor in self.tensors], self._template, self._others)

    def kind(self, *, veiled: bool = False) -> Any:
        """Return what is equal for batches that hold the same beside their tensors' shapes and values.

        Args:
            veiled: Whether texts and numbers may differ.
        """
        others = [(type(o), None if veiled and not _is_known(o) else _identity(o)) for o in self._others]
        return _container(self._template), *others

    def first(self) -> Any:
        """Return the batch of the first of the clients that were stacked."""
        return self._template


class Differing(Unusable):
    """Stands in a batch for a value that is not a tensor and differs among clients; using it is an error.

    Args:
        value: The value of one client.
    """

    def __init__(self, value: Any) -> None:
        text = f"batches hold values that are no tensors and differ among clients ({value!r}, ...)"
        self.__dict__.update(first=value, kind=type(value), use=text)

    @classmethod
    def given(cls, value: Any) -> Differing:
        """Return one that is given to a step, after which nobody may have it."""
        return register_stand_in(cls(value), lambda differing: vars(differing)["first"])

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The type of the value, for ``isinstance``."""
        return self.__dict__["kind"]  # type: ignore[no-any-return]

    __setattr__ = __call__ = Unusable._use


class UnknownIndex(Unusable):
    """Stands for a batch's index; using it is an error."""

    use = "`training_step` uses `batch_idx`"

    @classmethod
    def given(cls) -> Any:
        """Return one that is given to a step, after which nobody may have it."""
        return register_stand_in(cls(), lambda index: 0)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The type of an index, for ``isinstance``."""
        return int


def stack_batches(batches: Sequence[Any]) -> StackedBatch:
    """Stack batches: tensors in any container that Lightning moves to a device.

    Values that are no tensors and differ among clients become :class:`Differing`.

    Raises:
        CannotVectorize: If a batch holds an object that is neither a tensor, nor a container, nor a plain value.
    """
    first = batches[0]
    if _is_plain(first):
        return StackedBatch([_stacked(parts) for parts in zip(*batches, strict=True)], first)
    for batch in batches:
        _check_containers(batch)
    tensors: list[Tensor] = []
    others: list[Any] = []
    for values in zip(*map(_leaves, batches), strict=True):
        if isinstance(values[0], Tensor):
            tensors.append(_stacked(values))
        else:
            others.append(_in_common(values))
    return StackedBatch(tensors, first, others)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors that are nothing beside their values; each keeps its strides, which are equal."""
    for tensor in tensors:
        if tensor.requires_grad:
            raise CannotVectorize(
                "tensors of a batch require gradients, by `requires_grad_` in `training_step` or before it; a stack "
                "takes gradients after the step (`torch.func.grad` computes the same, in a stack too)"
            )
        if type(tensor) is not Tensor or tensor.__dict__:
            raise CannotVectorize(
                "batches hold tensors of a subclass or with attributes of their own; a stack holds plain ones"
            )
    shape, strides = tensors[0].shape, tensors[0].stride()
    if tensors[0].is_contiguous() or 0 in shape:
        return torch.stack(tensors)  # type: ignore[arg-type]
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = torch.stack([tensor.as_strided((length,), (1,)) for tensor in tensors])
    return memory.as_strided((len(tensors), *shape), (length, *strides))


def _is_plain(batch: Any) -> bool:
    """Whether a batch is a list or tuple of tensors."""
    return type(batch) in (list, tuple) and all(isinstance(part, Tensor) for part in batch)


def _is_known(value: Any) -> bool:
    """Whether a value is one that Python code may ask for without any sign of it, as by ``is None``."""
    return value is None or type(value) is bool or issubclass(type(value), Enum)


def _identity(value: Any) -> Any:
    if type(value) is Differing:
        return None
    return value if isinstance(value, _PLAIN) else id(value)


def _container(batch: Any) -> Any:
    """Return what is equal for batches of the same containers and keys."""
    return _structure(batch, lambda leaf: Tensor if isinstance(leaf, Tensor) else None)


def _structure(batch: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """Return a batch's containers and keys, with what stands for each leaf."""
    if _is_leaf(batch):
        return of_leaf(batch)
    if isinstance(batch, Mapping):
        return type(batch), *((key, _structure(value, of_leaf)) for key, value in batch.items())
    if is_dataclass_instance(batch):
        return type(batch), *((name, _structure(value, of_leaf)) for name, value in attributes_of(batch).items())
    return type(batch), *(_structure(part, of_leaf) for part in batch)


def _in_common(values: Sequence[Any]) -> Any:
    """Return what stands for a value that is not a tensor in a batch of several clients."""
    if all(value is values[0] for value in values):
        return values[0]
    if not all(isinstance(value, _PLAIN) and not getattr(value, "__dict__", None) for value in values):
        raise CannotVectorize(f"batches hold objects of {type(values[0]).__name__}, which cannot be stacked")
    return values[0] if all(value == values[0] for value in values) else Differing(values[0])


class _NoCollectionKind(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return not isinstance(value, Mapping | Sequence) or isinstance(value, str | bytes)


class _NoCollection(metaclass=_NoCollectionKind):
    """Anything that is neither a mapping nor a sequence."""


def _is_leaf(value: Any) -> bool:
    return isinstance(value, _NoCollection) and not is_dataclass_instance(value)


def _with_each(batch: Any, put: Callable[[Any], Any]) -> Any:
    """Return a batch with what a function makes of each leaf in its place."""

    def of(part: Any) -> Any:
        if not is_dataclass_instance(part):
            return put(part)
        made = copy.copy(part)
        for name, value in attributes_of(part).items():  # what `__post_init__` has set, too
            object.__setattr__(made, name, _with_each(value, put))  # of a frozen one, too
        return made

    return apply_to_collection(batch, _NoCollection, of)


def _check_containers(batch: Any) -> None:
    """Raise ``CannotVectorize`` if a container has attributes that another one of the same contents has not."""
    if _is_leaf(batch):
        return
    kind = type(batch).__name__
    if is_dataclass_instance(batch):
        if not isinstance(batch, _NoCollection):
            raise CannotVectorize(f"batches hold {kind}, a dataclass that is a dictionary or a list besides")
        parts: Iterable[Any] = attributes_of(batch).values()
    else:
        parts = batch.values() if isinstance(batch, Mapping) else batch
        held = {} if type(batch) in _BUILT_IN else attributes_of(batch)
        if held and not same_content(held, attributes_of(_with_each(batch, _itself))):
            raise CannotVectorize(f"batches hold {kind} with attributes ({', '.join(held)}), which a stack would lose")
    for part in parts:
        _check_containers(part)


def _itself(leaf: Any) -> Any:
    return leaf


def _leaves(batch: Any) -> list[Any]:
    """Return what a batch holds, without the containers."""
    found: list[Any] = []
    _with_each(batch, found.append)
    return found


def by_shape(batches: Iterable[tuple[int, Any]]) -> list[tuple[list[int], list[Any]]]:
    """Group (row, batch) pairs by structure and shapes, in the order of first appearance; return (rows, batches)."""
    groups: dict[Any, tuple[list[int], list[Any]]] = {}
    for row, batch in batches:
        rows, members = groups.setdefault(_shape(batch), ([], []))
        rows.append(row)
        members.append(batch)
    return list(groups.values())


def _shape(batch: Any) -> Any:
    if _is_plain(batch):
        return type(batch), *map(_shape_of_leaf, batch)
    return _structure(batch, _shape_of_leaf)


def _shape_of_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, None if leaf.is_contiguous() else leaf.stride()
    return type(leaf), id(leaf) if _is_known(leaf) else None


def select(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the given rows, which ascend; a view where they are neighbours."""
    first, last = rows[0], rows[-1]
    if last - first + 1 == len(rows):
        return tensor if len(rows) == len(tensor) else tensor[first : last + 1]
    return tensor.index_select(0, torch.tensor(rows, device=tensor.device))
