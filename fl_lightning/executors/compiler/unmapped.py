"""Functions of torch that do something else under ``vmap`` than for a client alone, and what is called instead.

Under ``vmap`` the tables of all clients are one long table: an index that is out of range takes another client's row,
and ``padding_idx`` is that of the first client. Where several values are the largest, alone each gets its share of the
gradient. The gradient of ``select_scatter`` is another. On a CPU ``dropout`` draws in the order of indices, where
alone it draws in the order of the tensor's memory. ``gaussian_nll_loss`` looks for negative variances, by which it
would decide for all clients. A tensor that is no client's is filled with one client's random numbers. And
``lstm_cell``, ``normalize`` with ``out=``, a user's ``autograd.Function`` cannot be mapped.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import _functorch
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.nn import functional as F

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.nested import own_gradient
from fl_lightning.executors.compiler.nodes import example_of, example_tensor, inputs_of, nodes_of

#: Questions about numbers, which stay tensors here.
CHECKS = {"_assert_scalar", "sym_constrain_range", "_check", "_check_is_size", "sym_constrain_range_for_size"}
#: Of functions that ``torch.func``'s transforms in a step call, the argument that counts transforms within each other.
_LEVELS = {"_add_batch_dim": 2, "_remove_batch_dim": 1, "_wrap_for_grad": 1, "_unwrap_for_grad": 1}


def replace_unmapped(graph: fx.Graph) -> bool:
    """Replace functions of a graph that cannot be mapped; numbers that ``item()`` takes stay tensors.

    Returns:
        Whether the graph has got one more input: a zero of each client.
    """
    zeros: fx.Node | None = None
    for node in nodes_of(graph):
        if node.op not in ("call_function", "call_method"):
            continue
        function: Any = node.target
        if isinstance(function, str):
            function = getattr(Tensor, function, None)
        name = getattr(function, "__name__", "")
        if name.removesuffix(".default") in CHECKS:
            graph.erase_node(node)
            continue
        if name in _LEVELS:
            # The clients' own transform is around all of them.
            level: Any = node.args[_LEVELS[name]]
            node.update_arg(_LEVELS[name], level + 1)
        if isinstance(example_of(node), torch.SymFloat):
            # A float that Python computes has double precision; torch would take its default type for whole numbers.
            for number in node.all_input_nodes:
                with graph.inserting_before(node):
                    node.replace_input_with(number, graph.call_function(_in_double_precision, (number,)))
        filled = node.args[0] if node.args else node.kwargs.get("mean", node.kwargs.get("input"))
        if function is torch._refs.tensor and node.all_input_nodes:
            # Numbers that Python computes are tensors of double precision here.
            node.target = _new_tensor
            node.kwargs = {**node.kwargs, "dtype": example_tensor(node).dtype}
        elif len(node.args) == 1 and not node.kwargs and function in _OF_EVERYTHING:
            node.op = "call_function"
            node.target = _OF_EVERYTHING[function]
        elif isinstance(node.kwargs.get("alpha"), fx.Node) and name.rstrip("_") in ("add", "sub", "subtract"):
            # PyTorch wants a number there, and does not take a tensor of one.
            value, other = node.args
            with graph.inserting_before(node):
                node.args = (value, graph.call_function(_scaled, (other, node.kwargs["alpha"])))
            node.kwargs = {}
        elif function is operator.setitem and _is_mask(node.args[1]) and isinstance(node.args[2], (int, float)):
            node.target = _fill_selected
        elif function in _INSTEAD:
            node.op = "call_function"
            node.target = _INSTEAD[function]
        elif name in _FILLS and isinstance(filled, fx.Node):
            if zeros is None:
                with graph.inserting_after(inputs_of(graph)[-1]):
                    zeros = graph.placeholder("zeros")
            with graph.inserting_before(node):
                node.replace_input_with(filled, graph.call_function(_of_each_client, (filled, zeros)))
    return zeros is not None


def _is_mask(index: Any) -> bool:
    value = example_of(index) if isinstance(index, fx.Node) else None
    return isinstance(value, Tensor) and value.dtype == torch.bool


def mapped_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what to call under ``vmap`` in a function's place; mostly the function itself."""
    return _INSTEAD.get(function, function)


# ---- numbers ----


def _of_each_client(value: Any, zero: Tensor) -> Any:
    """Return a tensor that all clients share as one of each client."""
    if not isinstance(value, Tensor) or _functorch.is_batchedtensor(value):
        return value
    return value + zero.to(value.dtype)


