"""A stand-in for tensors that holds those of several clients, for the few operations of small networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning.executors.base import CannotVectorize
from fl_lightning.executors.stacked.optimizer import along

StackedRule = Callable[..., "StackedTensor"]

_NARROW = 16  # rows below this are taken value by value on a CPU, columns many at a time


class StackedTensor:
    """Acts as each client's tensor of shape ``(...)`` and holds all of them, shape ``(K, ...)``.

    Operations that it does not know raise :class:`CannotVectorize`.
    """

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> StackedTensor:
        rule = _RULES.get(function)
        if rule is None or (function is not F.linear and any(type(arg) is StackedWeight for arg in args)):
            raise CannotVectorize(f"{getattr(function, '__name__', function)} has no fused form")
        return rule(*args, **(kwargs or {}))

    # ---- what training steps ask of a tensor ----

    @property
    def shape(self) -> torch.Size:
        """One client's shape."""
        return self.held.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """The tensors' type."""
        return self.held.dtype

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.held.device

    @property
    def ndim(self) -> int:
        """Dimensions of one client's tensor."""
        return self.held.dim() - 1

    def __len__(self) -> int:
        return self.held.shape[1]

    def __hash__(self) -> int:
        return id(self)

    def dim(self) -> int:
        """Return the dimensions of one client's tensor."""
        return self.held.dim() - 1

    def size(self, dim: int | None = None) -> Any:
        """Return one client's shape, or one of its sizes."""
        return self.shape if dim is None else self.shape[dim]

    def detach(self) -> StackedTensor:
        """Return the values without their graph."""
        return StackedTensor(self.held.detach())

    def float(self) -> StackedTensor:
        """Return the values in single precision."""
        return StackedTensor(self.held.float())

    def long(self) -> StackedTensor:
        """Return the values as whole numbers."""
        return StackedTensor(self.held.long())

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> StackedTensor:
        """Flatten dimensions of one client's tensor."""
        return StackedTensor(self.held.flatten(_shifted(start_dim), _shifted(end_dim)))

    def reshape(self, *shape: Any) -> StackedTensor:
        """Give one client's tensor another shape."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return StackedTensor(self.held.reshape(len(self.held), *sizes))

    view = reshape

    def argmax(self, dim: int) -> StackedTensor:
        """Return the largest value's place along a dimension of one client's tensor."""
        return StackedTensor(self.held.argmax(_shifted(dim)))

    def mean(self) -> StackedTensor:
        """Return each client's mean."""
        return StackedTensor(self.held.flatten(1).mean(1))

    def sum(self) -> StackedTensor:
        """Return each client's sum."""
        return StackedTensor(self.held.flatten(1).sum(1))

    def __eq__(self, other: object) -> StackedTensor:  # type: ignore[override]
        if not isinstance(other, StackedTensor):
            raise CannotVectorize("a comparison with something else than a tensor has no fused form")
        return StackedTensor(self.held == other.held)


class StackedWeight(StackedTensor):
    """A parameter of linear layers, shape ``(K, *shape)``, to be used once in a step: ``w = keep w + lr (shift - g)``.

    Args:
        held: The parameter; changed in place by the step.
        lr: Learning rate.
        keep: What is kept of the parameter, for all clients or shape ``(K,)``: below 1 with weight decay.
        shift: Added to the negative gradient, shape ``(K, *shape)``.
    """

    def __init__(self, held: Tensor, lr: float, keep: float | Tensor = 1.0, shift: Tensor | None = None) -> None:
        super().__init__(held)
        self._lr, self._keep, self._shift = lr, keep, shift
        self._used = False

    def take(self) -> Tensor:
        """Return the parameter for the one use."""
        if self._used:
            raise CannotVectorize("a parameter is used twice in a step, which has no fused form")
        self._used = True
        return self.held

    def step_product(self, left: Tensor, right: Tensor) -> None:
        """Take the step with the gradient ``left @ right``, which never is a tensor of its own."""
        held = self.held.data
        held.baddbmm_(left, right, beta=self._decay(held), alpha=-self._lr)
        if self._shift is not None:
            held.add_(self._shift, alpha=self._lr)

    def step(self, gradient: Tensor) -> None:
        """Take the step with a gradient."""
        held = self.held.data
        factor = self._decay(held)
        if factor != 1:
            held.mul_(factor)
        held.add_(gradient, alpha=-self._lr)
        if self._shift is not None:
            held.add_(self._shift, alpha=self._lr)

    def _decay(self, held: Tensor) -> float:
        """Return the factor that is still to be applied."""
        if isinstance(self._keep, Tensor):
            held.mul_(along(self._keep, held))
            return 1.0
        return self._keep


