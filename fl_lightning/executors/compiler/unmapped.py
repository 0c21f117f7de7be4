"""Functions of torch that do something else under ``vmap`` than for a client alone, and what is called instead.

Under ``vmap`` the tables of all clients are one long table: an index that is out of range takes another client's row,
and ``padding_idx`` is that of the first client. Where several values are the largest, alone each gets its share of the
gradient. The gradient of ``select_scatter`` is another. On a CPU ``dropout`` draws in the order of indices, where
alone it draws in the order of the tensor's memory. ``gaussian_nll_loss`` looks for negative variances, by which it
would decide for all clients. A tensor that is no client's is filled with one client's random numbers. And
``lstm_cell``, and ``normalize`` with ``out=``, cannot be mapped.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import _functorch
from torch.nn import functional as F

from fl_lightning._lightning.errors import CannotVectorize

_CHECKS = ("_assert_scalar", "sym_constrain_range", "_check", "_check_is_size", "sym_constrain_range_for_size")

#: Of functions that ``torch.func``'s transforms in a step call, the argument that counts transforms within each other.
_LEVELS = {"_add_batch_dim": 2, "_remove_batch_dim": 1, "_wrap_for_grad": 1, "_unwrap_for_grad": 1}


def replace_unmapped(graph: fx.Graph) -> bool:
    """Let functions of a graph be replaced by such as can be mapped; numbers that ``item()`` takes stay tensors.

    Returns:
        Whether the graph has got one more input: a zero of each client.
    """
    zeros: fx.Node | None = None
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        function = getattr(Tensor, node.target, None) if node.op == "call_method" else node.target
        name = getattr(function, "__name__", "")
        if name in _LEVELS:
            node.args = tuple(a + 1 if place == _LEVELS[name] else a for place, a in enumerate(node.args))  # type: ignore[operator]
        if function is operator.truediv and not isinstance(node.meta.get("example_value"), Tensor):
            node.target = _divided
        of_everything = len(node.args) == 1 and not node.kwargs and function in _OF_EVERYTHING
        first = node.args[0] if node.args else node.kwargs.get("mean", node.kwargs.get("input"))
        if name in _CHECKS:
            graph.erase_node(node)
        elif of_everything or function in _INSTEAD:
            node.op, node.target = "call_function", (_OF_EVERYTHING if of_everything else _INSTEAD)[function]
        elif name in _FILLS and isinstance(first, fx.Node):
            if zeros is None:
                last = [each for each in graph.nodes if each.op == "placeholder"][-1]
                with graph.inserting_after(last):
                    zeros = graph.placeholder("zeros")
            with graph.inserting_before(node):
                node.replace_input_with(first, graph.call_function(_of_each_client, (first, zeros)))
    return zeros is not None


def mapped_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what to call under ``vmap`` in a function's place; mostly the function itself."""
    return _INSTEAD.get(function, function)


def _of_each_client(value: Any, zero: Tensor) -> Any:
    return (
        value + zero.to(value.dtype) if isinstance(value, Tensor) and not _functorch.is_batchedtensor(value) else value
    )