def _as_number(tensor: Tensor) -> Tensor:
    """Return a tensor in the place of the number that ``item()`` takes of it, in the type that Python has for it."""
    number = tensor.detach()
    return number.double() if number.is_floating_point() else number


def _write(tensor: Tensor, values: Tensor) -> Tensor:
    """Write values into a tensor, where ``tensor.data = values`` would put them into one client's row and lose them."""
    if values.shape != tensor.shape:
        raise CannotVectorize("`training_step` assigns a tensor's `.data` another shape")
    return tensor.copy_(values)


def _in_double_precision(number: Any) -> Any:
    return number.double() if isinstance(number, Tensor) else number


def _as_float(number: Any) -> Any:
    return number.double() if isinstance(number, Tensor) else float(number)


def _larger(one: Any, other: Any) -> Any:
    return torch.maximum(*_as_pair(one, other))


def _smaller(one: Any, other: Any) -> Any:
    return torch.minimum(*_as_pair(one, other))


def _as_pair(one: Any, other: Any) -> tuple[Tensor, Tensor]:
    """Return two numbers as tensors of one type, which is double precision for floats."""
    pair = [each if isinstance(each, Tensor) else _number_tensor(each) for each in (one, other)]
    dtype = torch.promote_types(pair[0].dtype, pair[1].dtype)
    return pair[0].to(dtype), pair[1].to(dtype)


def _number_tensor(number: Any) -> Tensor:
    return torch.scalar_tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)


def _fill_selected(tensor: Tensor, mask: Tensor, value: float) -> None:
    """Write a number where a mask of a tensor's first dimensions selects, as ``tensor[mask] = value`` does."""
    tensor.masked_fill_(mask.view(*mask.shape, *[1] * (tensor.dim() - mask.dim())), value)


def _scaled(value: Any, factor: Any) -> Any:
    scaled = value * factor
    return scaled.to(value.dtype) if isinstance(value, Tensor) else scaled


