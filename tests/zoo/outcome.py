"""What a fit leaves behind, and in what two of them differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torchmetrics import Metric

ASPECTS = ("weights", "values", "events", "state")
_STOCK = {*vars(nn.Module()), *vars(L.LightningModule()), "log", "_is_full_backward_hook"}


@dataclass
class Outcome:
    """What a fit leaves behind, as plain numbers by name.

    Attributes:
        weights: Parameters and buffers.
        values: Values that callbacks may monitor at the end, and counters.
        events: What loggers were given, call by call.
        state: The module's attributes, and what it keeps elsewhere.
    """

    weights: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    events: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)


class CallRecorder(Logger):
    """A logger that keeps every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    @property
    def name(self) -> str:
        return "zoo"

    @property
    def version(self) -> int:
        return 0

    @property
    def experiment(self) -> CallRecorder:
        return self

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.calls.append((step, dict(metrics)))

    def add_scalar(self, name: str, value: Any, step: int, **options: Any) -> None:
        self.calls.append((step, {name: value, **options}))

    def add_histogram(self, name: str, values: Tensor) -> None:
        self.calls.append((None, {name: values.clone()}))


def outcome(
    module: L.LightningModule, outside: Any, calls: Sequence[Any], values: Mapping[str, Any], leave_out: Sequence[str]
) -> Outcome:
    """Return what a fit has left behind.

    Args:
        module: The module after the fit.
        outside: What it keeps outside of itself.
        calls: What loggers were given.
        values: What may be monitored, and counters.
        leave_out: How names of logged values begin that are left out.
    """

    def kept(numbers: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in numbers.items() if not key.startswith(tuple(leave_out))}

    events = [(*call[:-1], kept(call[-1])) for call in calls]
    return Outcome(
        weights=dict(leaves(dict(_tensors(module)))),
        values=dict(leaves(kept(values))),
        events=dict(leaves([event for event in events if set(event[-1]) - {"epoch", "round"}])),
        state=dict(leaves({"module": _attributes(module), "outside": outside})),
    )


def notes(callbacks: Sequence[Any]) -> list[Any]:
    """Return what callbacks have noted in an attribute of that name."""
    return [getattr(callback, "notes", None) for callback in callbacks]


def parts_of(printed: str) -> list[Any]:
    """Return a text's numbers with points, and what stands between them."""
    return [float(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+\.\d+)", printed))]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number, text and array that a value leads to, with the path to it."""
    if isinstance(value, Tensor):
        yield path, _numbers(value)
    elif isinstance(value, (np.ndarray, bool, int, float, str, type(None), np.generic)):
        yield path, np.array(value) if isinstance(value, np.ndarray) else value
    elif isinstance(value, torch.Generator):
        yield path, value.get_state().numpy().copy()
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from leaves(value[key], f"{path}.{key}")
    elif isinstance(value, (set, frozenset)):
        yield path, repr(sorted(value, key=repr))
    elif isinstance(value, Sequence) or type(value).__name__ == "deque":
        yield f"{path}.length", len(value)
        for place, each in enumerate(value):
            yield from leaves(each, f"{path}[{place}]")
    elif hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)) and not callable(value):
        yield from leaves(vars(value), path)


def _numbers(tensor: Tensor) -> Any:
    try:
        return tensor.detach().double().numpy().copy()
    except RuntimeError:  # of a transform that has ended
        return "cannot be read"


def differences(expected: Mapping[str, Any], found: Mapping[str, Any], tolerance: float) -> list[str]:
    """Return a line for each entry that is missing or another, of everything by path."""
    lines = [f"{path}: {'missing' if path in expected else 'not expected'}" for path in expected.keys() ^ found.keys()]
    for path in expected.keys() & found.keys():
        one, other = expected[path], found[path]
        if isinstance(one, (str, type(None))) or isinstance(other, (str, type(None))):
            same = one == other
        else:
            one, other = np.asarray(one, float), np.asarray(other, float)
            close = one.shape == other.shape and np.allclose(one, other, rtol=tolerance, atol=_floor(one, tolerance))
            same = close or np.array_equal(one, other, equal_nan=True)
        if not same:
            lines.append(f"{path}: {one} expected, {other} found")
    return sorted(lines)


def compare(expected: Outcome, found: Outcome, tolerance: float) -> list[str]:
    """Return a line for each difference, in all aspects."""
    return [
        f"{aspect}: {line}"
        for aspect in ASPECTS
        for line in differences(getattr(expected, aspect), getattr(found, aspect), tolerance)
    ]


def _floor(array: Any, tolerance: float) -> float:
    """Return the absolute tolerance: an array's small entries are compared by the scale of its large ones."""
    finite = np.abs(array[np.isfinite(array)])
    return tolerance * max(0.1, float(finite.max()) if finite.size else 0.0)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, submodule in module.named_modules():
        if not isinstance(submodule, Metric):
            for name, tensor in [*submodule._parameters.items(), *submodule._buffers.items()]:
                if tensor is not None:
                    yield f"{prefix}.{name}", tensor


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return what a module and its submodules hold beside tensors and what torch and Lightning put there."""
    held: dict[str, Any] = {}
    for prefix, submodule in module.named_modules():
        if not isinstance(submodule, Metric) and "torchmetrics" not in type(submodule).__module__:
            own = {key: value for key, value in vars(submodule).items() if key not in _STOCK}
            held[prefix] = {"training": submodule.training, **own}
    return held
