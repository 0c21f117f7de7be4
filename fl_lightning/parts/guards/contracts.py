"""The joint between parts and the server: what methods of parts may return, and what they must leave unchanged."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import got, is_number
from fl_lightning.parts.federation import ClientResult, accumulator
from fl_lightning.parts.guards.changes_in_place import call
from fl_lightning.parts.guards.checked_numbers import NUMBERS, checked_number, with_checked_numbers
from fl_lightning.parts.traffic import Payload

_Method = TypeVar("_Method", bound=Callable[..., Any])
_Check = Callable[[Any, str, tuple[Any, ...], Any], Any]


def call_for_vector(
    part: object,
    method: str,
    *arguments: Any,
    watch: Sequence[Tensor],
    lengths: Sequence[int],
    finite: int = 0,
    allowed: str = "",
) -> Tensor:
    """Call a part's method that returns a vector, and check it.

    Args:
        part: The part.
        method: The method's name.
        *arguments: What it is given.
        watch: Tensors that it sees and must leave as they are; the vector must lie where the first one does.
        lengths: Lengths that the vector may have.
        finite: How many values, from the first on, must be finite.
        allowed: What may be returned, for errors.

    Returns:
        The vector, floating-point of shape ``(length,)``, in the type of the first watched tensor and without a graph.

    Raises:
        TypeError: If the method returns anything else than a floating-point tensor.
        ValueError: If the tensor has another shape, or lies on another device.
        FloatingPointError: If it has NaN or infinite values, and the watched tensors have none.
        RuntimeError: If the method changes one of these in place.
    """
    returned = call(part, method, *arguments, watch=watch)
    given = watch[0]
    if returned is given:  # nothing to check: most exchanges leave the model of a client as it is
        return given  # type: ignore[no-any-return]
    vector = _checked_vector(part, method, returned, given, lengths, allowed)
    if finite and not is_finite(vector[:finite]) and all(is_finite(tensor[:finite]) for tensor in watch):
        _refuse_not_finite(part, method, "what it was given is finite")
    return vector


def call_for_merged(
    part: object, model: Tensor, results: Sequence[ClientResult], lengths: Sequence[int], num_parameters: int
) -> Tensor | None:
    """Call an aggregation's ``merge`` and check what it returns; see :func:`call_for_vector`.

    Args:
        part: The aggregation.
        model: The server's parameters, or its whole model.
        results: Those that it may have kept.
        lengths: Lengths that the vector may have.
        num_parameters: Length of the parameters.

    Returns:
        The vector, in the type of running sums, or ``None`` if there was no result.
    """
    returned = call(part, "merge", model, watch=[model], results=results)
    if returned is None:
        return None
    shapes = [f"({length},)" for length in lengths]
    needed = shapes[0] if len(shapes) == 1 else f"{shapes[0]}, the parameters, or {shapes[1]}, with buffers"
    allowed = f"{needed}. Return what the whole model moves to, or None if there is nothing to do"
    vector = _checked_vector(part, "merge", returned, model, lengths, allowed, accumulator(model))
    if not is_finite(vector[:num_parameters]):
        _refuse_not_finite(part, "merge", "all clients handed in finite values")
    return vector


def call_for_sum(part: object, total: Tensor, count: float) -> tuple[Tensor, float]:
    """Call an exchange's ``summed`` and check what it returns; see :func:`call_for_vector`.

    Args:
        part: The exchange.
        total: The true sum of updates, shape ``(num_parameters,)``.
        count: The true number of clients.

    Raises:
        ValueError: If the number is negative or not finite.
    """
    returned = call(part, "summed", total, count, watch=[total])
    if not isinstance(returned, tuple) or len(returned) != 2 or not is_number(returned[1]):
        _refuse_type(part, "summed", returned, "the sum, a tensor, and the number by which the server divides it")
    seen = _checked_vector(part, "summed", returned[0], total, (len(total),))
    what = "a sum whose number, by which the server divides it,"
    return seen, float(
        checked_number(f"`{type(part).__name__}.summed` returned", what, returned[1], "Return 0 to let the server stay")
    )


def call_for_result(part: object, method: str, result: ClientResult) -> ClientResult:
    """Call a part's method that returns a client's result, and check it.

    Args:
        part: The part.
        method: The method's name.
        result: What it is given.

    Raises:
        TypeError: If it returns no :class:`ClientResult`, one whose vector is no floating-point tensor, or one whose
            payload is no :class:`Payload`.
        ValueError: If the vector has another shape, or lies on another device; if samples or steps are no finite
            number of at least 0, or loss, score or ``summed_lr`` no finite numbers; if the task has another slot.
        RuntimeError: If the method changes the result's tensors in place.
    """
    returned = call(part, method, result, results=[result])
    checked = result if returned is result else check_result(part, method, returned, result)
    if checked.task.slot != result.task.slot:
        raise ValueError(
            f"`{type(part).__name__}.{method}` returned a result whose `task.slot` is {checked.task.slot}, but the "
            f"client's is {result.task.slot}, by which the server knows its model. Change the task by "
            "`replace(result.task, num_samples=...)` of dataclasses."
        )
    return checked


def check_results(part: object, method: str, returned: Any, like: Sequence[ClientResult]) -> list[ClientResult]:
    """Return the results that a part's method returned for others; for errors see :func:`call_for_result`."""
    if not isinstance(returned, (list, tuple)):
        _refuse_type(part, method, returned, "a list of all ClientResults")
    return [check_result(part, method, result, like[0]) for result in returned] if like else list(returned)