def _as_tensor(value: Any, **options: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(**options)
    return torch.scalar_tensor(value, **options)


def _new_tensor(data: Any, *, dtype: torch.dtype, **options: Any) -> Tensor:
    """Return a tensor of numbers in lists, of which some are tensors."""
    if isinstance(data, (list, tuple)):
        return torch.stack([_new_tensor(each, dtype=dtype, **options) for each in data])
    if isinstance(data, Tensor):
        return data.detach().to(dtype=dtype, **options).clone()
    return torch.scalar_tensor(data, dtype=dtype, **options)


def _without_fraction(number: Any) -> Any:
    return number.trunc().long() if isinstance(number, Tensor) else int(number)


# ---- tables and indices ----


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
    # It looks whether indices are in range.
    found = weight.index_select(0, input.reshape(-1)).reshape(*input.shape, weight.shape[1])
    if padding_idx is None:
        return found
    is_padding = (input == padding_idx % len(weight)).unsqueeze(-1)
    return torch.where(is_padding, found.detach(), found)


def _embedding_of_table(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    padding = padding_idx if padding_idx >= 0 else None
    return _embedding(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq)


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise CannotVectorize("`one_hot` without `num_classes` has as many columns as a client's largest value says")
    ones = torch.ones_like(tensor).unsqueeze(-1)
    return tensor.new_zeros(*tensor.shape, num_classes).scatter(-1, tensor.unsqueeze(-1), ones)


@contextmanager
def functions_for_capture() -> Iterator[None]:
    """Replace functions that Dynamo would call for one value while a step is captured.

    ``torch.bincount`` with ``minlength`` counts by columns: its size is then known. A larger value is an error there,
    upon which the client trains alone. ``math.exp`` and ``math.log`` of numbers that change are computed by tensors.
    """
    torch.bincount = _bincount  # type: ignore[assignment]
    math.exp = _exp  # type: ignore[assignment]
    math.log = _log  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.bincount = _usual_bincount
        math.exp = _usual_exp
        math.log = _usual_log


_usual_bincount = torch.bincount
_usual_exp = math.exp
_usual_log = math.log


def _exp(number: Any) -> Any:
    if has_static_value(number):
        return _usual_exp(number)
    return torch.exp(torch.scalar_tensor(number, dtype=torch.float64)).item()


def _log(number: Any, *base: Any) -> Any:
    if base or has_static_value(number):
        return _usual_log(number, *base)
    return torch.log(torch.scalar_tensor(number, dtype=torch.float64)).item()


def _bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if weights is not None or not minlength:
        return _usual_bincount(input, weights, minlength)
    return F.one_hot(input.long(), minlength).sum(0)


def _index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    # In place it does the same as without `vmap`.
    return input.clone().index_fill_(dim, index, value)


def _select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    size = input.shape[dim]
    start = index + size if -size <= index < 0 else index
    return torch.slice_scatter(input, src.unsqueeze(dim), dim, start, start + 1)


# ---- layers and losses ----


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    # On other devices one kernel draws and scales, as for a client alone.
    is_fused = input.device.type != "cpu" and not inplace
    draws = training and 0 < p < 1
    if not draws or is_fused or not _functorch.is_batchedtensor(input):
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
    has_classes = not target.is_floating_point()
    is_plain = has_classes and weight is None and not label_smoothing and (input.dim(), target.dim()) == (2, 1)
    if is_plain and (by_mean or reduction == "none") and not torch.is_autocast_enabled(input.device.type):
        losses: Tensor = _NllLosses.apply(F.log_softmax(input, 1), target, ignore_index)
        return losses.sum() / (target != ignore_index).sum() if by_mean else losses
    options: Any = {
        "size_average": size_average,
        "ignore_index": ignore_index,
        "reduce": reduce,
        "reduction": reduction,
    }
    if weight is None or not label_smoothing or not by_mean or not has_classes:
        return F.cross_entropy(input, target, weight, label_smoothing=label_smoothing, **options)
    usual = F.cross_entropy(input, target, weight, **options)
    # What smoothing adds is the weighted mean over all classes, those of ignored targets left out.
    dim_of_classes = 1 if input.dim() > 1 else 0
    shape = [1] * input.dim()
    shape[dim_of_classes] = -1
    of_all_classes = -(F.log_softmax(input, dim_of_classes) * weight.view(shape)).sum(dim_of_classes)
    counts = target != ignore_index
    total = torch.where(counts, weight[torch.where(counts, target, 0)], 0).sum()
    smooth = torch.where(counts, of_all_classes, 0).sum() / total
    return (1 - label_smoothing) * usual + label_smoothing / input.shape[dim_of_classes] * smooth


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
        scores = _with_clients_first(scores, in_dims[0], info.batch_size)
        target = _with_clients_first(target, in_dims[1], info.batch_size)
        losses = _NllLosses.apply(scores.flatten(0, 1), target.flatten(), ignore_index)
        return losses.unflatten(0, target.shape), 0


def _with_clients_first(tensor: Tensor, dim: int | None, number: int) -> Tensor:
    """Return a tensor whose first dimension is that of the clients; one that they share is repeated."""
    if dim is None:
        return tensor.expand(number, *tensor.shape)
    return tensor.movedim(dim, 0)


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
    # A negative variance is an error, and so is the index 1 of one value.
    is_negative = (var < 0).any().long()
    variance = variance + 0 * variance.new_zeros(1).gather(0, is_negative.reshape(1))
    # The gradient does not see that small ones are raised.
    with torch.no_grad():
        variance.clamp_(min=eps)
    losses = 0.5 * (torch.log(variance) + (input - target) ** 2 / variance)
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.mean()


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
    gates = F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh)
    taken, kept, new, shown = gates.chunk(4, 1)
    cell = kept.sigmoid() * cell + taken.sigmoid() * new.tanh()
    return shown.sigmoid() * cell.tanh(), cell


def _of_lstm(projected: Tensor, states: list[Tensor], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    hidden, cell = states
    taken, kept, new, shown = (projected + F.linear(hidden, weight, bias)).chunk(4, 1)
    cell = kept.sigmoid() * cell + taken.sigmoid() * new.tanh()
    return [shown.sigmoid() * cell.tanh(), cell]


def _of_gru(projected: Tensor, states: list[Tensor], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    (hidden,) = states
    reset, kept, new = projected.chunk(3, 1)
    own_reset, own_kept, own_new = F.linear(hidden, weight, bias).chunk(3, 1)
    candidate = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return [candidate + (kept + own_kept).sigmoid() * (hidden - candidate)]


def _of_rnn(activation: Callable[[Tensor], Tensor]) -> Callable[..., list[Tensor]]:
    def step(projected: Tensor, states: list[Tensor], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
        return [activation(projected + F.linear(states[0], weight, bias))]

    return step


def _recurrent(step: Callable[..., list[Tensor]]) -> Callable[..., tuple[Tensor, ...]]:
    """Return what computes the layers of a recurrent network, one step of a sequence after the other.

    Args:
        step: Returns the next states, given a step's input times its weights, the states, and the weights of these.
    """

    def run(
        input: Tensor,
        states: Any,
        weights: Any,
        has_biases: Any,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        # Its weights are in this place.
        if not isinstance(has_biases, bool):
            raise CannotVectorize("a packed sequence has other sizes for each client; give padded ones")
        if dropout and train and num_layers > 1:
            raise CannotVectorize("a recurrent network drops values between its layers, in an order of its own")
        states = [states] if isinstance(states, Tensor) else list(states)
        directions = 2 if bidirectional else 1
        of_each = 4 if has_biases else 2
        if len(weights) != of_each * directions * num_layers:
            raise CannotVectorize("an LSTM with `proj_size` computes one model at a time")
        sequence = input.transpose(0, 1) if batch_first else input
        final: list[list[Tensor]] = []
        for layer in range(num_layers):
            shown: list[Tensor] = []
            for direction in range(directions):
                number = layer * directions + direction
                own = weights[number * of_each : (number + 1) * of_each]
                bias, bias_of_states = own[2:] if has_biases else (None, None)
                present = [state[number] for state in states]
                projected = F.linear(sequence, own[0], bias)
                hidden: list[Tensor] = []
                times = range(len(sequence))
                for time in reversed(times) if direction else times:
                    present = step(projected[time], present, own[1], bias_of_states)
                    hidden.append(present[0])
                if direction:
                    hidden.reverse()
                shown.append(torch.stack(hidden))
                final.append(present)
            sequence = torch.cat(shown, 2)
        last = [torch.stack(each) for each in zip(*final, strict=True)]
        return sequence.transpose(0, 1) if batch_first else sequence, *last

    return run


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


#: What is called in the place of other functions.
_INSTEAD: dict[Any, Callable[..., Any]] = {
    F.embedding: _embedding,
    torch.embedding: _embedding_of_table,
    F.one_hot: _one_hot,
    F.dropout: _dropout,
    F.cross_entropy: _cross_entropy,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    F.normalize: _normalize,
    torch.scalar_tensor: _as_tensor,
    torch.sym_float: _as_float,
    torch.sym_int: _without_fraction,
    # Dynamo's name of `tensor.data`.
    torch._C._autograd._get_data_attr: torch.detach,  # type: ignore[attr-defined]
    # Its name of `tensor.data = values`, which earlier versions of PyTorch do not have.
    getattr(torch.ops.aten, "shallow_copy_data_", Tensor.set_): _write,
    torch.sym_ite: torch.where,
    torch.sym_max: _larger,
    torch.sym_min: _smaller,
    Tensor.item: _as_number,
    torch.ops.aten.item.default: _as_number,
    torch.ops.aten._local_scalar_dense.default: _as_number,
    torch.lstm_cell: _lstm_cell,
    torch.lstm: _recurrent(_of_lstm),
    torch.gru: _recurrent(_of_gru),
    torch.rnn_tanh: _recurrent(_of_rnn(torch.tanh)),
    torch.rnn_relu: _recurrent(_of_rnn(torch.relu)),
    torch.ops.higher_order.autograd_function_apply: own_gradient,
    torch.dropout: lambda input, p, train: _dropout(input, p, train),
    torch.select_scatter: _select_scatter,
    Tensor.select_scatter: _select_scatter,
    torch.index_fill: _index_fill,
    Tensor.index_fill: _index_fill,
}
# What Dynamo calls for functions of `math` of numbers that change.
for _name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2"):
    _INSTEAD[getattr(torch, f"_sym_{_name}")] = getattr(torch, _name)
#: What is called in the place of functions that are given a tensor and nothing else.
_OF_EVERYTHING: dict[Any, Callable[..., Tensor]] = {
    torch.max: torch.amax,
    Tensor.max: torch.amax,
    torch.min: torch.amin,
    Tensor.min: torch.amin,
    torch.median: _without_ties("median"),
    Tensor.median: _without_ties("median"),
    torch.nanmedian: _without_ties("nanmedian"),
    Tensor.nanmedian: _without_ties("nanmedian"),
}
#: Functions that fill a tensor with random numbers.
_FILLS = {"normal", "normal_", "uniform_", "bernoulli", "bernoulli_", "exponential_", "poisson"}
