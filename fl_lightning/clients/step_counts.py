"""The arithmetic of a client's step, counted as it runs.

A step of a linear layer of 8 inputs and 4 outputs on a batch of 16 samples takes one product forward and one backward
for the weights' gradient: 2 * 2 * 16 * 8 * 4 = 2,048 floating-point operations. Executors ask what a step consists of,
since a stack saves the calls of operations and not their arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

#: Operations of convolutions and recurrent layers, by a part of their names.
_CONVOLUTIONS = ("convolution", "lstm", ".gru", "_gru", "rnn")
#: Operations of steps that are more than products of matrices.
_OTHERS = (
    *_CONVOLUTIONS,
    "batch_norm",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "bmm",
    "attention",
    "embedding",
    "pool",
)

#: Kernels of whole recurrent layers, for which torch's counter has no formula.
_RECURRENT = ("aten.mkldnn_rnn_layer", "aten._cudnn_rnn", "aten.miopen_rnn")


class StepCounts(TorchDispatchMode):
    """Counts the arithmetic of operations while it is entered.

    Attributes:
        flops: Floating-point operations of products, convolutions and recurrences, forward and backward.
        draws: Whether random numbers were drawn from the global generators.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0
        self._names: set[str] = set()
        self.draws = False

    def __torch_dispatch__(
        self, function: OpOverload, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        packet = function._overloadpacket
        name = str(packet)
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=out)
        elif name.startswith(_RECURRENT) and isinstance(args[0], torch.Tensor):
            forward = _of_recurrence(*args[:3])
            self.flops += 2 * forward if name.endswith("_backward") else forward
        self._names.add(name)
        if torch.Tag.nondeterministic_seeded in function.tags and kwargs.get("generator") is None:
            self.draws = True
        return out

    @property
    def convolves(self) -> bool:
        """Whether there are convolutions or recurrent layers."""
        return self._has(_CONVOLUTIONS)

    @property
    def only_matrices(self) -> bool:
        """Whether there are products of matrices and pointwise functions alone."""
        return not self._has(_OTHERS)

    def _has(self, kinds: Sequence[str]) -> bool:
        names = " ".join(self._names)
        return any(kind in names for kind in kinds)

    def __str__(self) -> str:
        kind = ", and convolutions or recurrent layers" if self.convolves else ""
        return f"a client's step has {in_words(self.flops)} operations{kind}"


def _of_recurrence(x: torch.Tensor, weight: Any, weight_hidden: Any) -> int:
    """Return the operations of recurrent layers: two for each row of each step and each value of a weight matrix.

    Args:
        x: The input, shape ``(..., features)``; every layer has as many rows.
        weight: The weight matrix of a layer's input; of some kernels, a list with the parameters of all layers.
        weight_hidden: That of its hidden state; not used where there is a list.
    """
    weights: list[torch.Tensor] = [weight, weight_hidden] if isinstance(weight, torch.Tensor) else weight
    values: int = sum(each.numel() for each in weights if each.dim() == 2)
    rows = x.numel() // max(1, x.shape[-1])
    return 2 * rows * values


def in_words(number: float) -> str:
    """Return a number with a unit: ``4.1 million``."""
    for unit, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if number >= size:
            share = number / size
            decimals = max(0, 1 - int(math.log10(share)))
            return f"{share:.{decimals}f} {unit}"
    return f"{number:.0f}"
