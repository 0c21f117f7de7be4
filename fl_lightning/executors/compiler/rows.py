"""Operations that treat each sample by itself: row ``i`` of the result depends on row ``i`` of what they are given.

``torch.relu(z)``, ``F.linear(z, w)`` and ``z.softmax(1)`` do so; ``z.softmax(0)``, ``z.roll(1, 0)`` and ``z @ z.T`` mix
samples. What is not known here counts as mixing: such a step takes the batches as they are, in groups of one size.
Nothing is told by values, which may hide what an operation does, such as a term whose weight is still 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

#: Each value of the result depends on the values in its place.
_BY_VALUE = {
    *("abs", "acos", "add", "addcdiv", "addcmul", "and", "asin", "atan", "atan2", "bitwise_and", "bitwise_not"),
    *("bitwise_or", "bitwise_xor", "bool", "ceil", "celu", "clamp", "clamp_max", "clamp_min", "clip", "clone"),
    *("contiguous", "copysign", "cos", "cosh", "detach", "digamma", "div", "double", "elu", "eq", "erf", "erfc"),
    *("erfinv", "exp", "expm1", "float", "floor", "floor_divide", "floordiv", "fmod", "frac", "ge", "gelu", "gt"),
    *("half", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "heaviside", "hypot", "int", "invert"),
    *("isfinite", "isinf", "isnan", "le", "leaky_relu", "lerp", "lgamma", "log", "log10", "log1p", "log2"),
    *("logical_and", "logical_not", "logical_or", "logical_xor", "logit", "logsigmoid", "long", "lt", "masked_fill"),
    *("maximum", "minimum", "mish", "mod", "mul", "multiply", "nan_to_num", "ne", "neg", "negative", "or", "pow"),
    *("prelu", "radd", "reciprocal", "relu", "relu6", "remainder", "round", "rpow", "rsqrt", "rsub", "rtruediv"),
    *("selu", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "softshrink", "softsign", "sqrt", "square"),
    *("sub", "subtract", "tan", "tanh", "tanhshrink", "threshold", "to", "true_divide", "truediv", "trunc"),
    *("type_as", "where", "xlogy", "xor", "dropout", "alpha_dropout", "rand_like", "randint_like", "randn_like"),
    *("bernoulli", "normal", "uniform", "exponential"),
}
#: The place of the dimensions along which they work, which must not be that of the samples.
_ALONG = {
    **dict.fromkeys(("softmax", "log_softmax", "softmin", "argmax", "argmin", "max", "min", "amax", "amin", "sum"), 1),
    **dict.fromkeys(("mean", "prod", "std", "var", "logsumexp", "cumsum", "cumprod", "flip", "sort", "argsort"), 1),
    **dict.fromkeys(("any", "all", "median", "unbind", "cat", "concat", "gather", "narrow", "select"), 1),
    **dict.fromkeys(("squeeze", "index_select", "count_nonzero", "diff", "flatten", "glu", "scatter"), 1),
    **dict.fromkeys(("topk", "chunk", "split", "roll", "norm", "vector_norm", "cosine_similarity", "normalize"), 2),
    "take_along_dim": 2,
    "gumbel_softmax": 4,
}
_USUAL_DIMS = {
    **dict.fromkeys(("glu", "sort", "argsort", "topk", "gumbel_softmax"), -1),
    **dict.fromkeys(("normalize", "cosine_similarity"), 1),
}
#: Number of dimensions of a batch of theirs; with one less they take it for one sample.
_OF_IMAGES = {
    f"{name}{number}d": number + 2
    for name in ("conv", "conv_transpose", "max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool")
    for number in (1, 2, 3)
}
_OF_IMAGES |= {f"dropout{number}d": 3 for number in (1, 2, 3)}
_OF_IMAGES |= {"feature_dropout": 3, "feature_alpha_dropout": 3, "group_norm": 3, "instance_norm": 3, "interpolate": 3}
_IN_PLACE = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"}
_NEW = (
    *("zeros", "ones", "full", "empty", "arange", "zeros_like", "ones_like", "full_like", "empty_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)
_DRAWN = ("rand", "randn", "randint")
#: Losses of samples, whose first argument has a row of scores for each class, and those that are taken value by value.
_OF_CLASSES = ("cross_entropy", "nll_loss")
_LOSSES = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "kl_div", "poisson_nll_loss"),
    *("binary_cross_entropy_with_logits", "gaussian_nll_loss", "soft_margin_loss", "hinge_embedding_loss"),
)
_PAIRS = ("pairwise_distance", "cosine_embedding_loss", "triplet_margin_loss", "margin_ranking_loss")


def name_of(node: fx.Node) -> str:
    """Return the plain name of a node's function: ``"add"`` for ``+``, ``+=``, ``torch.add`` and ``Tensor.add_``."""
    if not isinstance(node.target, str):
        known = _NAMES.get(node.target)
        if known is not None:
            return known
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in _IN_PLACE:
        return name[1:]
    return name if name.startswith("_") else name.rstrip("_")