def check_result(part: Any, method: str, returned: Any, like: ClientResult) -> ClientResult:
    """Return a client's result that a part's method returned; see :func:`call_for_result`.

    Args:
        part: The part.
        method: The method's name.
        returned: What it returned.
        like: A result that it was given.
    """
    if not isinstance(returned, ClientResult):
        _refuse_type(part, method, returned, "a ClientResult, such as `result.with_delta(update)`")
    lengths = (like.vector.shape[0],)
    vector = _checked_vector(part, method, returned.vector, like.vector, lengths)
    start = returned.start
    if start is not like.start:
        start = _checked_vector(part, method, start, like.vector, lengths)
    if not isinstance(returned.payload, Payload):
        raise TypeError(
            f"`{type(part).__name__}.{method}` returned a result whose payload is {got(returned.payload)}. Give a "
            "Payload, such as `result.payload.sparse(k, of=n)`, or leave it out."
        )
    result: ClientResult = returned
    if not part.is_of_library and any(getattr(result, name) is not getattr(like, name) for name in NUMBERS):
        result = with_checked_numbers(f"`{type(part).__name__}.{method}` returned", result)
    is_plain = vector is result.vector and start is result.start
    return result if is_plain else replace(result, vector=vector, start=start)


def is_finite(vector: Tensor) -> bool:
    """Return whether all values are finite; one sum is cheaper than a test of each, and enough if it is finite."""
    return math.isfinite(vector.sum()) or bool(vector.isfinite().all())


def are_finite(result: ClientResult) -> bool:
    """Return whether a client's parameters, and the buffers that it changed, are finite."""
    if math.isfinite(result.vector.sum()):  # nearly always; see `is_finite`
        return True
    start = result.start[len(result.parameters) :]
    constant = (result.buffers == start) | (result.buffers.isnan() & start.isnan())
    return bool(result.parameters.isfinite().all()) and bool((result.buffers.isfinite() | constant).all())


def returns(check: _Check) -> Callable[[_Method], _Method]:
    """Mark a method of a base class: what the methods that override it return goes through a check.

    This is for methods that are called from many places. :class:`~fl_lightning.parts.part.Part` puts the check around
    the methods of its subclasses.

    Args:
        check: Gets the part, the method's name, its arguments and what it returned; returns what the caller gets.
    """

    def mark(method: _Method) -> _Method:
        method.checked_by = check  # type: ignore[attr-defined]
        return method

    return mark


