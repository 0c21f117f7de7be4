"""The steps of a stack whose network is a chain of linear layers: products into memory that is reused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning.executors.stacked.program.losses import VALUE_LOSSES
from fl_lightning.executors.stacked.program.plan import Activation, Dropout, Linear, Plan
from fl_lightning.executors.stacked.randomness import ClientGenerators

_BACKWARD: dict[str, Any] = {
    "relu": lambda g, z, a, o: torch.ops.aten.threshold_backward.grad_input(g, a, 0, grad_input=g),
    "tanh": lambda g, z, a, o: torch.ops.aten.tanh_backward.grad_input(g, a, grad_input=g),
    "sigmoid": lambda g, z, a, o: torch.ops.aten.sigmoid_backward.grad_input(g, a, grad_input=g),
    "silu": lambda g, z, a, o: torch.ops.aten.silu_backward.grad_input(g, z, grad_input=g),
    "gelu": lambda g, z, a, o: torch.ops.aten.gelu_backward.grad_input(
        g, z, approximate=o.get("approximate", "none"), grad_input=g
    ),
    "elu": lambda g, z, a, o: torch.ops.aten.elu_backward.grad_input(
        g, o.get("alpha", 1.0), 1, 1, False, z, grad_input=g
    ),
    "leaky_relu": lambda g, z, a, o: torch.ops.aten.leaky_relu_backward.grad_input(
        g, z, o.get("negative_slope", 0.01), False, grad_input=g
    ),
    "softplus": lambda g, z, a, o: torch.ops.aten.softplus_backward.grad_input(
        g, z, o.get("beta", 1.0), o.get("threshold", 20.0), grad_input=g
    ),
}
_FORWARD: dict[str, Any] = {
    **{"silu": F.silu, "gelu": F.gelu, "elu": F.elu, "leaky_relu": F.leaky_relu, "softplus": F.softplus},
}
_IN_PLACE: dict[str, Any] = {"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}

_NARROW = 16  # classes: rows below are taken value by value on a CPU, columns many at a time

#: Takes the place of a parameter, the transposed gradient of its layer's output, and the layer's input.
Update = Callable[[int, Tensor, Tensor | None], None]


@dataclass
class StepBatch:
    """One batch of each client at work.

    Attributes:
        inputs: Shape ``(k, B, features)``; rows beyond a client's batch are finite and have weight 0.
        target: With cross-entropy minus the weight of each class, otherwise the target: shape ``(k, B, C)``, or
            ``(k, C, B)`` if outputs are transposed.
        weights: The weight of each sample in the mean loss, shape ``(k, B, 1)`` or ``(k, 1, B)``.
        sizes: Samples of each client's batch.
    """

    inputs: Tensor
    target: Tensor
    weights: Tensor
    sizes: Sequence[int]


class _AtWork(NamedTuple):
    """A linear layer of the clients at work: views, which stay the same as long as these clients do.

    Attributes:
        layer: The layer.
        weight: Shape ``(k, outputs, inputs)``.
        turned: The same, shape ``(k, inputs, outputs)``.
        bias: Shape ``(k, 1, outputs)``, or ``(k, outputs, 1)`` if its outputs are transposed.
        output: Takes its outputs, shape ``(k, B, outputs)``.
        incoming: Takes the gradient that it passes on, shape ``(k, B, inputs)``; ``None`` for the first layer.
    """

    layer: Linear
    weight: Tensor
    turned: Tensor
    bias: Tensor | None
    output: Tensor
    incoming: Tensor | None


class Program:
    """Forward and backward passes of a stack's network.

    Args:
        plan: The network.
        models: Models of the stack.
        batch: Samples of a batch, at most.
        parameters: The stack's, shape ``(K, *shape)`` each.
        generators: The clients', where the network drops values.

    Attributes:
        classes: The network's outputs for a sample, C.
        transposed: Whether outputs are computed transposed: the softmax of narrow rows is slow on CPUs.
    """

    def __init__(
        self, plan: Plan, models: int, batch: int, parameters: Sequence[Tensor], generators: ClientGenerators | None
    ) -> None:
        self._plan, self._generators = plan, generators
        self._linear = [layer for layer in plan.layers if isinstance(layer, Linear)]
        self._parameters: Sequence[Tensor] = ()  # those of the last step
        self._at_work: list[_AtWork] = []  # the linear layers with them
        like = parameters[0].detach()
        self._outputs: list[Tensor] = []  # of linear layers
        self._incoming: list[Tensor | None] = []  # gradients that they pass on
        self._masks: dict[int, Tensor] = {}
        width = 0
        for place, layer in enumerate(plan.layers):
            if isinstance(layer, Linear):
                outputs, inputs = parameters[layer.weight].shape[1:]
                self._outputs.append(like.new_zeros(models, batch, outputs))
                self._incoming.append(like.new_zeros(models, batch, inputs) if place else None)
                width = outputs
            elif isinstance(layer, Dropout):
                self._masks[place] = like.new_zeros(models, batch, width)
        self.classes = width
        self.transposed = plan.loss == "cross_entropy" and width < _NARROW
        self._gradient = like.new_zeros((models, width, batch) if self.transposed else (models, batch, width))

    def step(self, parameters: Sequence[Tensor], batch: StepBatch, out: Tensor, update: Update) -> None:
        """Take a step.

        Args:
            parameters: Parameters of the clients at work, shape ``(k, *shape)`` each; for other ones another list.
            batch: Their batches.
            out: Filled with the outputs, shape ``(k, B, C)``, or ``(k, C, B)`` if they are transposed.
            update: Called for each parameter, the last layer's first, once its gradient is known.
        """
        if parameters is not self._parameters:
            self._parameters, self._at_work = parameters, self._put_to_work(parameters)
        layers, last = self._at_work, len(self._at_work) - 1
        taken: list[Tensor] = []  # what each linear layer took
        undo: list[list[Callable[[Tensor], Any]]] = [[] for _ in layers]  # the way back from its input
        hidden, number = batch.inputs, 0
        for place, layer in enumerate(self._plan.layers):
            if isinstance(layer, Linear):
                own = layers[number]
                taken.append(hidden)
                if number == last and self.transposed:
                    _product(own.weight, hidden.transpose(1, 2), own.bias, out)
                    continue
                hidden = out if number == last else own.output
                _product(taken[-1], own.turned, own.bias, hidden)
                number += 1
            elif isinstance(layer, Activation):
                hidden, back = _activate(layer, hidden)
                undo[number].append(back)
            else:
                mask = self._mask(place, layer, batch.sizes)
                hidden = hidden * mask
                undo[number].append(partial(_times, mask))
        gradient = self._loss_gradient(batch, out)
        for number in range(last, -1, -1):
            own, passed = layers[number], None
            if number:
                passed = torch.bmm(gradient.transpose(1, 2), own.weight, out=own.incoming)
            update(own.layer.weight, gradient, taken[number])
            if own.layer.bias is not None:
                update(own.layer.bias, gradient, None)
            if passed is not None:
                for back in reversed(undo[number]):
                    back(passed)
                gradient = passed.transpose(1, 2)

    def _put_to_work(self, parameters: Sequence[Tensor]) -> list[_AtWork]:
        """Return the linear layers with the parameters of some clients."""
        k, at_work = len(parameters[0]), []
        for number, layer in enumerate(self._linear):
            weight, bias, incoming = parameters[layer.weight], None, self._incoming[number]
            if layer.bias is not None:
                bias = parameters[layer.bias].unsqueeze(2 if self.transposed and number == len(self._linear) - 1 else 1)
            passed = None if incoming is None else incoming[:k]
            at_work.append(_AtWork(layer, weight, weight.transpose(1, 2), bias, self._outputs[number][:k], passed))
        return at_work

    def _loss_gradient(self, batch: StepBatch, out: Tensor) -> Tensor:
        """Return the gradient of the mean loss with respect to the outputs, shape ``(k, C, B)``."""
        gradient = self._gradient[: len(out)]
        if self._plan.loss == "cross_entropy":
            torch.softmax(out, 1 if self.transposed else 2, out=gradient)
            torch.addcmul(batch.target, gradient, batch.weights, out=gradient)
        else:
            loss = VALUE_LOSSES[self._plan.loss]
            loss.slopes(out, batch.target, gradient).mul_(batch.weights * (loss.factor / self.classes))
        return gradient if self.transposed else gradient.transpose(1, 2)

    def _mask(self, place: int, layer: Dropout, sizes: Sequence[int]) -> Tensor:
        mask = self._masks[place][: len(sizes)]
        assert self._generators is not None
        for row, size in enumerate(sizes):
            mask[row, :size].bernoulli_(1 - layer.p, generator=self._generators.cpu(row))
        return mask.div_(1 - layer.p) if layer.p < 1 else mask.zero_()


def _product(left: Tensor, right: Tensor, offset: Tensor | None, out: Tensor) -> None:
    if offset is None:
        torch.bmm(left, right, out=out)
    else:
        torch.baddbmm(offset, left, right, out=out)


def _activate(layer: Activation, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Return a function's values, and what takes a gradient back through it, in place."""
    options = dict(layer.options)
    a = _IN_PLACE[layer.name](z) if layer.name in _IN_PLACE else _FORWARD[layer.name](z, **options)
    return a, lambda gradient: _BACKWARD[layer.name](gradient, z, a, options)


def _times(mask: Tensor, gradient: Tensor) -> None:
    gradient.mul_(mask)