class Rows:
    """Tells of the nodes of a graph whether they treat samples by themselves.

    Args:
        size: Samples of the batch, B.
        of_samples: Whether a node has a row for each sample, and depends on it.
        rows: The nodes that have a row for each sample; ``None`` if their shapes tell.
    """

    def __init__(self, size: int, of_samples: Callable[[fx.Node], bool], rows: Collection[fx.Node] | None) -> None:
        self._size, self._of_samples, self._rows = size, of_samples, rows

    def leads(self, node: fx.Node) -> bool:
        """Whether a node's tensors have a row for each sample."""
        if self._rows is not None:
            return node in self._rows
        value = node.meta.get("example_value")
        values = value if isinstance(value, (tuple, list)) else [value]
        return all(isinstance(own, Tensor) and own.dim() > 0 and own.shape[0] == self._size for own in values)

    def makes_rows(self, node: fx.Node) -> bool:
        """Whether a node makes a row for each sample, of constants, places or random numbers, whatever it is given."""
        return name_of(node) in (*_NEW, *_DRAWN) and self.leads(node)

    def makes_constants(self, node: fx.Node) -> bool:
        """Whether a node makes constants, which have nothing of the tensor that it is given."""
        return name_of(node) in _NEW

    def treats_alone(self, node: fx.Node) -> bool:
        """Whether each row of a node's tensors depends on the rows in its place alone."""
        if not self.leads(node):
            return False
        name = name_of(node)
        first = self._first(node)
        if first is None:
            return False
        if name in _BY_VALUE or name in _LOSSES:
            return self._in_place(node)
        if name in _OF_CLASSES or name in _PAIRS:
            return self.takes_losses(node, name)
        if name in _ALONG:
            return self._works_along_others(node, name, first)
        if name in _OF_IMAGES:
            return _dims(first) >= _OF_IMAGES[name] and self._alone_of_samples(node, first)
        rule = _RULES.get(name)
        return rule is not None and rule(self, node, first)

    def takes_losses(self, node: fx.Node, name: str) -> bool:
        """Whether a loss is one of each sample, but for the mean that it takes of them."""
        first = self._first(node)
        if first is None:
            return False
        if name in _OF_CLASSES:
            target = node.args[1] if len(node.args) > 1 else node.kwargs.get("target")
            return _dims(first) >= 2 and isinstance(target, fx.Node) and self._of_samples(target)
        if name in _PAIRS:
            return all(self._of_samples(own) and _dims(own) == _dims(first) for own in _tensors(node))
        return name in _LOSSES and self._in_place(node, _dims(first))

    def _first(self, node: fx.Node) -> fx.Node | None:
        return next((own for own in node.all_input_nodes if self._of_samples(own)), None)

    def _in_place(self, node: fx.Node, dims: int | None = None) -> bool:
        """Whether samples lie in the first dimension of all that have them, and nothing else has rows there."""
        dims = _dims(node) if dims is None else dims
        for own in _tensors(node):
            if self._of_samples(own):
                if _dims(own) != dims:
                    return False
            elif _dims(own) > dims or (_dims(own) == dims and _shape(own)[0] != 1):
                return False
        return True

    def _alone_of_samples(self, node: fx.Node, first: fx.Node) -> bool:
        """Whether a node's first argument is the only one that has samples."""
        return node.args[:1] == (first,) and sum(self._of_samples(own) for own in node.all_input_nodes) == 1

    def _works_along_others(self, node: fx.Node, name: str, first: fx.Node) -> bool:
        """Whether an operation works along other dimensions than the first."""
        alike = [own for own in _tensors(node) if self._of_samples(own)]
        if any(_dims(own) != _dims(first) for own in alike):
            return False
        others = [own for own in _tensors(node) if not self._of_samples(own)]
        if others and name != "index_select":
            return False
        given = dims_of(node, _ALONG[name], ("dim", "dims", "axis", "start_dim"))
        given = _USUAL_DIMS.get(name) if given is None else given
        dims = given if isinstance(given, (tuple, list)) else [given]
        return bool(dims) and all(type(dim) is int and dim % _dims(first) != 0 for dim in dims)


def dims_of(node: fx.Node, place: int, names: Sequence[str] = ("dim",)) -> Any:
    """Return the dimensions that a node is given; ``None`` for none."""
    for name in names:
        if name in node.kwargs:
            return node.kwargs[name]
    return node.args[place] if len(node.args) > place else None


def _tensors(node: fx.Node) -> Iterator[fx.Node]:
    for own in node.all_input_nodes:
        if isinstance(own.meta.get("example_value"), Tensor):
            yield own


