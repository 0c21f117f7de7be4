"""Operations that treat each sample by itself: row ``i`` of the result depends on row ``i`` of what they are given.

Both operations of the worked example do so. Others may mix samples::

    F.linear(x, weight), F.mse_loss(prediction, y, reduction="none"), z.softmax(1)    # by themselves
    z.softmax(0), z.roll(1, 0), z @ z.T                                               # mixed

What is not known here counts as mixing: such a step takes the batches as they are, in groups of one size. Nothing is
told by values, which may hide what an operation does, such as a term whose weight is still 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

from fl_lightning.executors.compiler.nodes import example_of, example_tensor


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Each value of the result depends on the values in its place.
_BY_VALUE = _words("""
    abs acos add addcdiv addcmul alpha_dropout and asin atan atan2 bernoulli bitwise_and bitwise_not bitwise_or
    bitwise_xor bool ceil celu clamp clamp_max clamp_min clip clone contiguous copysign cos cosh detach digamma div
    double dropout elu eq erf erfc erfinv exp expm1 exponential float floor floor_divide floordiv fmod frac ge gelu gt
    half hardshrink hardsigmoid hardswish hardtanh heaviside hypot int invert isfinite isinf isnan le leaky_relu lerp
    lgamma log log10 log1p log2 logical_and logical_not logical_or logical_xor logit logsigmoid long lt masked_fill
    maximum minimum mish mod mul multiply nan_to_num ne neg negative normal or pow prelu radd rand_like randint_like
    randn_like reciprocal relu relu6 remainder round rpow rsqrt rsub rtruediv selu sigmoid sign silu sin sinh softplus
    softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold to true_divide truediv trunc type_as
    uniform where xlogy xor
""")
#: They work along dimensions, which must not be that of the samples: the place of these among their arguments.
_ALONG = {
    **dict.fromkeys(
        _words("""
            all amax amin any argmax argmin argsort cat concat count_nonzero cumprod cumsum diff flatten flip
            gather glu index_select log_softmax logsumexp max mean median min narrow prod scatter select softmax softmin
            sort squeeze std sum unbind var
        """),
        1,
    ),
    **dict.fromkeys(
        _words("chunk cosine_similarity norm normalize roll split take_along_dim topk vector_norm"),
        2,
    ),
    "gumbel_softmax": 4,
}
#: The dimensions of those whose usual one is a single dimension.
_USUAL_DIMS = {
    **dict.fromkeys(_words("glu sort argsort topk gumbel_softmax"), -1),
    **dict.fromkeys(_words("normalize cosine_similarity"), 1),
}
_OF_IMAGES = _words("conv conv_transpose max_pool avg_pool adaptive_avg_pool adaptive_max_pool lp_pool")
#: Number of dimensions that a batch of theirs has at least; with one less they take it for one sample.
_DIMS_OF_BATCH = {
    **{f"{name}{number}d": number + 2 for name in _OF_IMAGES for number in (1, 2, 3)},
    **{f"dropout{number}d": 3 for number in (1, 2, 3)},
    **dict.fromkeys(_words("feature_dropout feature_alpha_dropout group_norm instance_norm interpolate"), 3),
}
_IN_PLACE = _words("iadd isub imul itruediv ifloordiv imod ipow iand ior ixor")
#: They make constants, which have nothing of the tensor that they are given.
_CONSTANTS = _words("""
    zeros ones full empty arange zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty
""")
_DRAWN = _words("rand randn randint")
#: Losses of samples, whose first argument has a score for each class.
_OF_CLASSES = _words("cross_entropy nll_loss")
#: Losses of samples that are taken value by value.
_LOSSES = _words("""
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div poisson_nll_loss
    binary_cross_entropy_with_logits gaussian_nll_loss soft_margin_loss hinge_embedding_loss
""")
#: They have one number for each pair, or triple, of rows.
_PAIRS = _words("pairwise_distance cosine_embedding_loss triplet_margin_loss margin_ranking_loss")


def name_of(node: fx.Node) -> str:
    """Return the plain name of a node's function: ``"add"`` for ``+``, ``+=``, ``torch.add`` and ``Tensor.add_``."""
    target: Any = node.target
    name: str = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name[1:] if name in _IN_PLACE else name.rstrip("_")


