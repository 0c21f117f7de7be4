"""Where the tensors of a module lie in its flat vector."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fl_lightning.parts.messages import Payload

#: Names of tensors or submodules, or shell patterns of names.
Patterns = str | Sequence[str]

_NORMALISATIONS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Layer:
    """A layer of a module: a submodule with tensors of its own, or one without submodules.

    Attributes:
        name: Its name, empty for the module itself.
        kind: The name of its class in torch, such as ``"Linear"``; empty for other classes, also those derived from it.
        tensors: The names in the model of its parameters and buffers, by its own names of them, such as ``"weight"``.
        groups: Groups of a convolution or of GroupNorm; 1 for other layers.
    """

    name: str
    kind: str
    tensors: Mapping[str, str]
    groups: int = 1


@dataclass(frozen=True)
class Layout:
    """The order of a module's tensors in one flat vector: the trained parameters first, then the buffers.

    A buffer is here whatever is not trained. For a layer whose optimizer holds the weight alone::

        Layout(("weight", "bias"), (torch.Size([3, 2]), torch.Size([3])), num_trained=1, bits=(32, 32))

    Attributes:
        names: Names of all tensors, in the vector's order.
        shapes: Their shapes.
        num_trained: How many of the tensors are trained.
        bits: Bits of the numbers of each tensor, as the module holds it.
        shared_names: All names of the tensors that have several, by the one in ``names``: a list for each layer that
            holds the tensor, with more than one name where the layer itself has more.
        normalisation: Names of the module's normalisation layers of torch.
        layers: The module's layers, in the order in which they are registered.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    num_trained: int
    bits: tuple[int, ...]
    shared_names: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    normalisation: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of values of each tensor."""
        return tuple(shape.numel() for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        """Length of the vector."""
        return sum(self.lengths)

    @cached_property
    def num_parameters(self) -> int:
        """Length of the vector's first part, the trained parameters."""
        return sum(self.lengths[: self.num_trained])

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """Names of the trained parameters."""
        return self.names[: self.num_trained]

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers."""
        return self.names[self.num_trained :]

    @cached_property
    def buffer_lengths(self) -> tuple[int, ...]:
        """Number of values of each buffer."""
        return self.lengths[self.num_trained :]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], num_trained: int) -> Layout:
        """Return the layout of the named tensors, of which the first ones are trained."""
        shapes = tuple(tensor.shape for tensor in tensors.values())
        bits = tuple(8 * tensor.itemsize for tensor in tensors.values())
        return cls(tuple(tensors), shapes, num_trained, bits)

    @classmethod
    def of_module(cls, module: nn.Module, tensors: Mapping[str, Tensor], num_trained: int) -> Layout:
        """Return the layout of a module's named tensors, with what is known of its layers."""
        found = cls.of(tensors, num_trained)
        layers = module.named_modules()
        normalisation = tuple(name for name, layer in layers if isinstance(layer, _NORMALISATIONS))
        return replace(
            found,
            shared_names=_find_shared_names(module, tensors),
            normalisation=normalisation,
            layers=tuple(_find_layers(module, tensors)),
        )

    @classmethod
    def of_parameters(cls, *lengths: int) -> Layout:
        """Return the layout of vectors as parameters of so many values each, which have numbers as names."""
        names = tuple(str(place) for place in range(len(lengths)))
        shapes = tuple(torch.Size([length]) for length in lengths)
        return cls(names, shapes, len(lengths), (32,) * len(lengths))

    def split(self, model: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of a model's trained parameters and of its buffers.

        Args:
            model: Shape ``(size,)``.
        """
        return model[: self.num_parameters], model[self.num_parameters :]

    def joined(self, parameters: Tensor, buffers: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return a new model, shape ``(size,)``.

        Args:
            parameters: Shape ``(num_parameters,)``.
            buffers: Shape ``(size - num_parameters,)``.
            dtype: The model's type; that of the parameters if ``None``.
        """
        model = parameters.new_empty(len(parameters) + len(buffers), dtype=dtype)
        model[: len(parameters)] = parameters
        model[len(parameters) :] = buffers
        return model

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector, shaped as the tensors.

        Args:
            vector: A model, shape ``(size,)``, or its trained parameters alone, shape ``(num_parameters,)``.
        """
        lengths = self.lengths
        if len(vector) != self.size:
            lengths = lengths[: self.num_trained]
        # A vector of parameters alone ends before the shapes do.
        pairs = zip(vector.split(lengths), self.shapes, strict=False)
        return [part.view(shape) for part, shape in pairs]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the views of a vector by the tensors' names."""
        return dict(zip(self.names, self.views(vector), strict=False))

    def mask(self, names: Iterable[str], device: torch.device | None = None) -> Tensor:
        """Return which values of a model belong to the named tensors, booleans of shape ``(size,)``."""
        mask = torch.zeros(self.size, dtype=torch.bool, device=device)
        views = self.named(mask)
        for name in names:
            views[name].fill_(True)
        return mask

    def matching(self, patterns: Patterns, argument: str = "pattern") -> list[str]:
        """Return the names of the model's tensors that match one of the patterns.

        A tensor that several layers share, such as the weight of an output layer that is tied to an embedding, must
        match as a tensor of each of them, or of none.

        Args:
            patterns: Names of tensors or of submodules (``"head"``), or shell patterns of names (``"*.bn*"``); one or
                several.
            argument: What the user calls them, for the error.

        Raises:
            ValueError: If a pattern matches nothing, or a shared tensor as one of only some layers.
        """
        patterns = [patterns] if isinstance(patterns, str) else patterns
        found: list[str] = []
        used: set[str] = set()
        for name in self.names:
            layers = self._layers_of(name)
            matched = []
            for names in layers:
                hits = {pattern for pattern in patterns if _matches_any(names, pattern)}
                matched.append(bool(hits))
                used |= hits
            if any(matched) and not all(matched):
                shown = " and ".join(names[0] for names in layers)
                missing = [names[0] for names, is_named in zip(layers, matched, strict=True) if not is_named]
                raise ValueError(
                    f"`{argument}` must name all or none of the layers that share a tensor: {shown} are one, got "
                    f"{patterns}, which leave out {missing}. Add these names, or name other tensors alone."
                )
            if all(matched):
                found.append(name)
        if not patterns or not used.issuperset(patterns):
            shown = ", ".join(self.names[:8]) + (", ..." if len(self.names) > 8 else "")
            raise ValueError(f"`{argument}` must match parameters or buffers of the module, {shown}; got {patterns}.")
        return found

    def _layers_of(self, name: str) -> Sequence[Sequence[str]]:
        """Return all names of a tensor, a list for each layer that holds it."""
        return self.shared_names.get(name, [[name]])

    def has_tensors_of(self, layer: str) -> bool:
        """Return whether the model has tensors of a submodule: what is frozen may stay out of it."""
        for name in self.names:
            for names in self._layers_of(name):
                if any(each.startswith(f"{layer}.") for each in names):
                    return True
        return False

    def places(self, patterns: Patterns, argument: str = "pattern") -> frozenset[int]:
        """Return the places of the trained parameters whose names match, as :meth:`matching` says."""
        found = set(self.matching(patterns, argument))
        return frozenset(place for place, name in enumerate(self.trained) if name in found)

    def payload(self, places: Iterable[int], held: Tensor | None = None) -> Payload:
        """Return the message that holds the tensors at these places, each number as the module holds it.

        Args:
            places: Of the tensors.
            held: Which values of the model are sent, booleans of shape ``(size,)``; all if ``None``.
        """
        numbers = list(self.lengths)
        if held is not None:
            numbers = [int(part.sum()) for part in held.split(self.lengths)]
        values = 0
        bits = 0
        for place in places:
            values += numbers[place]
            bits += numbers[place] * self.bits[place]
        if not values or bits % values == 0:
            return Payload(values, bits // max(1, values))
        # Just below the quotient: otherwise the total, rounded up to whole bits, could be one bit too large.
        return Payload(values, math.nextafter(bits / values, 0))


def _find_layers(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[Layer]:
    """Yield a module's layers, with the names of those of its tensors that are in the model."""
    names = {id(tensor): name for name, tensor in tensors.items()}
    part: nn.Module
    for path, part in module.named_modules():
        own = {**part._parameters, **part._buffers}
        if not own and any(True for _ in part.children()):
            continue
        known = {key: names[id(tensor)] for key, tensor in own.items() if id(tensor) in names}
        kind = type(part).__name__ if type(part).__module__.startswith("torch.nn.") else ""
        groups = getattr(part, "num_groups", getattr(part, "groups", 1)) if kind else 1
        yield Layer(path, kind, known, groups)


def _find_shared_names(module: nn.Module, names: Iterable[str]) -> dict[str, list[list[str]]]:
    """Return all names of those of a module's named tensors that have several; see :attr:`Layout.shared_names`.

    Args:
        module: The module.
        names: One name of each tensor.
    """
    known: dict[str, Tensor] = {}
    # The names of each tensor, by the layer that holds it: a layer that has several names holds the tensor once.
    by_layer: defaultdict[int, defaultdict[tuple[int, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    part: nn.Module
    for path, part in module.named_modules(remove_duplicate=False):
        for key, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is None:
                continue
            name = f"{path}.{key}".lstrip(".")
            known[name] = tensor
            layer = (id(part), key)
            by_layer[id(tensor)][layer].append(name)
    shared: dict[str, list[list[str]]] = {}
    for name in names:
        if name in known:
            layers = list(by_layer[id(known[name])].values())
            if layers != [[name]]:
                shared[name] = layers
    return shared


def _matches_any(names: Iterable[str], pattern: str) -> bool:
    return any(_matches(name, pattern) for name in names)


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)
