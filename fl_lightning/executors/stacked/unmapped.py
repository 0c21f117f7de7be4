"""Functions of torch that do something else under ``vmap`` than for a client alone, and what is called instead.

Under ``vmap`` the tables of all clients are one long table: an index that is out of range takes another client's row,
and ``padding_idx`` is that of the first client. Where several values are the largest, alone each gets its share of the
gradient. The gradient of ``select_scatter`` is another. On a CPU ``dropout`` draws in the order of indices, where
alone it draws in the order of the tensor's memory. ``gaussian_nll_loss`` looks for negative variances, by which it
would decide for all clients. And ``lstm_cell``, and ``normalize`` with ``out=``, cannot be mapped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.nn import functional as F

from fl_lightning._lightning.cannot_vectorize import CannotVectorize


def called_instead(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Return what to call for a function of torch with these arguments: mostly the function itself.

    Raises:
        CannotVectorize: If the function does something else under ``vmap`` and nothing takes its place.
    """
    if function in _OF_EVERYTHING and ((len(args) == 1 and not kwargs) or (not args and list(kwargs) == ["input"])):
        return _OF_EVERYTHING[function]
    return _INSTEAD.get(function, function)  # type: ignore[no-any-return]


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    rows = len(weight)
    _check_range("embedding", input, rows)
    found = F.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    if padding_idx is None:
        return found
    return torch.where((input == padding_idx % rows).unsqueeze(-1), found.detach(), found)


def _embedding_of_table(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    padding = padding_idx if padding_idx >= 0 else None
    return _embedding(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0 and _functorch.is_batchedtensor(tensor):
        raise CannotVectorize("`one_hot` without `num_classes` has as many columns as a client's largest value says")
    _check_range("one_hot", tensor, num_classes)
    return F.one_hot(tensor, num_classes)


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
    """Compute a cross-entropy; torch's own cannot be mapped with weights and smoothing together."""
    by_mean = reduction == "mean" and size_average is None and reduce is None
    is_usual = weight is None or not label_smoothing or not by_mean or target.is_floating_point()
    options = {"size_average": size_average, "ignore_index": ignore_index, "reduce": reduce, "reduction": reduction}
    smoothing = label_smoothing if is_usual else 0.0
    usual = F.cross_entropy(input, target, weight, label_smoothing=smoothing, **options)  # type: ignore[arg-type]
    if weight is None or is_usual:
        return usual
    along = 1 if input.dim() > 1 else 0  # classes lie along this dimension
    shape = [-1 if dim == along else 1 for dim in range(input.dim())]
    counts = target != ignore_index
    missing = -(F.log_softmax(input, along) * weight.view(shape)).sum(along)
    total = torch.where(counts, weight[torch.where(counts, target, 0)], 0).sum()
    smooth = torch.where(counts, missing, 0).sum() / total
    return (1 - label_smoothing) * usual + label_smoothing / input.shape[along] * smooth


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
    if variance.dim() != input.dim() or (_of_all_clients(var) < 0).any():
        raise CannotVectorize("`gaussian_nll_loss` has variances that are negative or of another shape")
    variance = variance.clone()
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


def _check_range(name: str, indices: Tensor, rows: int) -> None:
    """Raise ``CannotVectorize`` unless the indices of each client are at least 0 and below ``rows``."""
    if not _functorch.is_batchedtensor(indices):
        return
    if indices.numel():
        least, largest = torch.stack(_of_all_clients(indices).aminmax()).tolist()
        if least < 0 or largest >= rows:
            raise CannotVectorize(f"`{name}` has indices below 0 or above {rows - 1}, the last")


def _of_all_clients(tensor: Tensor) -> Tensor:
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


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