class Rows:
    """Tells of the nodes of a graph whether they treat samples by themselves.

    Args:
        of_samples: Whether a node has a row for each sample, and depends on it.
        rows: The nodes whose tensors have a row for each sample.
    """

    def __init__(self, of_samples: Callable[[fx.Node], bool], rows: Collection[fx.Node]) -> None:
        self.of_samples = of_samples
        self._rows = rows

    def makes_rows(self, node: fx.Node) -> bool:
        """Whether a node makes a row for each sample, of constants, places or random numbers, whatever it is given."""
        return name_of(node) in _CONSTANTS | _DRAWN and node in self._rows

    def makes_constants(self, node: fx.Node) -> bool:
        """Whether a node makes constants, which have nothing of the tensor that it is given."""
        return name_of(node) in _CONSTANTS

    def treats_alone(self, node: fx.Node) -> bool:
        """Whether each row of a node's tensors depends on the rows in its place alone."""
        first = self._first(node)
        if first is None or node not in self._rows:
            return False
        name = name_of(node)
        if name in _BY_VALUE or name in _LOSSES:
            return self._in_place(node, _dims(node))
        if name in _OF_CLASSES or name in _PAIRS:
            return self.takes_losses(node)
        if name in _ALONG:
            return self._works_along_others(node, name, first)
        if name in _DIMS_OF_BATCH:
            return _dims(first) >= _DIMS_OF_BATCH[name] and self.is_only_one(node, first)
        rule = _RULES.get(name)
        return rule is not None and rule(self, node, first)

    def takes_losses(self, node: fx.Node) -> bool:
        """Whether a loss is one of each sample, but for the mean that it takes of them."""
        first = self._first(node)
        if first is None:
            return False
        name = name_of(node)
        if name in _OF_CLASSES:
            target = argument(node, 1, "target")
            return _dims(first) >= 2 and isinstance(target, fx.Node) and self.of_samples(target)
        if name in _PAIRS:
            return all(self.of_samples(own) and _dims(own) == _dims(first) for own in tensors_of(node))
        return name in _LOSSES and self._in_place(node, _dims(first))

    def is_only_one(self, node: fx.Node, first: fx.Node) -> bool:
        """Whether the first of a node's arguments is the only one that has samples."""
        return node.args[:1] == (first,) and self.count(node) == 1

    def count(self, node: fx.Node) -> int:
        """Return how many arguments of a node have samples; one that is given twice counts twice."""
        return sum(map(self.of_samples, nodes_given(node)))

    def _first(self, node: fx.Node) -> fx.Node | None:
        return next((own for own in node.all_input_nodes if self.of_samples(own)), None)

    def _in_place(self, node: fx.Node, dims: int) -> bool:
        """Whether samples lie in the first of ``dims`` dimensions of all that have them, and nothing else does."""
        for own in tensors_of(node):
            if self.of_samples(own):
                if _dims(own) != dims:
                    return False
            elif _dims(own) > dims or (_dims(own) == dims and not _has_one_row(own)):
                return False
        return True

    def _works_along_others(self, node: fx.Node, name: str, first: fx.Node) -> bool:
        """Whether an operation works along other dimensions than the first."""
        for own in tensors_of(node):
            if not self.of_samples(own):
                # The index of columns is the same for all samples.
                if name != "index_select":
                    return False
            elif _dims(own) != _dims(first):
                return False
        given = argument(node, _ALONG[name], "dim", "dims", "axis", "start_dim")
        if given is None:
            given = _USUAL_DIMS.get(name)
        dims = given if isinstance(given, (tuple, list)) else [given]
        return bool(dims) and all(_is_other_dim(dim, _dims(first)) for dim in dims)


def argument(node: fx.Node, place: int, *names: str) -> Any:
    """Return the argument of a node that has one of the names, or the place; ``None`` for none."""
    for name in names:
        if name in node.kwargs:
            return node.kwargs[name]
    return node.args[place] if len(node.args) > place else None


