"""Narrow models for weak clients: which dimensions of a module's tensors are hidden units, and shrink.

For ``Conv2d(1, 8, 3)``, ``BatchNorm2d(8)``, a flattening of 4 x 4 pixels and ``Linear(128, 10)``::

    0.weight    (8, 1, 3, 3)    Span(0, units=8)            its inputs are the network's
    0.bias      (8,)            Span(0, units=8)
    1.weight    (8,)            Span(0, units=8)            and so on for all tensors of BatchNorm
    4.weight    (10, 128)       Span(1, units=8, block=16)  its outputs are the network's
    4.bias      (10,)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from typing_extensions import override

from fl_lightning.parts.exchanges.partial import PartialModel, Span, check_not_empty
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.layout import Layer, Layout, Patterns
from fl_lightning.parts.messages import Task
from fl_lightning.settings import Share, check_fields
from fl_lightning.vectors import share_of

#: Layers that multiply by a matrix; of an embedding the rows are tokens.
_CONVOLUTIONS = frozenset(("Conv1d", "Conv2d", "Conv3d"))
_MATRICES = _CONVOLUTIONS | {"Linear", "Embedding"}
#: Normalisation layers that treat channels, or groups of them, by themselves.
_NORMS = frozenset(
    (
        *("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"),
        *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "GroupNorm"),
    )
)
#: Layers that mix hidden units otherwise than by a matrix, so that a part of them is no smaller network.
_MIXING = frozenset(
    (
        *("LayerNorm", "RMSNorm", "LocalResponseNorm", "CrossMapLRN2d", "GLU", "Softmax", "Softmax2d", "Softmin"),
        *("LogSoftmax", "PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "Unflatten"),
    )
)


@dataclass(eq=False)
class SubModels(PartialModel):
    """Weak clients train narrow models: the leading units of each hidden layer (HeteroFL, FjORD; eq. (91)).

    Of n hidden units, or channels, a client of width p holds the first ``ceil(p n)``. The inputs of the network's first
    layer and the outputs of its last one stay whole; first and last are meant in the order in which the module
    registers its layers. Frozen layers stay whole, and must come first. What is not known raises an error when the fit
    begins.

    Equations are numbered as in ``docs/references.md``.

    Args:
        widths: Shares of the hidden units, in (0, 1]; client k has the k-th, from the first one again after the last.
        drawn: Whether each client of a round draws one of the widths instead.
        inputs: Layers whose inputs stay whole, by names or shell patterns; the first one if ``None``.
        outputs: Layers whose outputs stay whole, by names or shell patterns; the last one if ``None``.
        hidden: Dimensions that shrink of tensors that are of no known layer, by the tensors' names, such as
            ``{"centre": 0}`` for a buffer with a value for each unit.
        whole: Such tensors that stay whole, by names or shell patterns.

    Raises:
        ValueError: If a width is out of its range; when the fit begins, if there are more widths than clients, or what
            a narrow model holds of a layer is not known.
    """

    widths: Sequence[Share]
    _: KW_ONLY
    drawn: bool = False
    inputs: Patterns | None = None
    outputs: Patterns | None = None
    hidden: Mapping[str, int] | None = None
    whole: Patterns | None = None

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        check_not_empty("widths", self.widths)

    @property
    @override
    def levels(self) -> Sequence[float]:
        return self.widths

    @property
    @override
    def is_drawn(self) -> bool:
        return self.drawn

    @override
    def level(self, task: Task) -> float:
        """Return the width of a task's client."""
        if not self.drawn:
            return super().level(task)
        generator = self.generator(task.sending, self.place)
        return self.widths[int(torch.randint(len(self.widths), (), generator=generator))]

    @override
    def num_held(self, level: float, units: int) -> int:
        return math.ceil(share_of(level, units))

    @override
    def find_spans(self, federation: Federation) -> Mapping[str, Sequence[Span]]:
        """Return the dimensions of hidden units."""
        return _HiddenUnits(self, federation.layout).find()