def raise_flags(cls: type, flags: Mapping[str, str]) -> None:
    """Set the flags without which the methods that a class defines would never be called.

    Args:
        cls: The class, just made. A flag that it sets itself stays.
        flags: The flag of each method, by the method's name.
    """
    for method, flag in flags.items():
        if method in vars(cls) and flag not in vars(cls):
            setattr(cls, flag, True)


def keep_contracts(cls: type) -> None:
    """Put the checks that base classes ask for, by :func:`returns`, around the methods that a class defines."""
    for name, method in list(vars(cls).items()):
        checks = (getattr(vars(base).get(name), "checked_by", None) for base in cls.__mro__[1:])
        check = next(filter(None, checks), None)
        if check is not None and callable(method):
            setattr(cls, name, _around(method, name, check))


def _around(method: Callable[..., Any], name: str, check: _Check) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        return check(self, name, (*arguments, *named.values()), method(self, *arguments, **named))

    checked.checked_by = check  # type: ignore[attr-defined]
    return checked


def _checked_vector(
    part: object,
    method: str,
    returned: Any,
    like: Tensor,
    lengths: Sequence[int],
    allowed: str = "",
    dtype: torch.dtype | None = None,
) -> Tensor:
    if (
        isinstance(returned, Tensor)
        and returned.is_floating_point()
        and returned.layout is torch.strided
        and returned.ndim == 1
        and returned.shape[0] in lengths
        and returned.device == like.device
    ):
        vector = returned.detach() if returned.requires_grad else returned
        vector = vector if type(vector) is Tensor else vector.as_subclass(Tensor)  # checkpoints hold plain tensors
        return vector.to(dtype or like.dtype)
    _refuse_vector(part, method, returned, like, allowed or f"({lengths[0]},), the shape of the model that it is given")


def _refuse_vector(part: object, method: str, returned: Any, like: Tensor, allowed: str) -> NoReturn:
    if not isinstance(returned, Tensor):
        _refuse_type(part, method, returned, f"a tensor of shape {allowed}")
    name = f"`{type(part).__name__}.{method}`"
    if not returned.is_floating_point():
        raise TypeError(
            f"{name} returned a tensor of {returned.dtype}, which would change the weights when they are converted. "
            f"Return floating-point numbers, such as {like.dtype}: compute with `.double()` and convert nothing to "
            "whole numbers, masks or complex numbers at the end."
        )
    if returned.layout is not torch.strided:
        raise TypeError(f"{name} returned a sparse tensor. Return `vector.to_dense()`.")
    if returned.device != like.device:
        raise ValueError(
            f"{name} returned a tensor on {returned.device}, but the model is on {like.device}. Return "
            f"`vector.to(model.device)`."
        )
    raise ValueError(f"{name} returned a tensor of shape {tuple(returned.shape)}; the server needs {allowed}.")


def _refuse_not_finite(part: object, method: str, although: str) -> NoReturn:
    raise FloatingPointError(
        f"`{type(part).__name__}.{method}` returned NaN or infinite parameters, although {although}. Check its "
        "arithmetic: a division by 0, a root or a logarithm, a number that grows without bounds. The round is "
        "discarded."
    )


def _refuse_type(part: object, method: str, returned: Any, allowed: str) -> NoReturn:
    hint = ""
    if returned is None:
        hint = f" Is a `return` missing at the end of `{method}`?"
    elif isinstance(returned, (np.ndarray, list, tuple)):
        hint = " Make a tensor of it with `torch.as_tensor(...)`."
    raise TypeError(f"`{type(part).__name__}.{method}` returned {got(returned)}; it must return {allowed}.{hint}")