def nodes_given(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that a node is given, each as often as it is given."""
    return [leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, fx.Node)]


def tensors_of(node: fx.Node) -> list[fx.Node]:
    """Return the arguments of a node that are tensors, each once."""
    return [own for own in node.all_input_nodes if isinstance(example_of(own), Tensor)]


def _dims(node: fx.Node) -> int:
    value = example_of(node)
    return value.dim() if isinstance(value, Tensor) else -1


def _has_one_row(node: fx.Node) -> bool:
    # A number of rows on which values decide is not known to be one, and PyTorch raises an error where Python asks.
    return statically_known_true(example_tensor(node).shape[0] == 1)


def _is_other_dim(dim: Any, dims: int) -> bool:
    """Whether something is a dimension, of so many, and not the first."""
    return type(dim) is int and dim % dims != 0


# ---- rules of single functions: whether they treat alone the rows of ``first``, their first argument with samples ----


def _linear(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return _dims(first) >= 2 and rows.is_only_one(node, first)


def _normalized(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    shape: Any = argument(node, 1, "normalized_shape")
    return len(shape) < _dims(first) and rows.is_only_one(node, first)


def _product(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    one = argument(node, 0, "input")
    other = argument(node, 1, "other", "mat2")
    if rows.of_samples(one) and rows.of_samples(other):
        return _dims(one) == _dims(other) >= 3
    if rows.of_samples(one):
        return _dims(one) >= 2 >= _dims(other)
    return _dims(other) >= 3 and _dims(one) <= 2


def _affine_product(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    # The first argument is the bias.
    return node.args[1:2] == (first,) and rows.count(node) == 1 and _dims(first) == 2


def _einsum(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    # Without a result the sample has no letter, which no operand begins with.
    given, _, result = str(node.args[0]).replace(" ", "").partition("->")
    sample = result[:1]
    for own, indices in zip(nodes_given(node), given.split(","), strict=False):
        if rows.of_samples(own):
            is_right = indices[:1] == sample and indices.count(sample) == 1
        else:
            is_right = sample not in indices
        if not is_right:
            return False
    return True


def _expanded(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return _dims(node) == _dims(first) and rows.is_only_one(node, first)


def _transposed(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return all(_is_other_dim(dim, _dims(first)) for dim in (*node.args[1:], *node.kwargs.values()))


def _permuted(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return not _is_other_dim(pytree.tree_leaves((node.args[1:], node.kwargs))[0], _dims(first))


def _unsqueezed(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return _is_other_dim(argument(node, 1, "dim"), _dims(first) + 1)


def _stacked(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    return all(map(rows.of_samples, tensors_of(node))) and _unsqueezed(rows, node, first)


def _padded(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    pad: Any = node.args[1]
    return len(pad) < 2 * _dims(first)


def _attended(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    # A tensor that is given twice, as in self-attention, is here once.
    tensors = tensors_of(node)
    for own in tensors[:3]:
        if not rows.of_samples(own) or not _dims(own) == _dims(tensors[0]) >= 3:
            return False
    return all(rows.of_samples(mask) or _dims(mask) <= 2 for mask in tensors[3:])


def _indexed(rows: Rows, node: fx.Node, first: fx.Node) -> bool:
    value: Any
    value, index = node.args
    if not rows.of_samples(value):
        return False
    if not isinstance(example_of(value), Tensor):
        # It is one of several results.
        return type(index) is int
    chosen: Any = index if isinstance(index, tuple) else (index,)
    if all(isinstance(own, fx.Node) for own in chosen):
        # One value of each sample, as in `scores[torch.arange(len(y)), y]`.
        of_each = bool(chosen) and name_of(chosen[0]) == "arange"
        return of_each and all(rows.of_samples(own) and _dims(own) == 1 for own in chosen)
    if any(isinstance(own, (fx.Node, list)) for own in chosen):
        return False
    if chosen[0] is Ellipsis:
        taken = sum(own is not None and own is not Ellipsis for own in chosen)
        return taken < _dims(value)
    return bool(chosen[0] == slice(None))


_RULES: dict[str, Callable[[Rows, fx.Node, fx.Node], bool]] = {
    "linear": _linear,
    "layer_norm": _normalized,
    "rms_norm": _normalized,
    "embedding": Rows.is_only_one,
    "one_hot": Rows.is_only_one,
    **dict.fromkeys(("matmul", "mm", "bmm"), _product),
    "addmm": _affine_product,
    "einsum": _einsum,
    **dict.fromkeys(("view", "reshape", "unflatten"), Rows.is_only_one),
    "expand": _expanded,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transposed),
    "permute": _permuted,
    "unsqueeze": _unsqueezed,
    "stack": _stacked,
    "pad": _padded,
    "scaled_dot_product_attention": _attended,
    "getitem": _indexed,
}
