"""The metric objects of a trial's clients, compared between clients that train alone and those of a stack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.log_replay import Journal
from fl_lightning._lightning.metric_replay import MetricStates, NotCopied, metric_states, restore_metric_states
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.stacked.changes.comparison import ByIdentity
from fl_lightning.executors.stacked.changes.module_state import Snapshotter
from fl_lightning.executors.stacked.guards.effects import no_effects
from fl_lightning.executors.stacked.surroundings import names_reached

_NODES = 200_000  # objects that are looked at
#: How far values may differ by rounding, relative to the largest one, and by how much even so.
_BOUNDS = {torch.float64: (1e-9, 1e-12), torch.float32: (1e-4, 1e-6)}
_MIXED = 5e-2, 1e-3
#: Functions of torch, numpy and Python that draw random numbers.
_DRAWS = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "multinomial", "bernoulli"),
    *("bernoulli_", "normal_", "uniform_", "random_", "exponential_", "poisson", "standard_normal", "permutation"),
    *("shuffle", "choice", "choices", "sample", "rsample", "randrange", "randbytes", "getrandbits", "gauss", "random"),
    *("normal", "uniform", "dropout"),
}
_NAMES = {"_forward_cache": "value of a step", "_update_count": "number of updates"}


@dataclass
class MetricsAlone:
    """The states of metric objects of a client that trained alone.

    Attributes:
        slot: The client's slot.
        before: The states of the module's metric objects before.
        after: Their states after.
    """

    slot: int
    before: MetricStates
    after: MetricStates


def compare_metrics(
    clients: Sequence[MetricsAlone],
    journal: Journal,
    vector: StateVector,
    origin: StateVector,
    model: Tensor,
    mixed: bool,
) -> bool:
    """Give a copy's metric objects what clients in a stack would give them, and compare.

    Args:
        clients: The clients.
        journal: The values that they logged in the stack.
        vector: The federated state of the copy on which the stack was trained.
        origin: That of the module.
        model: A model, shape ``(size,)``, of which metric objects have the buffers.
        mixed: Whether training is in mixed precision.

    Returns:
        Whether metric objects may be given all clients' batches at once, where their kind allows for it.

    Raises:
        CannotVectorize: If a metric object differs in a stack.
    """
    _check_names(journal)
    likeness = Likeness(*_MIXED if mixed else _BOUNDS.get(origin.parameters[0].dtype, _MIXED))
    copy = vector.module
    at_first, states = metric_states(copy), []
    with no_effects(), _buffers(vector, model):
        for journal.jointly in (True, False):
            restore_metric_states(copy, at_first)
            journal.update_metrics()
            states.append(metric_states(copy))
        for client in clients:  # the last ones, whose values of single steps are compared, too
            restore_metric_states(copy, client.before, origin.module)
            journal.update_metrics(client.slot)
            if different := likeness.difference(client.after, metric_states(copy), origin.module, copy):
                raise CannotVectorize(
                    f"the metric object {different} holds something else in a stack, which gives it its clients' "
                    "batches when they have been trained"
                )
    return likeness.difference(states[0], states[1], copy, copy) is None


def _check_names(journal: Journal) -> None:
    """Raise ``CannotVectorize`` for metric objects of the user's own that may draw random numbers in some batches."""
    for metric in journal.metrics:
        for method in (type(metric).update, type(metric).compute):
            if drawn := _DRAWS & (names_reached(MethodType(method, metric)) or set()):
                names = f"{type(metric).__name__}, by `{min(drawn)}`"
                raise CannotVectorize(
                    f"a metric object ({names}) draws random numbers: each client alone would draw its own"
                )


@contextmanager
def _buffers(vector: StateVector, model: Tensor) -> Iterator[None]:
    """Give metric objects the buffers of a model, such as thresholds, and nothing else of it."""
    prefixes = tuple(f"{name}." for name, part in vector.module.named_modules() if isinstance(part, Metric))
    named = zip(vector.tensor_names, vector.tensors(), vector.views(model), strict=True)
    own = [(buffer, buffer.clone(), value) for name, buffer, value in named if _is_buffer(vector, name, prefixes)]
    for buffer, _, value in own:
        buffer.copy_(value)
    try:
        yield
    finally:
        for buffer, before, _ in own:
            buffer.copy_(before)


def _is_buffer(vector: StateVector, name: str, prefixes: tuple[str, ...]) -> bool:
    return name in vector.buffer_names and name.startswith(prefixes)


class Likeness:
    """Compares states of metric objects.

    Args:
        relative: By how much numbers may differ, relative to the largest one of a tensor.
        absolute: By how much they may differ at least.
    """

    def __init__(self, relative: float, absolute: float) -> None:
        self._relative, self._absolute = relative, absolute

    def difference(self, one: MetricStates, other: MetricStates, first: nn.Module, second: nn.Module) -> str | None:
        """Return the name of something that differs by more than rounding, ``None`` if there is nothing.

        Args:
            one: The states of the first module's metric objects.
            other: Those of the second module's.
            first: The first module.
            second: The second module.
        """
        own = {id(part) for module in (first, second) for part in module.modules()}
        snapshotters = Snapshotter(own, False, _NODES), Snapshotter(own, False, _NODES)
        for name in one:
            keys = {*one[name], *other[name]}
            for key in sorted(keys, key=lambda key: (key.startswith("_"), key)):  # a name of the user's own tells more
                values = [states[name].get(key, NotCopied()) for states in (one, other)]
                snapshots = [
                    snapshotter.snapshot(value) for snapshotter, value in zip(snapshotters, values, strict=True)
                ]
                if any(isinstance(value, NotCopied) for value in values) or not self.alike(*snapshots):
                    return f"`self.{name}` (its {_NAMES.get(key, f'`{key}`')})"
        return None

    def alike(self, one: Any, other: Any) -> bool:
        """Whether two snapshots are the same but for rounding."""
        if type(one) is not type(other):
            return False
        if isinstance(one, ByIdentity):
            return bool(one.kind == other.kind)  # a copy has copies of what is compared by identity
        if isinstance(one, Tensor):
            return one.dtype == other.dtype and self._are_close(one, other)
        if isinstance(one, np.ndarray):
            if one.dtype.kind not in "biufc" or one.dtype != other.dtype:
                return bool(one.dtype == other.dtype and one.tolist() == other.tolist())
            return self._are_close(torch.from_numpy(one), torch.from_numpy(other))
        if isinstance(one, (float, complex)):
            return self._are_close(torch.tensor(one), torch.tensor(other))
        if isinstance(one, (tuple, list)):
            return len(one) == len(other) and all(map(self.alike, one, other))
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(self.alike(value, other[key]) for key, value in one.items())
        if is_dataclass(one) and not isinstance(one, type):  # a snapshot of many values
            return self.alike(vars(one), vars(other))
        return one is other or bool(one == other)

    def _are_close(self, one: Tensor, other: Tensor) -> bool:
        if one.shape != other.shape:
            return False
        if not one.is_floating_point() and not one.is_complex():
            return torch.equal(one, other)
        finite = one[one.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 0.0
        bound = self._relative * scale + self._absolute
        if not math.isfinite(bound):
            return False
        return torch.allclose(one, other, rtol=self._relative, atol=bound, equal_nan=True)