def _shape(node: fx.Node) -> Sequence[int]:
    shape: Sequence[int] = node.meta["example_value"].shape
    return shape


def _dims(node: fx.Node) -> int:
    value = node.meta.get("example_value")
    return value.dim() if isinstance(value, Tensor) else -1


# ---- single functions ----


def _linear(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return _dims(first) >= 2 and rows._alone_of_samples(node, first)


def _normalized(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    shape: Any = dims_of(node, 1, ("normalized_shape",))
    return len(shape) < _dims(first) and rows._alone_of_samples(node, first)


def _looked_up(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return rows._alone_of_samples(node, first)


def _product(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    one, other = node.args[:2]
    if not isinstance(one, fx.Node) or not isinstance(other, fx.Node):
        return False
    if rows._of_samples(one) and rows._of_samples(other):
        return _dims(one) == _dims(other) >= 3
    if rows._of_samples(one):
        return _dims(one) >= 2 >= _dims(other)
    return _dims(other) >= 3 and _dims(one) <= 2


def _affine_product(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return node.args[1:2] == (first,) and sum(map(rows._of_samples, node.all_input_nodes)) == 1 and _dims(first) == 2


def _einsum(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    equation = node.args[0]
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return False
    given, result = equation.replace(" ", "").split("->")
    operands = list(_tensors(node))
    letters = given.split(",")
    if len(letters) != len(operands):
        return False
    sample = result[:1]
    for own, indices in zip(operands, letters, strict=True):
        if rows._of_samples(own):
            is_right = indices[:1] == sample and indices.count(sample) == 1
        else:
            is_right = sample not in indices
        if not is_right:
            return False
    return True


def _reshaped(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    is_shape = all(not isinstance(size, torch.dtype) for size in node.args[1:])
    return is_shape and rows._alone_of_samples(node, first)


def _expanded(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return _dims(node) == _dims(first) and rows._alone_of_samples(node, first)


def _transposed(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return all(type(dim) is int and dim % _dims(first) != 0 for dim in (*node.args[1:], *node.kwargs.values()))


def _permuted(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    dims: Any = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    return bool(dims) and dims[0] % _dims(first) == 0


def _unsqueezed(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    dim = dims_of(node, 1)
    return type(dim) is int and dim % (_dims(first) + 1) != 0


def _stacked(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    alike = all(rows._of_samples(own) for own in _tensors(node))
    return alike and _unsqueezed(rows, node, first)


def _padded(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    pad: Any = dims_of(node, 1, ("pad",))
    return len(pad) < 2 * _dims(first)


def _attended(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    given = list(_tensors(node))
    return all(rows._of_samples(own) and _dims(own) == _dims(given[0]) >= 3 for own in given[:3]) and all(
        rows._of_samples(own) or _dims(own) <= 2 for own in given[3:]
    )


def _indexed(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    value, index = node.args
    if not isinstance(value, fx.Node) or not rows._of_samples(value):
        return False
    if not isinstance(value.meta.get("example_value"), Tensor):
        return type(index) is int  # one of several results
    chosen = index if isinstance(index, tuple) else (index,)
    nodes = [own for own in chosen if isinstance(own, fx.Node)]
    if len(nodes) == len(chosen):
        of_each = name_of(nodes[0]) == "arange" and rows.makes_rows(nodes[0])
        return of_each and all(rows._of_samples(own) and _dims(own) == 1 for own in nodes)
    if any(isinstance(own, (fx.Node, list, Tensor)) for own in chosen):
        return False
    taken = sum(own is not None and own is not Ellipsis for own in chosen)
    return (chosen[0] == slice(None)) or (chosen[0] is Ellipsis and taken < _dims(value))


_RULES: dict[str, Callable[[Rows, fx.Node, fx.Node], bool]] = {
    "linear": _linear,
    "layer_norm": _normalized,
    "rms_norm": _normalized,
    "embedding": _looked_up,
    "one_hot": _looked_up,
    "unflatten": _reshaped,
    **dict.fromkeys(("matmul", "mm", "bmm"), _product),
    "addmm": _affine_product,
    "einsum": _einsum,
    **dict.fromkeys(("view", "reshape"), _reshaped),
    "expand": _expanded,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transposed),
    "permute": _permuted,
    "unsqueeze": _unsqueezed,
    "stack": _stacked,
    "pad": _padded,
    "scaled_dot_product_attention": _attended,
    "getitem": _indexed,
}
#: Functions whose own names say nothing, as those that choose between two others.
_NAMES: dict[Any, str] = {
    getattr(F, name): name
    for name in dir(F)
    if inspect.isfunction(getattr(F, name)) and getattr(F, name).__name__ != name and not name.startswith("_")
}