def _refuse(self: StackedWeight, *args: Any, **kwargs: Any) -> Any:
    raise CannotVectorize("a parameter is used outside of a linear layer, which has no fused form")


for _name in ("detach", "float", "long", "flatten", "reshape", "view", "argmax", "mean", "sum", "__eq__"):
    setattr(StackedWeight, _name, _refuse)


class _LinearStep(torch.autograd.Function):
    """Linear layers of several clients whose backward pass takes SGD's step in place of making gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, held: Tensor, offset: Tensor | None, weight: StackedWeight, bias: StackedWeight | None
    ) -> Tensor:
        ctx.x, ctx.weight, ctx.bias = x, weight, bias
        turned = held.transpose(1, 2)
        return torch.bmm(x, turned) if offset is None else torch.baddbmm(offset.unsqueeze(1), x, turned)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        passed_on = torch.bmm(gradient, ctx.weight.held.data) if ctx.needs_input_grad[0] else None
        ctx.weight.step_product(gradient.transpose(1, 2), ctx.x)
        if ctx.bias is not None:
            ctx.bias.step(gradient.sum(1))
        return passed_on, None, None, None, None


def _shifted(dim: int) -> int:
    return dim if dim < 0 else dim + 1


def _linear(x: Any, weight: Any, bias: Any = None) -> StackedTensor:
    if (
        type(x) is not StackedTensor
        or type(weight) is not StackedWeight
        or not (bias is None or type(bias) is StackedWeight)
    ):
        raise CannotVectorize("a linear layer of something else than parameters has no fused form")
    held = x.held
    flat = held.reshape(len(held), -1, held.shape[-1])
    offset = None if bias is None else bias.take()
    y: Tensor = _LinearStep.apply(flat, weight.take(), offset, weight, bias)  # type: ignore[no-untyped-call]
    return StackedTensor(y.view(*held.shape[:-1], y.shape[-1]))


def _cross_entropy(input: Any, target: Any, **options: Any) -> StackedTensor:
    """Return each client's mean cross-entropy."""
    usual: dict[str, Any] = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
    if any(value != usual.get(name) for name, value in options.items()) or target.held.is_floating_point():
        raise CannotVectorize("this cross-entropy has no fused form")
    logits, classes = input.held, target.held
    if logits.dim() != 3 or classes.dim() != 2:
        raise CannotVectorize("cross-entropy of more than one prediction a sample has no fused form")
    losses = _losses(logits.flatten(0, 1), classes.flatten()).view(classes.shape)
    return StackedTensor(losses.sum(1) / (classes != -100).sum(1))


def _losses(rows: Tensor, classes: Tensor) -> Tensor:
    """Return the cross-entropy of each row."""
    if rows.is_cpu and rows.shape[1] < _NARROW and rows.dtype in (torch.float32, torch.float64):
        return F.nll_loss(F.log_softmax(rows.t().contiguous(), 0).t(), classes, reduction="none")
    return F.cross_entropy(rows, classes, reduction="none")


def _elementwise(function: Callable[..., Tensor]) -> StackedRule:
    def rule(x: StackedTensor, *args: Any, **kwargs: Any) -> StackedTensor:
        return StackedTensor(function(x.held, *args, **kwargs))

    return rule


_ELEMENTWISE: tuple[Any, ...] = (F.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.softplus, F.hardtanh, F.relu6)
_RULES: dict[Any, StackedRule] = {
    **{function: _elementwise(function) for function in (*_ELEMENTWISE, torch.relu, torch.tanh, torch.sigmoid)},
    F.linear: _linear,
    F.cross_entropy: _cross_entropy,
    torch.flatten: StackedTensor.flatten,
    torch.argmax: StackedTensor.argmax,
}
