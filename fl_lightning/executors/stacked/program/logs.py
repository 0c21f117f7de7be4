"""The values that a program logs, for batches of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.recording import LogCall, Logged
from fl_lightning.executors.stacked.program.plan import Plan
from fl_lightning.executors.stacked.program.trace import RESHAPES, Traced


def joint_logs(
    logged: Logged, other: Logged, size: int, other_size: int
) -> tuple[list[LogCall], list[int | Tensor], list[bool]]:
    """Return what a step logs for batches of any size, from what it logs for batches of two sizes.

    The last list says which tensors have a row for each sample.
    """
    calls = [_without_size(*calls, size, other_size) for calls in zip(logged.calls, other.calls, strict=True)]
    if [call.leaves for call in logged.metric_calls] != [call.leaves for call in other.metric_calls]:
        raise CannotVectorize("metric objects take numbers that depend on a batch's size")
    tensors: list[int | Tensor] = []
    of_samples = []
    for value, second in zip(logged.tensors, other.tensors, strict=True):
        of_samples.append(_is_of_samples(value.shape, second.shape, size, other_size))
        if isinstance(value, Traced):
            tensors.append(value.number)
        elif torch.equal(value, second):
            tensors.append(value)
        else:
            raise CannotVectorize("a number that depends on a batch's size is logged")
    return calls, tensors, of_samples


def leaves_needed(plan: Plan, wanted: Sequence[int], size: int) -> set[int]:
    """Return the batch's tensors on which values depend beside the network's output and the loss.

    Raises:
        CannotVectorize: If they depend on anything else, or on the batch's size.
    """
    found, waiting = set(), list(wanted)
    while waiting:
        number = waiting.pop()
        if number == plan.result:
            found.add(plan.target)
        elif number < plan.graph.parameters:
            raise CannotVectorize("what is logged depends on weights")
        elif number < plan.graph.leaves:
            found.add(number)
        elif number != plan.output:
            node = plan.graph.nodes[number]
            if node.function in RESHAPES and size in node.leaves:
                raise CannotVectorize("what is logged is shaped by a batch's size")
            waiting += node.inputs
    return found


def log_key(logged: Logged) -> Any:
    """Return what makes two steps' logs the same."""
    tensors = [value.number if isinstance(value, Traced) else float(value) for value in logged.tensors]
    calls = [(call.fx, call.name, call.options, call.value) for call in logged.calls]
    metrics = [(id(call.metric), call.method, call.leaves) for call in logged.metric_calls]
    return tensors, calls, metrics


def _is_of_samples(shape: Sequence[int], other: Sequence[int], size: int, other_size: int) -> bool:
    """Return whether a tensor that is logged for batches of two sizes has a row for each sample."""
    if list(shape) == list(other):
        return False
    if [*shape[:1], *other[:1]] != [size, other_size] or list(shape[1:]) != list(other[1:]):
        raise CannotVectorize("what is logged has a batch's samples along another dimension than the first")
    return True


def _without_size(call: LogCall, other: LogCall, size: int, other_size: int) -> LogCall:
    """Return a call of ``self.log`` whose batch size, if that is the batch's, is left to each batch."""
    options, others = dict(call.options), dict(other.options)
    weight, other_weight = options.get("batch_size"), others.pop("batch_size", None)
    if weight is not None and (weight, other_weight) == (size, other_size):
        del options["batch_size"]
    elif weight != other_weight:
        raise CannotVectorize("what is logged depends on a batch's size")
    rest = {key: value for key, value in options.items() if key != "batch_size"}
    if rest != others or (call.fx, call.name, call.value) != (other.fx, other.name, other.value):
        raise CannotVectorize("what is logged depends on a batch's size")
    return replace(call, options=options)