class _HiddenUnits:
    """Finds the dimensions of hidden units, layer by layer in the order in which a module registers them.

    Args:
        exchange: Says what its user knows of the module.
        layout: The module's layers and tensors.
    """

    def __init__(self, exchange: SubModels, layout: Layout) -> None:
        self._exchange = exchange
        self._layout = layout
        self._shapes = dict(zip(layout.names, layout.shapes, strict=True))
        self._spans: dict[str, list[Span]] = {}
        #: Tensors of no known layer, of which the user says what they are.
        self._whole = set() if exchange.whole is None else set(layout.matching(exchange.whole, "whole"))
        self._hidden = dict(exchange.hidden or {})
        #: The trained matrices, and those whose inputs and outputs stay whole.
        self._matrices = [layer for layer in layout.layers if self._is_matrix(layer)]
        self._first = self._named(exchange.inputs, "inputs", self._matrices[:1])
        self._last = self._named(exchange.outputs, "outputs", self._matrices[-1:])
        #: Hidden units of the layers so far, and of those whose units a later layer has read.
        self._units: list[int] = []
        self._unread: list[tuple[str, int]] = []
        self._previous: Layer | None = None

    def find(self) -> Mapping[str, Sequence[Span]]:
        """Return the dimensions that shrink, by the tensors' names.

        Raises:
            ValueError: If what a narrow model holds of a layer is not known.
        """
        if len(self._matrices) < 2:
            self._refuse("needs at least two trained layers, with hidden units between them")
        for layer in self._layout.layers:
            self._take(layer)
        for name, units in self._unread:
            self._refuse(
                f"makes the {units} outputs of {name!r} fewer, which no later layer reads",
                "If they are outputs of the network, name all such layers by `outputs`",
            )
        for name, dim in self._hidden.items():
            shape = self._shapes.get(name, torch.Size())
            if not 0 <= dim < len(shape) or shape[dim] not in self._units:
                self._refuse(
                    f"has `hidden={self._exchange.hidden}`, but {name!r} has no such dimension of hidden units"
                )
            self._add(name, [Span(dim, shape[dim])])
        return self._spans

    def _take(self, layer: Layer) -> None:
        """Find the dimensions of a layer's tensors."""
        if layer.kind in _MATRICES:
            self._take_matrix(layer)
        elif layer.kind in _NORMS or layer.kind in _MIXING:
            if self._previous is self._matrices[-1] and layer.tensors:
                self._refuse(
                    f"does not know what {layer.name!r} normalises, which is registered after the last layer",
                    "Register it before",
                )
            if self._previous is not None and self._previous is not self._matrices[-1]:
                self._take_between(layer)
        elif layer.kind.endswith("Loss"):
            return
        else:
            for name in layer.tensors.values():
                if name not in self._whole and name not in self._hidden:
                    what = layer.kind or "a class of a user's"
                    self._refuse(
                        f"does not know how {name!r} becomes smaller, of {layer.name or 'the module'!r} ({what})",
                        "Name it by `whole` if it stays as it is, or by `hidden` with its dimension of hidden units",
                    )

    def _take_matrix(self, layer: Layer) -> None:
        if layer not in self._matrices:
            if self._previous is not None and layer.tensors:
                self._refuse(f"keeps frozen layers whole, which must come first, but {layer.name!r} comes later")
            return
        weight = layer.tensors["weight"]
        shape = self._shapes[weight]
        if layer.kind == "Embedding":
            self._add(weight, [Span(1, shape[1])])
            self._note_units(layer, shape[1])
            return
        spans: list[Span] = []
        is_depthwise = layer.groups == shape[0] and shape[1] == 1
        if layer.groups > 1 and not is_depthwise:
            self._refuse(f"does not know {layer.name!r}, a convolution of {layer.groups} groups")
        if layer not in self._first:
            read = self._read(layer, shape[0] if layer.groups > 1 else shape[1])
            if layer.groups == 1:
                spans.append(read)
        if layer not in self._last:
            spans.append(Span(0, shape[0]))
            if "bias" in layer.tensors:
                self._add(layer.tensors["bias"], [Span(0, shape[0])])
            self._note_units(layer, shape[0])
        self._add(weight, spans)
        self._previous = layer

    def _note_units(self, layer: Layer, units: int) -> None:
        self._units.append(units)
        self._unread.append((layer.name, units))
        self._previous = layer

    def _read(self, layer: Layer, size: int) -> Span:
        """Return the dimension of a layer's inputs, which are hidden units of earlier layers."""
        units = size
        if layer.kind == "Linear" and self._previous is not None and self._previous.kind in _CONVOLUTIONS:
            channels = self._units[-1]
            # Flattened channels follow each other.
            if size % channels == 0:
                units = channels
        if units not in self._units:
            self._refuse(
                f"does not know from where {layer.name!r} has its {size} inputs: earlier layers have {self._units} "
                "hidden units",
                "If they are inputs of the network, name all such layers by `inputs`; concatenated units are not known",
            )
        self._unread = [(name, number) for name, number in self._unread if number != units]
        return Span(1, units, size // units)

    def _take_between(self, layer: Layer) -> None:
        """Find the dimensions of a normalisation layer of hidden units."""
        if layer.kind in _MIXING:
            self._refuse(
                f"cannot have {layer.name!r} ({layer.kind}), which mixes all hidden units, so that a part of it is no "
                "smaller network",
                "Use BatchNorm or GroupNorm",
            )
        units = self._units[-1]
        for name in layer.tensors.values():
            shape = self._shapes[name]
            if not shape:
                continue
            units = shape[0]
            if units not in self._units:
                self._refuse(f"does not know {layer.name!r}, of {units} channels: layers before have {self._units}")
            self._add(name, [Span(0, units)])
        if layer.kind != "GroupNorm":
            return
        for width in self._exchange.widths:
            kept = self._exchange.num_held(width, units)
            if kept % (units // layer.groups):
                self._refuse(
                    f"must leave clients whole groups of {layer.name!r}, of {units // layer.groups} channels each, but "
                    f"the width {width} leaves {kept} channels",
                    "Give other widths or more groups",
                )

    def _add(self, name: str, spans: list[Span]) -> None:
        """Note the dimensions of a tensor, which several layers may share."""
        if self._spans.setdefault(name, spans) != spans:
            self._refuse(f"does not know {name!r}, which two layers share that have it in different places")

    def _is_matrix(self, layer: Layer) -> bool:
        """Return whether a layer is a trained matrix."""
        return layer.kind in _MATRICES and layer.tensors.get("weight") in self._layout.trained

    def _named(self, patterns: Patterns | None, argument: str, default: list[Layer]) -> list[Layer]:
        """Return the trained matrices that patterns name."""
        if patterns is None:
            return default
        found = set(self._layout.matching(patterns, argument))
        return [layer for layer in self._matrices if layer.tensors["weight"] in found]

    def _refuse(self, what: str, hint: str = "Take another module, or FedAvg") -> None:
        raise ValueError(f"{type(self._exchange).__name__} {what}. {hint}.")