def _as_number(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        return tensor
    return tensor.detach().double() if tensor.is_floating_point() else tensor.detach()


def _divided(one: Any, other: Any) -> Any:
    """Divide numbers as Python does, in double precision."""
    return (one.double() if isinstance(one, Tensor) else one) / (other.double() if isinstance(other, Tensor) else other)


def _as_tensor(value: Any, **options: Any) -> Tensor:
    return value.to(**options) if isinstance(value, Tensor) else torch.scalar_tensor(value, **options)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if max_norm is not None or scale_grad_by_freq:
        raise CannotVectorize(
            "an embedding with `max_norm` or `scale_grad_by_freq` writes to its weight or counts indices"
        )
    found = weight.index_select(0, input.reshape(-1)).reshape(*input.shape, weight.shape[1])  # which looks at the range
    if padding_idx is None:
        return found
    return torch.where((input == padding_idx % len(weight)).unsqueeze(-1), found.detach(), found)


def _embedding_of_table(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    padding = padding_idx if padding_idx >= 0 else None
    return _embedding(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise CannotVectorize("`one_hot` without `num_classes` has as many columns as a client's largest value says")
    ones = torch.ones_like(tensor).unsqueeze(-1)
    return tensor.new_zeros(*tensor.shape, num_classes).scatter(-1, tensor.unsqueeze(-1), ones)


def _index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return input.clone().index_fill_(dim, index, value)  # which does the same as without `vmap`


def _select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    start = index % input.shape[dim] if -input.shape[dim] <= index < 0 else index
    return torch.slice_scatter(input, src.unsqueeze(dim), dim, start, start + 1)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    is_fused = input.device.type != "cpu" and not inplace  # drawn as alone
    if not training or not 0 < p < 1 or is_fused or not _functorch.is_batchedtensor(input):
        return F.dropout(input, p, training, inplace)
    kept = torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)
    return input.mul_(kept) if inplace else input * kept


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute a cross-entropy: the usual one in a third of the calls of the mapped one.

    Torch's own cannot be mapped with weights and smoothing together.
    """
    by_mean = reduction == "mean" and size_average is None and reduce is None
    of_classes = not target.is_floating_point()
    of_samples = of_classes and weight is None and not label_smoothing and (input.dim(), target.dim()) == (2, 1)
    if of_samples and (by_mean or reduction == "none") and not torch.is_autocast_enabled(input.device.type):
        losses: Tensor = _NllLosses.apply(F.log_softmax(input, 1), target, ignore_index)
        return losses.sum() / (target != ignore_index).sum() if by_mean else losses
    is_mapped = weight is None or not label_smoothing or not by_mean or not of_classes
    options = {"size_average": size_average, "ignore_index": ignore_index, "reduce": reduce, "reduction": reduction}
    smoothing = label_smoothing if is_mapped else 0.0
    usual = F.cross_entropy(input, target, weight, label_smoothing=smoothing, **options)  # type: ignore[arg-type]
    if weight is None or is_mapped:
        return usual
    along = 1 if input.dim() > 1 else 0  # classes lie along this dimension
    shape = [-1 if dim == along else 1 for dim in range(input.dim())]
    counts = target != ignore_index
    missing = -(F.log_softmax(input, along) * weight.view(shape)).sum(along)
    total = torch.where(counts, weight[torch.where(counts, target, 0)], 0).sum()
    smooth = torch.where(counts, missing, 0).sum() / total
    return (1 - label_smoothing) * usual + label_smoothing / input.shape[along] * smooth


class _NllLosses(torch.autograd.Function):
    """The losses of samples, of clients as well; mapped, torch's own takes five times the calls."""

    @staticmethod
    def forward(scores: Tensor, target: Tensor, ignore_index: int) -> Tensor:
        """Return the losses of log-probabilities, shape ``(B, C)``."""
        return torch.ops.aten.nll_loss_forward(scores, target, None, 0, ignore_index)[0]  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep what the backward pass needs."""
        ctx.save_for_backward(*inputs[:2])
        ctx.ignore_index = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient by the log-probabilities."""
        scores, target = ctx.saved_tensors
        total = scores.new_zeros(())
        found = torch.ops.aten.nll_loss_backward(gradient, scores, target, None, 0, ctx.ignore_index, total)
        return found, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, scores: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, int]:
        """Return the losses of all clients as if their samples were those of one."""
        of_scores, of_target, _ = in_dims
        scores = (
            scores.movedim(of_scores, 0) if of_scores is not None else scores.expand(info.batch_size, *scores.shape)
        )
        target = (
            target.movedim(of_target, 0) if of_target is not None else target.expand(info.batch_size, *target.shape)
        )
        losses = _NllLosses.apply(scores.flatten(0, 1), target.flatten(), ignore_index)
        return losses.unflatten(0, target.shape), 0


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    if not isinstance(var, Tensor) or not _functorch.is_batchedtensor(var):
        return F.gaussian_nll_loss(input, target, var, full, eps, reduction)
    variance = var.unsqueeze(-1) if var.shape == input.shape[:-1] else var
    if variance.dim() != input.dim():
        raise CannotVectorize("`gaussian_nll_loss` has variances of another shape")
    is_negative = (var < 0).any().long()  # which is an error, also of `gather`
    variance = variance + 0 * variance.new_zeros(1).gather(0, is_negative.reshape(1))
    with torch.no_grad():
        variance.clamp_(min=eps)  # the gradient does not see it
    losses = 0.5 * (torch.log(variance) + (input - target) ** 2 / variance)
    losses = losses + 0.5 * math.log(2 * math.pi) if full else losses
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def _normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    normal = F.normalize(input, p, dim, eps)
    return normal if out is None else out.copy_(normal)


def _lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    hidden, cell = hx
    taken, kept, new, shown = (F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh)).chunk(4, 1)
    cell = kept.sigmoid() * cell + taken.sigmoid() * new.tanh()
    return shown.sigmoid() * cell.tanh(), cell


def _without_ties(name: str) -> Callable[..., Tensor]:
    def median(input: Tensor) -> Tensor:
        if torch.is_grad_enabled() and _is_differentiated(input):
            raise CannotVectorize(
                f"the gradient of `{name}` of a whole tensor is another in a stack if values are equal"
            )
        return getattr(input, name)()  # type: ignore[no-any-return]

    return median


def _is_differentiated(tensor: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if tensor.requires_grad:
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad


_INSTEAD: dict[Any, Callable[..., Any]] = {
    F.embedding: _embedding,
    torch.embedding: _embedding_of_table,
    F.one_hot: _one_hot,
    F.dropout: _dropout,
    F.cross_entropy: _cross_entropy,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    F.normalize: _normalize,
    torch.scalar_tensor: _as_tensor,
    torch.sym_float: _as_number,
    **dict.fromkeys((Tensor.item, torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default), _as_number),
    torch.lstm_cell: _lstm_cell,
    torch.dropout: lambda input, p, train: _dropout(input, p, train),
    **dict.fromkeys((torch.select_scatter, Tensor.select_scatter), _select_scatter),
    **dict.fromkeys((torch.index_fill, Tensor.index_fill), _index_fill),
}
_OF_EVERYTHING: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((torch.max, Tensor.max), torch.amax),
    **dict.fromkeys((torch.min, Tensor.min), torch.amin),
    **dict.fromkeys((torch.median, Tensor.median), _without_ties("median")),
    **dict.fromkeys((torch.nanmedian, Tensor.nanmedian), _without_ties("nanmedian")),
}
#: Methods that fill a tensor with random numbers.
_FILLS = ("normal", "normal_", "uniform_", "bernoulli", "bernoulli_", "exponential_", "poisson")
